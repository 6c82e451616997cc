"""Examples as tensors, and how they are split over clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError, of_kind, said, told, whole_number
from sdfeel.core.seeds import number, rng
from sdfeel.data.adapters import (
    AS_IT_IS,
    DatasetRows,
    HowToRead,
    LazyData,
    Task,
    is_dataset,
    next_of,
    seeded,
    tensor,
)
from sdfeel.data.partition import USERS, check_options, of_values, split

Address = tuple[int, int, int]  # (seed, client, step)
Floating = tuple[torch.dtype | None, torch.dtype | None]


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets, row by row."""

    x: Tensor  # (N, ...) floats, already normalised, or whole numbers, such as tokens
    y: Tensor  # (N,) class numbers, or any targets

    reads_anew: ClassVar[bool] = False  # whenever they are used, and not kept in memory

    def __post_init__(self) -> None:
        for name, given in (("x", self.x), ("y", self.y)):
            if not isinstance(given, Tensor) or not given.ndim:
                of_kind(f"{name} of Examples", given, (), "a tensor with a row for each example")
        if len(self.x) != len(self.y):
            raise InputError(
                f"{len(self.x)} inputs but {len(self.y)} targets: give one target for each input"
            )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def first(self) -> Tensor:
        """One input, which shows what all look like."""
        return self.x[0]

    def to(self, dtype: torch.dtype) -> "Examples":
        """The same examples with their floats in the model's type; class numbers stay."""
        x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        y = self.y.to(dtype) if self.y.is_floating_point() else self.y
        return Examples(x, y)

    def as_floats(self) -> "Examples":
        """The same with inputs that are floats, for a model that takes no whole numbers."""
        return Examples(self.x.float(), self.y)

    def some(self, rows: Ints) -> "Examples":
        """These rows alone."""
        picked = torch.from_numpy(np.array(rows, dtype=np.int64))
        return Examples(self.x.index_select(0, picked), self.y.index_select(0, picked))

    def batch(self, rows: Tensor, address: Address) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the rows that the step at this address sees."""
        del address  # these do not depend on the step
        return self.x.index_select(0, rows), self.y.index_select(0, rows)

    def block(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets from one row to another, for measuring."""
        return self.x[begin:end], self.y[begin:end]


