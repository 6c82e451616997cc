"""Examples as tensors, and how they are split over clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError
from sdfeel.core.seeds import rng
from sdfeel.data.partition import split


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets, row by row."""

    x: Tensor  # (N, ...) floats, already normalised, or whole numbers, such as tokens
    y: Tensor  # (N,) class numbers, or any targets

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InputError(f"{len(self.x)} inputs but {len(self.y)} targets: give one of each")

    def __len__(self) -> int:
        return len(self.x)

    def to(self, dtype: torch.dtype) -> "Examples":
        """The same examples with their floats in the model's type; class numbers stay."""
        x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        y = self.y.to(dtype) if self.y.is_floating_point() else self.y
        return Examples(x, y)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set, loaded."""

    name: str
    train: Examples
    test: Examples
    classes: int  # 0 where targets are not class numbers


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

    @property
    def samples(self) -> Floats:
        """(C,) examples of each client."""
        return floats([len(part) for part in self.parts])

    @property
    def classes(self) -> int:
        """Number of classes; 0 where targets are not class numbers."""
        both = (self.train.y, self.test.y)
        if any(y.ndim != 1 or y.is_floating_point() for y in both):
            return 0
        return 1 + max(int(y.max()) for y in both)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])


def federate(
    train: Source,
    test: Source,
    clients: int,
    partition: str | Partition = "iid",
    seed: int = 0,
    **options: Any,
) -> Federated:
    """Split one data set over clients; `options` are those of the partition.

    `partition` is a rule's name, a file, or a function of (labels, clients, rng) that returns the
    rows of each client.

    >>> data = federate((torch.zeros(8, 2), torch.arange(8) % 2), (torch.zeros(2, 2), [0, 1]), 4)
    >>> [len(part) for part in data.parts]
    [2, 2, 2, 2]
    """
    whole = examples(train)
    labels = whole.y.numpy() if whole.y.ndim == 1 else np.zeros(len(whole), dtype=np.int64)
    draws = rng(seed, "partition")
    if callable(partition):
        parts = _checked([np.asarray(part) for part in partition(labels, clients, draws)], clients)
    else:
        parts = split(labels, clients, draws, partition=partition, **options)
    return Federated(whole, tuple(parts), examples(test))


def _checked(parts: list[Ints], clients: int) -> list[Ints]:
    """What a user's function returned, checked to be a split."""
    if len(parts) != clients:
        raise InputError(
            f"the partition gave rows for {len(parts)} clients, but there are {clients}: give a "
            f"list of rows for each"
        )
    for n, part in enumerate(parts):
        if part.ndim != 1 or part.dtype.kind not in "iu" or not part.size:
            raise InputError(
                f"the partition gave client {n} {part!r}: give it row numbers, at least one"
            )
    return [np.sort(part) for part in parts]


def gather(clients: Sequence[Source], test: Source) -> Federated:
    """Clients that bring their own data: one source each."""
    own = [examples(client) for client in clients]
    empty = [n for n, each in enumerate(own) if len(each) == 0]
    if not own or empty:
        raise InputError(
            f"client {empty[0] if empty else 0} has no examples: every client needs one"
        )
    ends = np.cumsum([len(each) for each in own])
    whole = Examples(torch.cat([each.x for each in own]), torch.cat([each.y for each in own]))
    parts = [np.arange(end - len(each), end) for each, end in zip(own, ends, strict=True)]
    return Federated(whole, tuple(parts), examples(test))


def examples(source: Source) -> Examples:
    """Arrays, tensors or a torch Dataset as Examples."""
    if isinstance(source, Examples):
        return source
    if isinstance(source, tuple | list) and len(source) == 2 and not _is_pair(source):
        x, y = _tensor(source[0]), _tensor(source[1])
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        pairs = [source[n] for n in range(len(source))]
        x = torch.stack([_tensor(pair[0]) for pair in pairs])
        y = torch.stack([_tensor(pair[1]) for pair in pairs])
    else:
        raise InputError(
            f"examples come as (inputs, targets) or as a torch Dataset, got {type(source).__name__}"
        )
    if x.dtype in WHOLE:
        x = x.long()
    elif not x.is_floating_point():
        x = x.float()
    return Examples(x, y if y.is_floating_point() else y.long())


def _is_pair(source: Sequence[Any]) -> bool:
    """Is it a list of (input, target) pairs? Two of them look much like (inputs, targets)."""
    return isinstance(source[0], tuple)


def _tensor(values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
