"""An actor: what it needs to build its engine, and what it answers."""

import importlib
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdfeel.core.arrays import Ints, Singles
from sdfeel.core.errors import SdfeelError, told
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Workload
from sdfeel.engine.evaluate import BLOCK, Tally, blocks
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.tasks import folding
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

    def share(self, number: int, of: int, owners: Ints | None = None) -> "Recipe":
        """What actor `number` of `of` keeps: its clients, and its blocks of measurement.

        Unless `owners` says which actor has which client, clients are dealt out in turn: so all
        actors are at work while models are handed out in order.
        """
        whole = self.workload
        has = np.arange(len(whole.parts)) % of if owners is None else owners
        mine = [part if has[n] == number else part[:0] for n, part in enumerate(whole.parts)]
        rows = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *mine]))
        # A batch is a shuffle of places, not of row numbers, so renumbering changes no batch.
        share = replace(
            whole,
            train=whole.train.some(rows),
            parts=[np.searchsorted(rows, part) for part in mine],
            test=_blocks(whole.test, number, of),
            metrics={},  # they need all outputs in one place
            measured=_blocks(whole.losses_on, number, of),
        )
        return Recipe(share, self.build)

    def built(self) -> LocalEngine:
        return self.build(self.workload)


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
            f"the nodes differ: {named_versions(parcel.versions)} where the run was started, "
            f"{named_versions(versions())} on a node; install the same everywhere"
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


def named_versions(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def the_pickler() -> Any:
    return importlib.import_module("ray.cloudpickle")


# client, steps, first, rate, which of the rows it starts from and is shifted by, and the pull
Order = tuple[int, int, int, float, int, int | None, float]
Failure = tuple[str, str]  # an error's kind, and its text
Trained = tuple[Packed, Failure | None]  # the models before the failure
Summed = tuple[Singles, Failure | None]
Measured = tuple[dict[str, list[Tally]], Failure | None]


class Actor:
    """Results depend on the call alone, so nothing is lost with an actor."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel
        self._built: LocalEngine | None = None
        self._room = torch.empty(0)

    def train(self, orders: list[Order], *packed: Packed) -> Trained:
        """Models in the order of `orders`; if one fails, those before it."""
        rows = list(map(unpack, packed))
        tasks = [
            Task(client, rows[start], steps, first, rate, None if n is None else rows[n], pull)
            for client, steps, first, rate, start, n, pull in orders
        ]
        room = self._space(len(tasks), rows[0])
        done, failure = 0, None
        try:
            for done, model in enumerate(self._engine().train(tasks), 1):
                room[done - 1] = model
        except SdfeelError as error:
            failure = (type(error).__name__, str(error))
        except Exception as error:
            failure = ("Exception", f"an actor failed: {told(error)}")
        return pack(room[:done]), failure

    def fold(self, rest: bytes, starts: Singles) -> Summed:
        """The sums of a crowd that starts from `starts`, rounded to their type as callers would.

        `rest` is a pickle of the crowd and the number of sums: Ray takes longer over many arrays.
        """
        crowd, sums = pickle.loads(rest)
        here = folding(self._engine())
        if here is None:
            return starts[:0], ("Exception", "this engine makes no sums")
        totals = np.zeros((sums, starts.shape[1]))
        try:
            here.gather(replace(crowd, starts=starts), totals).fold()
        except Exception as error:  # the caller then asks for single models, which raises it again
            return starts[:0], ("Exception", told(error))
        return totals.astype(starts.dtype), None

    def _space(self, rows: int, like: Tensor) -> Tensor:
        """Memory for a block's models, used again: Ray copies an answer before the next call."""
        if len(self._room) < rows or self._room.shape[1:] != like.shape:
            self._room = like.new_empty(rows, len(like))
        return self._room[:rows]

    def measure(self, model: Packed) -> Measured:
        """The tallies of this actor's blocks of examples."""
        try:
            engine = self._engine()
            assert isinstance(engine, LoopEngine), "others measure where the run was started"
            row = unpack(model)
            return {
                which: engine.tallies(row, which, 0, engine.blocks(which))
                for which in ("measured", "test")
            }, None
        except SdfeelError as error:
            return {}, (type(error).__name__, str(error))
        except Exception as error:
            return {}, ("Exception", f"measuring failed: {told(error)}")

    def _engine(self) -> LocalEngine:
        # Not in __init__, whose errors Ray would report in its own words.
        if self._built is None:
            torch.set_num_threads(1)
            self._built = unwrap(self._parcel, the_pickler()).built()
        return self._built
