"""Which engine computes a run."""

import os
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from torch import Tensor, nn

from sdfeel.core.arrays import Ints
from sdfeel.data.examples import Examples
from sdfeel.engine.base import Engine
from sdfeel.engine.evaluate import Metric
from sdfeel.engine.loop import LoopEngine, Training
from sdfeel.engine.parallel import ParallelEngine

Kind = Literal["auto", "loop", "parallel"]


class ModuleEngine(Engine, Protocol):
    """An engine that was built around an nn.Module."""

    @property
    def parameters(self) -> int: ...

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
    loop = LoopEngine(module, train, parts, test, training, seed, metrics, measured)
    count = workers or cores()
    if kind == "loop":
        return loop, "as asked"
    if kind == "parallel":
        return ParallelEngine(loop, count), f"as asked, {count} workers"
    if count > 1 and hasattr(os, "fork"):
        return ParallelEngine(loop, count), f"{count} cores"
    return loop, "one core"


def cores() -> int:
    """Cores that this process may use."""
    available: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available is not None else os.cpu_count() or 1
