"""What an actor needs to build its engine: the model, and only its own clients' data."""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdfeel.core.errors import SdfeelError
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Workload
from sdfeel.engine.evaluate import BLOCK, blocks
from sdfeel.engine.loop import LoopEngine
from sdfeel.models.flat import raw
from sdfeel.version import __version__


class LocalEngine(Protocol):
    """What an actor needs from the engine inside it."""

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]: ...


# It is called inside the actor, which has one core: functools.partial(NativeEngine, threads=1,
# batch=...) will do, with one batch for all actors.
Build = Callable[[Workload], LocalEngine]


@dataclass(frozen=True, eq=False)
class Recipe:
    """A local engine, before anybody has built it."""

    workload: Workload
    build: Build = LoopEngine

    def share(self, number: int, of: int) -> "Recipe":
        """What actor `number` of `of` keeps: every `of`-th client, and its blocks of measurement.

        Clients are dealt in turn, so that the clients of one server, who train together, are
        spread over the actors, and models that are handed out in order come from all of them.
        """
        whole = self.workload
        mine = [part if n % of == number else part[:0] for n, part in enumerate(whole.parts)]
        rows = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *mine]))
        # A batch is a shuffle of places, not of row numbers, so renumbering changes no batch.
        share = replace(
            whole,
            train=_rows(whole.train, torch.from_numpy(rows)),
            parts=[np.searchsorted(rows, part) for part in mine],
            test=_blocks(whole.test, number, of),
            metrics={},  # they need all outputs in one place
            measured=_blocks(whole.losses_on, number, of),
        )
        return Recipe(share, self.build)

    def built(self) -> LocalEngine:
        return self.build(self.workload)


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
    return Packed(raw(tensor), tensor.dtype, tuple(tensor.shape))


def unpack(packed: Packed) -> Tensor:
    """The tensor, in Ray's memory: it must not be written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no read-only tensors
        return torch.from_numpy(packed.data).view(packed.dtype).view(packed.shape)


@dataclass(frozen=True, eq=False)
class Parcel:
    """A recipe on its way to an actor."""

    rest: bytes  # a pickle, unpacked where an error can still be reported
    data: list[Packed]
    versions: dict[str, str]


def wrap(recipe: Recipe, cloudpickle: Any) -> Parcel:
    """`cloudpickle` also takes classes that exist only in a notebook."""
    own = recipe.workload
    data = [
        pack(tensor) for each in (own.train, own.test, own.losses_on) for tensor in (each.x, each.y)
    ]
    rest = (own.module, own.parts, own.training, own.seed, recipe.build)
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
    train, test = Examples(train_x, train_y), Examples(test_x, test_y)
    own = Workload(module, train, parts, test, training, seed, measured=Examples(x, y))
    return Recipe(own, build)


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
