"""Which engine computes a run."""

import os
from functools import partial
from typing import TYPE_CHECKING, Literal

from sdfeel.core.errors import InputError
from sdfeel.engine.base import ModuleEngine, Workload, cores
from sdfeel.engine.batched import BatchedEngine
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.engine.parallel import ParallelEngine

if TYPE_CHECKING:
    from sdfeel.engine.ray.actor import Build

Kind = Literal["auto", "loop", "parallel", "native", "ray", "batched"]


def choose(kind: Kind, workload: Workload, workers: int | None = None) -> tuple[ModuleEngine, str]:
    """An engine, and why it was chosen. `auto` takes the fastest that fits."""
    workload = workload.suited()
    count = workers or cores()
    native: NativeEngine | str = ""
    if kind in ("auto", "native", "ray"):
        native = NativeEngine.create(workload, threads=count)
        if isinstance(native, NativeEngine) and kind != "native":
            native = native.slower() or native
        if kind == "native" and not isinstance(native, NativeEngine):
            raise InputError(
                f"the native engine cannot run this: {native}; choose training.engine=auto"
            )
    if isinstance(native, NativeEngine) and kind != "ray":
        return native, f"compiled for this model, {count} threads{native.reserve}"
    if kind == "batched":
        batched = BatchedEngine.create(workload)
        if isinstance(batched, BatchedEngine):
            where = batched.device.name
            return batched, f"as asked; {batched.together} clients side by side on {where}"
        native = batched
    loop = LoopEngine(workload)
    if kind == "ray":
        local = native if isinstance(native, NativeEngine) else loop
        engine = _over_ray(local, workload, workers)
        compiled = "as asked; compiled for this model in every actor"
        return engine, compiled if local is native else _because(native, "as asked")
    if kind == "loop":
        return loop, "as asked"
    better = "batched" if kind == "batched" else "native"
    if kind == "parallel" or (count > 1 and hasattr(os, "fork")):
        return ParallelEngine(loop, count), _because(native, f"{count} workers", better)
    return loop, _because(native, "one core", better)


def _because(reason: object, what: str, better: str = "native") -> str:
    return f"{what}; not {better}: {reason}" if reason else what


def _over_ray(
    local: LoopEngine | NativeEngine, workload: Workload, actors: int | None
) -> ModuleEngine:
    """Engines like `local` in actors: its bits, from any number of them."""
    from sdfeel.engine.ray import RayEngine, Recipe

    build: Build = LoopEngine
    if isinstance(local, NativeEngine):
        # An actor has one core. What is compiled must not depend on its clients.
        build = partial(NativeEngine, threads=1, batch=local.batch)
    if any(each.reads_anew for each in (workload.train, workload.test, workload.losses_on)):
        raise InputError(
            "training.engine = ray hands tensors to its actors, but these data are read lazily: "
            "choose training.engine=parallel"
        )
    recipe = Recipe(workload, build)
    elsewhere = "RAY_ADDRESS" in os.environ  # then the cluster says how many
    return RayEngine(local, recipe, actors or (None if elsewhere else cores()))
