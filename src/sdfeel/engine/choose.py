"""Which engine computes a run."""

import os
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from torch import Tensor, nn

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError
from sdfeel.data.examples import Examples
from sdfeel.engine.base import Engine
from sdfeel.engine.evaluate import Metric
from sdfeel.engine.loop import LoopEngine, Training
from sdfeel.engine.native import NativeEngine
from sdfeel.engine.parallel import ParallelEngine
from sdfeel.models.flat import Layout

Kind = Literal["auto", "loop", "parallel", "native", "ray"]


class ModuleEngine(Engine, Protocol):
    """An engine that was built around an nn.Module."""

    @property
    def parameters(self) -> int: ...

    @property
    def layout(self) -> Layout: ...

    def state_dict(self, model: Tensor) -> dict[str, Tensor]: ...

    def close(self) -> None: ...


def choose(
    kind: Kind,
    module: nn.Module,
    train: Examples,
    parts: Sequence[Ints],
    test: Examples,
    training: Training,
    seed: int,
    metrics: dict[str, Metric] | None = None,
    measured: Examples | None = None,
    workers: int | None = None,
) -> tuple[ModuleEngine, str]:
    """An engine, and why it is this one. `auto` takes the fastest that fits."""
    count = workers or cores()
    native: NativeEngine | str = ""
    if kind in ("auto", "native"):
        native = NativeEngine.create(
            module, train, parts, test, training, seed, metrics, measured, threads=count
        )
        if isinstance(native, NativeEngine) and kind == "auto":
            native = native.slower() or native
        if isinstance(native, NativeEngine):
            return native, f"compiled for this model, {count} threads"
        if kind == "native":
            raise InputError(
                f"the native engine cannot run this: {native}; choose training.engine=auto"
            )
    loop = LoopEngine(module, train, parts, test, training, seed, metrics, measured)
    if kind == "loop":
        return loop, "as asked"
    if kind == "ray":
        return _over_ray(loop, module, train, parts, test, training, seed, measured, workers)
    if kind == "parallel" or (count > 1 and hasattr(os, "fork")):
        return ParallelEngine(loop, count), _because(native, f"{count} workers")
    return loop, _because(native, "one core")


def _because(native: object, what: str) -> str:
    return f"{what}; not native: {native}" if native else what


def _over_ray(
    loop: LoopEngine,
    module: nn.Module,
    train: Examples,
    parts: Sequence[Ints],
    test: Examples,
    training: Training,
    seed: int,
    measured: Examples | None,
    actors: int | None,
) -> tuple[ModuleEngine, str]:
    """Loop engines in actors: the bits of one machine's loop and parallel engines."""
    from sdfeel.engine.ray import RayEngine, Recipe

    recipe = Recipe(module, train, parts, test, training, seed, measured)
    elsewhere = "RAY_ADDRESS" in os.environ  # then the cluster says how many
    return RayEngine(loop, recipe, actors or (None if elsewhere else cores())), "as asked"


def cores() -> int:
    """Cores that this process may use."""
    available: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available is not None else os.cpu_count() or 1