class LazyExamples(Examples):
    """Examples that are read whenever they are used, with addressed randomness."""

    reads_anew: ClassVar[bool] = True

    def __init__(
        self, source: DatasetRows, rows: Ints, y: Tensor, floats: Floating = (None, None)
    ) -> None:
        """`rows` of the source; `floats`: types that floats and whole numbers become, if any."""
        given = {"_source": source, "_rows": rows, "y": y, "_floats": floats}
        for name, value in given.items():
            object.__setattr__(self, name, value)

    _source: DatasetRows
    _rows: Ints
    _floats: Floating

    @classmethod
    def of(cls, source: DatasetRows) -> "LazyExamples":
        """All examples of a source; each is read once now, unless its target is known."""
        rows = np.arange(len(source))
        blank = cls(source, rows, torch.zeros(len(source)))
        with seeded() as seed:
            twice = []
            for _ in range(2):
                seed(0)
                twice.append(source.pair(0))
            if not all(torch.equal(a, b) for a, b in zip(*twice, strict=True)):
                raise InputError(
                    "the data set gives another example each time, although the generators of "
                    "torch, NumPy and Python were seeded alike: let it draw from one of these"
                )
            known = source.targets()
        if known is None:
            targets = (blank.block(n, n + 1)[1] for n in range(len(rows)))
            known = torch.cat(list(targets))
        return cls(source, rows, _targets(known, source.task))

    @property
    def x(self) -> Tensor:
        """All inputs, as they are measured, in memory."""
        return self.block(0, len(self))[0]

    @property
    def first(self) -> Tensor:
        return self.block(0, 1)[0][0]

    def to(self, dtype: torch.dtype) -> "LazyExamples":
        y = self.y.to(dtype) if self.y.is_floating_point() else self.y
        return LazyExamples(self._source, self._rows, y, (dtype, self._floats[1]))

    def as_floats(self) -> "LazyExamples":
        return LazyExamples(self._source, self._rows, self.y, (self._floats[0], torch.float32))

    def some(self, rows: Ints) -> "LazyExamples":
        picked = torch.from_numpy(np.array(rows, dtype=np.int64))
        return LazyExamples(
            self._source, self._rows[rows], self.y.index_select(0, picked), self._floats
        )

    def read(self) -> Examples:
        """The examples as they are measured, once and for all."""
        return Examples(*self.block(0, len(self)))

    def batch(self, rows: Tensor, address: Address) -> tuple[Tensor, Tensor]:
        seed, client, step = address
        places = range(len(rows))
        seeds = [number(seed, "reading", client, step, place) for place in places]
        return self._read(self._rows[rows.numpy()].tolist(), seeds)

    def block(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        rows = self._rows[begin:end].tolist()
        return self._read(rows, [number(0, "reading to measure", row) for row in rows])

    def _read(self, rows: list[int], seeds: list[int]) -> tuple[Tensor, Tensor]:
        pairs = []
        with seeded() as seed:
            for row, each in zip(rows, seeds, strict=True):
                seed(each)
                pairs.append(self._source.pair(row))
        x = _inputs(DatasetRows.joined([pair[0] for pair in pairs], rows))
        y = _targets(DatasetRows.joined([pair[1] for pair in pairs], rows), self._source.task)
        floats, whole = self._floats
        kind = floats if x.is_floating_point() else whole
        x = x if kind is None else x.to(kind)
        return x, y.to(floats) if floats is not None and y.is_floating_point() else y


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set, loaded."""

    name: str
    train: Examples
    test: Examples
    classes: int  # 0 where targets are not class numbers
    users: Sequence[Any] | None = None  # whose each training example is, where that is known
    test_users: Sequence[Any] | None = None  # the same of the test examples


# Types of inputs that stay whole numbers; bytes are pictures, and become floats.
WHOLE = (torch.int16, torch.int32, torch.int64)
Partition = Callable[[Ints, int, np.random.Generator], Sequence[Any]]
Source = Any  # (inputs, targets), a torch Dataset, or Examples


@dataclass(frozen=True, eq=False)
class Federated:
    """All training examples, which rows each client holds, and the test examples."""

    train: Examples
    parts: tuple[Ints, ...]
    test: Examples
    tests: tuple[Ints, ...] | None = None  # each client's own rows of `test`, perhaps none
    cluster_tests: tuple[Ints, ...] | None = None  # each server's own rows of `test`
    honest: Examples | None = None  # measured on instead of `train`, if liars falsified some of it

    def check_numbers(self) -> None:
        """Refuse examples that are not finite: they would look as if training had diverged."""
        for name, each in {"training": self.train, "test": self.test}.items():
            if each.reads_anew:
                continue
            for part, given in {"input": each.x, "target": each.y}.items():
                if not given.is_floating_point() or bool(given.sum().isfinite()):
                    continue  # a sum that overflows is looked at more closely
                broken = (~given.isfinite()).reshape(len(given), -1).any(1).nonzero()
                if len(broken):
                    raise InputError(
                        f"the {part} of {name} example {int(broken[0])} has nan or infinity in "
                        f"it: replace such values (torch.nan_to_num), or leave the example out"
                    )

    @property
    def samples(self) -> Floats:
        """(C,) examples of each client."""
        return floats([len(part) for part in self.parts])

    @property
    def classes(self) -> int:
        """Number of classes; 0 where targets are not class numbers (0, 1, 2 ...)."""
        both = (self.train.y, self.test.y)
        if any(y.ndim != 1 or y.is_floating_point() or (y < 0).any() for y in both):
            return 0
        return 1 + max(int(y.max()) for y in both)

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for an example: scores of classes, or values."""
        y = self.train.y
        return self.classes or (y[0].numel() if y.is_floating_point() else 0)

    @property
    def task(self) -> Task:
        """The task, judged by the targets."""
        x, y = self.train.first, self.train.y
        if y.is_floating_point():
            return "regression"
        if y.ndim == 1:
            return "classification"
        follows = y[0].shape == x.shape and bool((y[0][..., :-1] == x[..., 1:]).all())
        return "language" if follows and not x.is_floating_point() else "labelling"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.first.shape)


