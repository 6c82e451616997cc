"""A simulation's state as tensors and numbers, whole or only what has changed, and back.

A part of a state is a mapping of tensors and one of numbers:

    models, public, taken, led, touched, heard, stamp, spent    whole, or the rows `at.<name>` of it
    first, average, shelf.<row>, owed.<client>, own.<client>    a model each
    base.<lane>, memory.<lane>.<name>                           of lanes that have changed
    lanes {number: ...}, same {lane: another with the same base}, gone [names], and single numbers

A whole state is everything that has changed since nothing was on disk.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.scheme import Estimates
from sdfeel.core.staleness import Clocks
from sdfeel.sim.state import LaneState, ModelRows, State

MATRICES = ("models", "public")  # whose rows are written one by one
ARRAYS = ("taken", "led", "touched", "heard", "stamp", "spent")  # replaced, never written into
Part = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass
class OnDisk:
    """Which parts of a state are on disk, without keeping its models in memory."""

    writes: int = -1  # of the servers' rows
    arrays: dict[str, Any] = field(default_factory=dict)
    models: dict[str, tuple[ref[Tensor], int]] = field(default_factory=dict)
    lanes: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: State) -> "OnDisk":
        return cls(
            state.rows.writes,
            _arrays(state),
            {name: (ref(model), model._version) for name, model in _models(state)},
            {n: _moment(each) for n, each in enumerate(state.lanes)},
        )

    def has(self, name: str, model: Tensor) -> bool:
        """Is it the same tensor, and has nobody written into it?"""
        known = self.models.get(name)
        return known is not None and known[0]() is model and known[1] == model._version


def changed(state: State, known: OnDisk) -> Part:
    """What has changed since `known` was on disk."""
    tensors: dict[str, Tensor] = {}
    rows = np.flatnonzero(state.rows.last_written > known.writes)
    for name, matrix in (("models", state.rows.servers), ("public", state.public)):
        if matrix is not None:
            tensors |= _rows(name, matrix, rows)
    for name, array in _arrays(state).items():
        before = known.arrays.get(name)
        whole = before is None or before.shape != array.shape
        tensors |= _rows(name, array, np.arange(len(array)) if whole else _unlike(before, array))
    present = dict(_models(state))
    tensors |= {n: model.contiguous() for n, model in present.items() if not known.has(n, model)}
    lanes = [n for n, each in enumerate(state.lanes) if known.lanes.get(n) != _moment(each)]
    fresh, same = _lanes(state.lanes, lanes)
    numbers = {
        "number": state.clocks.number,
        "seconds": state.seconds,
        "bytes": state.bytes,
        "joules": state.joules,
        "over": state.over,
        "shelves": state.rows.shelves,
        "gone": [name for name in known.models if name not in present],
        "same": same,
        "lanes": {n: _numbers(state.lanes[n]) for n in lanes},
    }
    return tensors | fresh, numbers


def size(tensors: Mapping[str, Tensor]) -> int:
    """Bytes that these tensors take up."""
    return sum(each.numel() * each.element_size() for each in tensors.values())


def _arrays(state: State) -> dict[str, Any]:
    clocks = state.clocks
    arrays = (state.taken, clocks.led, clocks.touched, clocks.heard, clocks.stamp, state.spent)
    named = zip(ARRAYS, arrays, strict=True)
    return {name: array for name, array in named if array is not None and array.size}


def _models(state: State) -> Iterator[tuple[str, Tensor]]:
    """Models that are replaced when they change, by name."""
    yield "first", state.rows.first
    if state.average is not None:
        yield "average", state.average
    for kind, models in (
        ("shelf", state.rows.written),
        ("owed", state.owed),
        ("own", state.own),
    ):
        for n, model in models.items():
            yield f"{kind}.{n}", model


def _rows(name: str, table: Any, rows: Any) -> dict[str, Tensor]:
    """Some rows of a matrix or an array, and their numbers unless it is all rows."""
    if not len(rows):
        return {}
    if len(rows) == len(table):
        return {name: torch.as_tensor(np.array(table)) if _plain(table) else table.contiguous()}
    found = torch.from_numpy(table[rows]) if _plain(table) else table[torch.from_numpy(rows)]
    return {name: found, f"at.{name}": torch.from_numpy(rows)}


def _plain(table: Any) -> bool:
    return isinstance(table, np.ndarray)


def _unlike(one: Any, other: Any) -> Any:
    """The rows in which two arrays differ."""
    if one is other:
        return ()
    return np.flatnonzero((one != other).reshape(len(one), -1).any(axis=1))


def _moment(lane: LaneState) -> tuple[Any, ...]:
    """What tells whether a lane has changed: the rest of it changes only when its round ends."""
    return lane.k, lane.ends, lane.held


def _lanes(lanes: list[LaneState], changed: list[int]) -> tuple[dict[str, Tensor], dict[int, int]]:
    """The models and memories of lanes that have changed; lanes that share a base share its row."""
    tensors: dict[str, Tensor] = {}
    same: dict[int, int] = {}
    new = set(changed)
    holders = {id(each.base): n for n, each in enumerate(lanes) if n not in new}
    for n in changed:
        base = lanes[n].base
        if base is not None:
            holder = holders.setdefault(id(base), n)
            if holder == n:
                tensors[f"base.{n}"] = base.contiguous()
            else:
                same[n] = holder
        for name, values in lanes[n].memory.items():
            tensors[f"memory.{n}.{name}"] = torch.from_numpy(np.array(values))
    return tensors, same


def _numbers(lane: LaneState) -> dict[str, Any]:
    return {
        "place": lane.number,
        "lane": lane.lane,
        "k": lane.k,
        "ends": lane.ends,
        **({} if lane.held is None else {"held": lane.held}),
        "sources": lane.sources,
        "steps": lane.steps,
        "began": lane.began,
        "since": lane.since,
        "was": lane.was,
        "crew": lane.crew,
        "measured": None if lane.measured is None else asdict(lane.measured),
    }


class Restored:
    """A state as it is put together again, part by part."""

    def __init__(self) -> None:
        self._tables: dict[str, Tensor] = {}
        self._models: dict[str, Tensor] = {}
        self._lanes: dict[int, dict[str, Any]] = {}
        self._bases: dict[int, Tensor] = {}
        self._memories: dict[int, dict[str, Tensor]] = {}
        self.numbers: dict[str, Any] = {}

    def add(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Apply what has changed."""
        tensors, self.numbers = _named(dict(tensors)), dict(numbers)
        lanes = self.numbers.pop("lanes")
        known = dict(enumerate(lanes)) if isinstance(lanes, list) else lanes  # in 0.2: a list
        for n, lane in known.items():
            self._lanes[int(n)] = lane
            self._bases.pop(int(n), None)
            self._memories.pop(int(n), None)
        for name in self.numbers.pop("gone", ()):
            del self._models[name]
        for name, tensor in tensors.items():
            self._add(name, tensor, tensors.get(f"at.{name}"))
        for n, other in self.numbers.pop("same", {}).items():
            self._bases[int(n)] = self._bases[other]

    def _add(self, name: str, tensor: Tensor, rows: Tensor | None) -> None:
        kind, _, rest = name.partition(".")
        if kind == "base":
            self._bases[int(rest)] = tensor
        elif kind == "memory":
            lane, _, key = rest.partition(".")
            self._memories.setdefault(int(lane), {})[key] = tensor
        elif kind in (*MATRICES, *ARRAYS):
            if rows is None:
                self._tables[name] = tensor
            else:
                self._tables[name][rows] = tensor
        elif kind != "at":
            self._models[name] = tensor

    def state(self) -> State:
        """The state; `numbers` then holds what was saved with it."""
        tables, numbers = self._tables, self.numbers
        arrays = {name: table.numpy() for name, table in tables.items() if name in ARRAYS}
        clocks = {name: arrays.get(name) for name in ("led", "touched", "stamp", "heard")}
        return State(
            rows=self._rows(numbers.pop("shelves", None)),
            taken=arrays["taken"],
            clocks=Clocks(numbers.pop("number"), **clocks),  # type: ignore[arg-type]
            lanes=[self._lane(n) for n in range(len(self._lanes))],
            owed=self._kept("owed"),
            public=tables.get("public"),
            spent=arrays.get("spent", np.zeros((2, 0))),
            average=self._models.get("average"),
            own=self._kept("own"),
            over=numbers.pop("over", None),
            **{key: numbers.pop(key) for key in ("seconds", "bytes", "joules")},
        )

    def _kept(self, kind: str) -> dict[int, Tensor]:
        """{number: model} of one kind."""
        named = {name.partition("."): model for name, model in self._models.items()}
        return {int(rest): model for (what, _, rest), model in named.items() if what == kind}

    def _rows(self, shelves: list[list[Any]] | None) -> ModelRows:
        """The models; the first versions wrote out all rows of all shelves."""
        models = self._tables["models"]
        if shelves is None:
            return ModelRows.of(models, len(self._tables["led"]))
        starts = tuple((int(count), bool(zero)) for count, zero in shelves)
        return ModelRows(models, self._models["first"], starts, self._kept("shelf"))

    def _lane(self, n: int) -> LaneState:
        numbers = dict(self._lanes[n])
        measured, number = numbers.pop("measured"), numbers.pop("place")
        was = tuple(numbers.pop("was", (0, 0.0)))
        return LaneState(
            number,
            **{
                **numbers,
                "lane": tuple(numbers["lane"]),
                "crew": tuple(map(tuple, numbers["crew"])),
            },
            was=was,
            base=self._bases.get(n),
            memory={name: tensor.numpy() for name, tensor in self._memories.get(n, {}).items()},
            measured=None if measured is None else Estimates(**measured),
        )


def _named(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows of shelves, each by its name; in 0.2 they were one matrix."""
    numbers, rows = tensors.pop("shelf_numbers", None), tensors.pop("shelf_rows", None)
    if numbers is not None and rows is not None:
        tensors |= {f"shelf.{int(n)}": row for n, row in zip(numbers, rows, strict=True)}
    return tensors
