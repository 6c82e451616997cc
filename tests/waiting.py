"""Waiting with an end: a test that hangs is a failure, not a wait.

`tests/test_every_wait_ends.py` sees to it that tests wait in one of these ways.
"""

import asyncio
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from os import PathLike
from time import monotonic, sleep
from typing import Any, TypeVar

T = TypeVar("T")

DEADLINE = 240.0  # seconds until a test gives up: it says that something never happens


def until(
    condition: Callable[[], bool], what: str = "it never happened", seconds: float = DEADLINE
) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, what
        sleep(0.02)


def finished(
    command: Sequence[str | PathLike[str]], seconds: float = DEADLINE, **how: Any
) -> "subprocess.CompletedProcess[str]":
    """What a command said, once it has ended."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | how
    return subprocess.run(command, timeout=seconds, **how)


@contextmanager
def started(
    command: Sequence[str | PathLike[str]], seconds: float = DEADLINE, **how: Any
) -> "Iterator[subprocess.Popen[Any]]":
    """A process that is killed after `seconds`: then its pipes end, and whoever reads them
    continues.

    Leaving the block waits for its end.
    """
    with subprocess.Popen(command, **how) as process:
        bound = threading.Timer(seconds, process.kill)
        bound.daemon = True
        bound.start()
        try:
            yield process
            process.wait(seconds)
        except BaseException:
            process.kill()
            raise
        finally:
            bound.cancel()


def joined(worker: BaseProcess | threading.Thread, seconds: float = DEADLINE) -> None:
    """Wait for the end of a process or a thread."""
    worker.join(seconds)
    if worker.is_alive() and isinstance(worker, BaseProcess):
        worker.kill()
        worker.join(seconds)
        raise AssertionError(f"the process did not end in {seconds:g} s")
    assert not worker.is_alive(), f"the thread did not end in {seconds:g} s"


def received(pipe: "Connection[Any, Any]", seconds: float = DEADLINE) -> Any:
    """The next thing that comes through a pipe."""
    assert pipe.poll(seconds), f"nothing came in {seconds:g} s"
    return pipe.recv()


def whereabouts() -> str:
    """Where every task of the running loop waits, from its outermost call to its innermost."""
    found = []
    for task in sorted(asyncio.all_tasks(), key=lambda each: each.get_name()):
        lines = [task.get_name()]
        step: Any = task.get_coro()
        while (frame := getattr(step, "cr_frame", None)) is not None:
            code = frame.f_code
            lines.append(f"  {code.co_filename}:{frame.f_lineno} {code.co_qualname}")
            step = getattr(step, "cr_await", None)
        found.append("\n".join(lines))
    return "\n".join(found)


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns; if it takes too long, everybody's whereabouts."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        assert done, f"no end after {seconds:g} s; tasks wait here:\n{whereabouts()}"
    finally:
        task.cancel()
    return task.result()


def completed(work: Coroutine[Any, Any, T], seconds: float = DEADLINE) -> T:
    """What a story of coroutines returns."""
    return asyncio.run(asyncio.wait_for(work, seconds))
