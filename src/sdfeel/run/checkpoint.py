"""The newest state of a run on disk: replaced as a whole, and sealed by a hash."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sdfeel.core.errors import RunError
from sdfeel.core.run_files import CHECKPOINT, write_atomic
from sdfeel.core.scheme import Estimates
from sdfeel.core.staleness import Clocks
from sdfeel.models.flat import raw
from sdfeel.sim.state import LaneState, ModelRows, State


def save_checkpoint(directory: Path, state: State, extra: Mapping[str, Any]) -> None:
    """Replace the checkpoint with the present state."""
    clocks = state.clocks
    arrays = {
        "taken": state.taken,
        "led": clocks.led,
        "touched": clocks.touched,
        "stamp": clocks.stamp,
    }
    if clocks.heard is not None:
        arrays["heard"] = clocks.heard
    rows = state.rows
    tensors = {"models": rows.servers.contiguous(), "first": rows.first.contiguous()}
    if rows.written:
        numbers_of = sorted(rows.written)
        tensors["shelf_rows"] = torch.stack([rows.written[n] for n in numbers_of])
        tensors["shelf_numbers"] = torch.tensor(numbers_of)
    tensors |= {name: torch.from_numpy(np.array(values)) for name, values in arrays.items()}
    if state.spent.size:
        tensors["spent"] = torch.from_numpy(np.array(state.spent))
    tensors |= {f"owed.{client}": debt for client, debt in state.owed.items()}
    tensors |= {f"own.{client}": own for client, own in state.own.items()}
    if state.public is not None:
        tensors["public"] = state.public.contiguous()
    if state.average is not None:
        tensors["average"] = state.average.contiguous()
    for n, each in enumerate(state.lanes):
        if each.base is not None:
            tensors[f"base.{n}"] = each.base.contiguous()
        for name, values in each.memory.items():
            tensors[f"memory.{n}.{name}"] = torch.from_numpy(np.array(values))
    numbers = {
        "number": clocks.number,
        "seconds": state.seconds,
        "bytes": state.bytes,
        "joules": state.joules,
        "over": state.over,
        "shelves": rows.shelves,
        "lanes": [
            {
                "place": each.number,
                "lane": each.lane,
                "k": each.k,
                "ends": each.ends,
                **({} if each.held is None else {"held": each.held}),
                "sources": each.sources,
                "steps": each.steps,
                "began": each.began,
                "since": each.since,
                "was": each.was,
                "crew": each.crew,
                "measured": None if each.measured is None else asdict(each.measured),
            }
            for each in state.lanes
        ],
        **extra,
    }
    text = json.dumps(numbers)
    sealed = {"state": text, "sha256": _seal(tensors, text)}
    write_atomic(directory / CHECKPOINT, save(tensors, sealed))


def _seal(tensors: Mapping[str, Tensor], text: str) -> str:
    """A hash of everything in a checkpoint: one wrong bit would mean a wrong model in the end."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(raw(tensors[name]).data)
    return digest.hexdigest()


def load_checkpoint(directory: Path) -> tuple[State, dict[str, Any]] | None:
    """The saved state and what was saved with it; None if there is none yet."""
    path = directory / CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            sealed = file.metadata()
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _seal(tensors, sealed["state"]) != sealed["sha256"]:
            raise ValueError("its content does not match its checksum")
        numbers = json.loads(sealed["state"])
        memories = _memories(tensors)
        lanes = [_lane(n, each, tensors, memories) for n, each in enumerate(numbers.pop("lanes"))]
        arrays = {name: tensors[name].numpy() for name in ("led", "touched", "stamp")}
        heard = tensors["heard"].numpy() if "heard" in tensors else None
        state = State(
            rows=_rows(tensors, numbers.pop("shelves", None)),
            taken=tensors["taken"].numpy(),
            clocks=Clocks(numbers.pop("number"), heard=heard, **arrays),
            lanes=lanes,
            owed={int(name[5:]): tensors[name] for name in tensors if name.startswith("owed.")},
            public=tensors.get("public"),
            spent=tensors["spent"].numpy() if "spent" in tensors else np.zeros((2, 0)),
            average=tensors.get("average"),
            own={int(name[4:]): tensors[name] for name in tensors if name.startswith("own.")},
            over=numbers.pop("over", None),
            **{key: numbers.pop(key) for key in ("seconds", "bytes", "joules")},
        )
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunError(
            f"the checkpoint {path} is damaged ({error}): start the experiment again"
        ) from None
    return state, numbers


def _rows(tensors: Mapping[str, Tensor], shelves: list[list[Any]] | None) -> ModelRows:
    """The models as they were saved; earlier versions wrote out all rows of all shelves."""
    models = tensors["models"]
    if shelves is None:
        return ModelRows.of(models, len(tensors["led"]))
    numbers = tensors.get("shelf_numbers", torch.zeros(0)).tolist()
    written = {int(n): tensors["shelf_rows"][at] for at, n in enumerate(numbers)}
    starts = tuple((int(count), bool(zero)) for count, zero in shelves)
    return ModelRows(models, tensors["first"], starts, written)


def _memories(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, str]]:
    """What each lane's scheme remembers, and the tensors' names: {lane: {name: tensor}}."""
    found: dict[int, dict[str, str]] = {}
    for key in tensors:
        if key.startswith("memory."):
            _, lane, name = key.split(".", 2)
            found.setdefault(int(lane), {})[name] = key
    return found


def _lane(
    n: int,
    numbers: dict[str, Any],
    tensors: Mapping[str, Tensor],
    memories: Mapping[int, Mapping[str, str]],
) -> LaneState:
    """Lane `n` as it was saved."""
    own = memories.get(n, {})
    measured, number = numbers.pop("measured"), numbers.pop("place")
    was = tuple(numbers.pop("was", (0, 0.0)))
    return LaneState(
        number,
        **{**numbers, "lane": tuple(numbers["lane"]), "crew": tuple(map(tuple, numbers["crew"]))},
        was=was,
        base=tensors.get(f"base.{n}"),
        memory={name: tensors[key].numpy() for name, key in own.items()},
        measured=None if measured is None else Estimates(**measured),
    )
