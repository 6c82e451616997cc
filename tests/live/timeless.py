"""An event loop whose seconds pass only while everybody waits, so that no machine is too slow.

A deadline of half a second is over when nobody has anything left to do before it, however long
that took; and a test that waits for a minute does so at once. The pauses that nodes draw at random
are drawn from a seed, so that a test does the same every time; `pytest --seeds 30` tries others.
"""

import asyncio
import os
import random
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
SEED = "TIMELESS_SEED"  # the variable that names another seed
BEGIN = 1000.0  # seconds on the clock: always the same, so that sums of pauses are rounded alike


def run(work: Coroutine[Any, Any, T], seconds: float = 600.0) -> T:
    """Like `asyncio.run`, on a loop of this kind; it fails after this many of its seconds."""
    kept = random.getstate()
    random.seed(int(os.environ.get(SEED, "0")))
    try:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            return runner.run(asyncio.wait_for(work, seconds))
    finally:
        random.setstate(kept)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = BEGIN
        super().__init__(_Selector(self))
        self.set_default_executor(_AtOnce())

    def time(self) -> float:
        return self.now

    async def shutdown_default_executor(self) -> None:
        """There is no thread to wait for; asyncio would start one to do so, in real time."""


class _Selector(selectors.DefaultSelector):
    """Never sleeps: where it should, the clock of its loop is put forward."""

    def __init__(self, loop: _Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            assert timeout is not None, "everybody waits, and for nothing that could happen"
            self._loop.now += max(timeout, 0.0)
        return found


class _AtOnce(ThreadPoolExecutor):
    """Does at once, in this thread, what `asyncio.to_thread` hands over."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done
