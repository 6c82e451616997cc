"""Is native faster than torch for a large model on this CPU? Timed once, and remembered."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time

import torch

from sdfeel.core.errors import SdfeelError
from sdfeel.engine.base import Task
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.build import note
from sdfeel.engine.native.library import Native
from sdfeel.engine.native.trainer import Trainer

TIMED_PRODUCTS = 50e6  # multiplications of an example's forward pass; below, native is faster
TURNS = 3
MARGIN = 1.1  # how much faster torch must be, so that chance does not decide


def slower(native: Native, trainer: Trainer, loop: LoopEngine, task: Task) -> str | None:
    """Why torch is the better choice, in one line; None if native is."""
    if native.plan.products <= TIMED_PRODUCTS:
        return None
    speed = _remembered(native)
    if speed is None:
        speed = _timed(trainer, loop, task)
        native.library.release()
    with suppress(OSError):  # if it cannot be written, the next process times again
        _file(native).write_text(f"{speed:.3f}")
    return f"torch is {1 / speed:.1f} times as fast here" if speed * MARGIN < 1 else None


def _file(native: Native) -> Path:
    return note(native.path, f".torch-{torch.__version__}.speed")


def _remembered(native: Native) -> float | None:
    with suppress(OSError, ValueError):
        return float(_file(native).read_text())
    return None


def _trained(loop: LoopEngine, task: Task) -> None:
    with suppress(SdfeelError):  # a model that diverges here does so in the run, too
        list(loop.train([task]))


def _timed(trainer: Trainer, loop: LoopEngine, task: Task) -> float:
    """How many times as fast as torch native is, both on one core.

    Measured in processor seconds, so that whatever else the machine does matters less.
    """
    block = trainer.prepared([task])
    ways: tuple[Callable[[], object], ...] = (
        lambda: trainer.trained(block, threads=1),
        lambda: _trained(loop, task),
    )
    best = [float("inf"), float("inf")]
    for turn in range(TURNS + 1):  # the first warms up
        for which, way in enumerate(ways):
            begin = process_time()
            way()
            if turn:
                best[which] = min(best[which], process_time() - begin)
    return best[1] / max(best[0], 1e-9)
