"""What an actor needs to build its engine: the model, and the data of its own clients only."""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import SdfeelError
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task
from sdfeel.engine.evaluate import BLOCK, blocks
from sdfeel.engine.loop import LoopEngine, Training
from sdfeel.version import __version__


class Local(Protocol):
    """All that an actor asks of the engine inside it."""

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]: ...


# Builds an engine from (module, train, parts, test, training, seed, None, measured). It is called
# inside the actor, which has one core: functools.partial(NativeEngine, threads=1, batch=...)
# will do, with one batch for all actors.
Build = Callable[..., Local]


@dataclass(frozen=True, eq=False)
class Recipe:
    """The arguments of a local engine, before anybody has built it."""

    module: nn.Module
    train: Examples
    parts: Sequence[Ints]  # each client's rows of `train`
    test: Examples
    training: Training
    seed: int
    measured: Examples | None = None
    build: Build = LoopEngine

    def share(self, number: int, of: int) -> "Recipe":
        """What actor `number` of `of` keeps: every `of`-th client, and its blocks of measurement.

        Clients are dealt in turn, so that the clients of one server, who train together, are
        spread over the actors, and models that are handed out in order come from all of them.
        """
        mine = [part if n % of == number else part[:0] for n, part in enumerate(self.parts)]
        rows = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *mine]))
        measured = self.train if self.measured is None else self.measured
        # A batch is a shuffle of places, not of row numbers, so renumbering changes no batch.
        return Recipe(
            self.module,
            _rows(self.train, torch.from_numpy(rows)),
            [np.searchsorted(rows, part) for part in mine],
            _blocks(self.test, number, of),
            self.training,
            self.seed,
            _blocks(measured, number, of),
            self.build,
        )

    def built(self) -> Local:
        return self.build(
            self.module,
            self.train,
            self.parts,
            self.test,
            self.training,
            self.seed,
            None,
            self.measured,
        )


def _rows(data: Examples, rows: Tensor) -> Examples:
    return Examples(data.x.index_select(0, rows), data.y.index_select(0, rows))


def _blocks(data: Examples, number: int, of: int) -> Examples:
    """A run of whole blocks: the runs of all actors, one after another, are all blocks."""
    count = blocks(data)
    begin, end = BLOCK * (count * number // of), BLOCK * (count * (number + 1) // of)
    return Examples(data.x[begin:end], data.y[begin:end])


@dataclass(frozen=True)
class Packed:
    """A tensor as plain bytes, which Ray shares between processes without copying them."""

    data: NDArray[np.uint8]
    dtype: torch.dtype
    shape: tuple[int, ...]


def pack(tensor: Tensor) -> Packed:
    flat = tensor.detach().contiguous().reshape(-1)
    return Packed(flat.view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))


def unpack(packed: Packed) -> Tensor:
    """The tensor, in Ray's memory: it must not be written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch knows no tensors that are read only
        return torch.from_numpy(packed.data).view(packed.dtype).view(packed.shape)


@dataclass(frozen=True, eq=False)
class Parcel:
    """A recipe on its way to an actor."""

    rest: bytes  # a pickle: unpacked where an error can still be told
    data: list[Packed]
    versions: dict[str, str]


def wrap(recipe: Recipe, cloudpickle: Any) -> Parcel:
    """`cloudpickle` also takes classes that exist only in a notebook."""
    examples = [recipe.train, recipe.test, recipe.measured]
    data = [pack(tensor) for each in examples if each is not None for tensor in (each.x, each.y)]
    rest = (recipe.module, recipe.parts, recipe.training, recipe.seed, recipe.build)
    try:
        return Parcel(cloudpickle.dumps(rest), data, versions())
    except Exception as error:
        raise SdfeelError(
            f"the model cannot be sent to Ray's actors: {type(error).__name__}: {error}"
        ) from error


def unwrap(parcel: Parcel, cloudpickle: Any) -> Recipe:
    if parcel.versions != versions():
        raise SdfeelError(
            f"the nodes differ: {told(parcel.versions)} where the run was started, "
            f"{told(versions())} on a node; install the same everywhere"
        )
    try:
        module, parts, training, seed, build = cloudpickle.loads(parcel.rest)
    except Exception as error:
        raise SdfeelError(
            f"the model cannot be loaded on a node: {type(error).__name__}: {error}; "
            f"install its code on every node"
        ) from error
    train_x, train_y, test_x, test_y, x, y = map(unpack, parcel.data)
    return Recipe(
        module,
        Examples(train_x, train_y),
        parts,
        Examples(test_x, test_y),
        training,
        seed,
        Examples(x, y),
        build,
    )


def versions() -> dict[str, str]:
    """What must be the same on all nodes, or bits may differ."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "sdfeel": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def told(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def the_pickler() -> Any:
    return importlib.import_module("ray.cloudpickle")