def federate(
    train: Source,
    test: Source,
    clients: int | None = None,
    partition: str | Partition = "iid",
    seed: int = 0,
    *,
    user: str | None = None,
    **options: Any,
) -> Federated:
    """Split one data set over clients; `options` are those of the partition.

    `partition` is a rule's name, a file, or a function of (labels, clients, rng) that returns the
    rows of each client; or `users`: each value of the column `user` is a client.

    >>> data = federate((torch.zeros(8, 2), torch.arange(8) % 2), (torch.zeros(2, 2), [0, 1]), 4)
    >>> [len(part) for part in data.parts]
    [2, 2, 2, 2]
    """
    if user is not None:
        of_kind("user", user, str, "the name of a column")
    if not callable(partition):
        of_kind("partition", partition, (str, Path), "a rule's name, a file, or a function")
    whole_number("seed", seed, 0)
    if callable(partition) and options:
        raise InputError(
            f"a partition of your own takes no options, but {next(iter(options))} is given: let "
            f"the function know it, for example by functools.partial"
        )
    if not callable(partition) and options:
        check_options(str(partition), options)
    reading = HowToRead(group=user)
    whole, tested = examples(train, reading), examples(test, reading)
    users = users_of(train, reading), users_of(test, reading)
    if partition == USERS:
        return by_users(Dataset("", whole, tested, 0, *users))
    if clients is None:
        raise InputError("how many clients share the data? give clients=...")
    whole_number("clients", clients, 1)
    return divided(Dataset("", whole, tested, 0), clients, partition, seed, **options)


def divided(
    data: Dataset, clients: int, partition: str | Path | Partition, seed: int, **options: Any
) -> Federated:
    """The examples of a data set, as a rule, a file or a function shares them out."""
    whole = data.train
    labels = whole.y.numpy() if whole.y.ndim == 1 else np.zeros(len(whole), dtype=np.int64)
    draws = rng(seed, "partition")
    if callable(partition):
        try:
            given = [np.asarray(part) for part in partition(labels, clients, draws)]
        except Exception as error:  # somebody else's function may raise anything
            raise InputError(
                f"the partition must give the rows of each client: {told(error)}"
            ) from None
        parts = _checked(given, clients, len(whole))
    else:
        parts = split(labels, clients, draws, partition=str(partition), **options)
    return Federated(whole, tuple(parts), data.test)


def by_users(data: Dataset) -> Federated:
    """Every user is a client, and is tested on that user's own test examples."""
    if data.users is None:
        raise InputError(
            "partition 'users' makes a client of every value of a column, and no column is named: "
            "set data.user (in Python, user=...) to the one that says whose example it is"
        )
    names, parts = of_values(data.users)
    if data.test_users is None:
        return Federated(data.train, parts, data.test)
    _, tests = of_values(data.test_users, names)
    return Federated(data.train, parts, data.test, tests)


def users_of(source: Source, reading: HowToRead) -> list[Any] | None:
    """Whose each example is, by the column that says so; None if none was named."""
    if reading.group is None:
        return None
    bare = source.dataset if isinstance(source, LazyData) else source
    if isinstance(bare, Examples) or not is_dataset(bare) or not isinstance(bare[0], Mapping):
        raise InputError(
            f"the data have no column '{reading.group}': their examples have no named columns"
        )
    return DatasetRows(bare, reading).column(reading.group)


def _checked(parts: list[Ints], clients: int, examples: int) -> list[Ints]:
    """What a user's function returned, checked to be a split."""
    if len(parts) != clients:
        raise InputError(
            f"the partition gave rows for {len(parts)} clients, but there are {clients}: give a "
            f"list of rows for each"
        )
    for n, part in enumerate(parts):
        if part.ndim != 1 or part.dtype.kind not in "iu" or not part.size:
            raise InputError(
                f"the partition gave client {n} {said(part)}: give it row numbers, at least one"
            )
        for stray in part[(part < 0) | (part >= examples)]:
            raise InputError(
                f"the partition gave client {n} row {stray}, but rows are numbered 0 to "
                f"{examples - 1}"
            )
    return [np.sort(part) for part in parts]


def gather(
    clients: Sequence[Source],
    test: Source | None = None,
    *,
    tests: Sequence[Source] | None = None,
    cluster_tests: Sequence[Source] | None = None,
) -> Federated:
    """Clients that bring their own data: one source each.

    In place of `test`, each client may bring test examples of its own (`tests`), or each edge
    server (`cluster_tests`): metrics per client and per cluster are then measured on these, and the
    shared model on all of them together.
    """
    for name, each in {"clients": clients, "tests": tests, "cluster_tests": cluster_tests}.items():
        if each is not None or name == "clients":
            of_kind(name, each, (list, tuple), "a list with one data set for each")
    whole, parts = _joined(clients, "client")
    if sum(given is not None for given in (test, tests, cluster_tests)) != 1:
        raise InputError(
            "what is the model tested on? give one of test=..., tests=... (of each client) and "
            "cluster_tests=... (of each edge server)"
        )
    if tests is not None and len(tests) != len(parts):
        raise InputError(
            f"{len(parts)} clients bring {len(tests)} sets of test examples: give one for each"
        )
    if tests is not None:
        return Federated(whole, parts, *_joined(tests, "client"))
    if cluster_tests is not None:
        tested, rows = _joined(cluster_tests, "server")
        return Federated(whole, parts, tested, cluster_tests=rows)
    return Federated(whole, parts, examples(test))


def _joined(sources: Sequence[Source], who: str) -> tuple[Examples, tuple[Ints, ...]]:
    """All examples one after another, and which rows are whose."""
    own = [examples(each) for each in sources]
    empty = [n for n, each in enumerate(own) if len(each) == 0]
    if not own or empty:
        raise InputError(
            f"{who} {empty[0] if empty else 0} has no examples: every {who} needs at least one"
        )
    ends = np.cumsum([len(each) for each in own])
    if any(each.reads_anew for each in own):
        raise InputError(
            f"{who}s that bring their own data cannot bring lazy ones: give one lazy data set, and "
            f"say in partition= who holds what"
        )
    shapes = {(tuple(each.first.shape), tuple(each.y.shape[1:])) for each in own}
    if len(shapes) > 1:
        raise InputError(
            f"the {who}s' examples have different shapes, {', '.join(map(str, sorted(shapes)))}: "
            f"give all of them the same"
        )
    whole = Examples(torch.cat([each.x for each in own]), torch.cat([each.y for each in own]))
    parts = [np.arange(end - len(each), end) for each, end in zip(own, ends, strict=True)]
    return whole, tuple(parts)


def examples(source: Source, reading: HowToRead = AS_IT_IS, lazily: bool = False) -> Examples:
    """Arrays, tensors or a data set as Examples; `lazily`: read anew whenever they are used."""
    if isinstance(source, LazyExamples):
        return source
    if isinstance(source, Examples):
        x, y = source.x, source.y
    elif reading.task == "language" and _is_tokens(source):
        x, y = next_of(tensor(source, "the tokens"))
    elif isinstance(source, tuple | list) and len(source) == 2 and not _is_pair(source):
        x, y = tensor(source[0], "the inputs"), tensor(source[1], "the targets")
    elif isinstance(source, LazyData) or (is_dataset(source) and not isinstance(source, Mapping)):
        rows = DatasetRows(source.dataset if isinstance(source, LazyData) else source, reading)
        if lazily or isinstance(source, LazyData) or getattr(source, "lazy", False) is True:
            return LazyExamples.of(rows)
        with seeded() as seed:  # what is read once and for all is the same for all runs
            seed(0)
            x, y = rows.stacked(range(len(rows)))
    else:
        raise InputError(
            f"examples come as (inputs, targets) or as a data set with __len__ and __getitem__, "
            f"got {type(source).__name__}"
        )
    return Examples(_inputs(x), _targets(y, reading.task))


def _inputs(x: Tensor) -> Tensor:
    if x.dtype in WHOLE:
        return x.long()
    return x if x.is_floating_point() else x.float()


def _targets(y: Tensor, task: Task = "auto") -> Tensor:
    if task == "regression":
        return y if y.is_floating_point() else y.float()
    if not y.is_floating_point() or (task != "auto" and bool((y == y.round()).all())):
        return y.long()
    if task != "auto":
        broken = float(y[y != y.round()][0])
        raise InputError(f"data.task = {task} needs targets that are class numbers, got {broken:g}")
    return y


def _is_tokens(source: Any) -> bool:
    """Is it one array of whole numbers, a row for each sequence?"""
    return getattr(source, "ndim", 0) == 2 and not isinstance(source, tuple | list)


def _is_pair(source: Sequence[Any]) -> bool:
    """Is it a list of pairs or of rows? Two of them look much like (inputs, targets)."""
    return isinstance(source[0], tuple | Mapping)
