"""Waiting with an end: a test that hangs is a failure, not a wait.

`tests/test_every_wait_ends.py` sees to it that tests wait in one of these ways.
"""

import asyncio
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from os import PathLike
from time import monotonic, sleep
from typing import Any, TypeVar

T = TypeVar("T")

DEADLINE = 240.0  # seconds until a test gives up: it says that something never happens
LOOK = 1.0  # seconds between two looks, and what a look counts at most


def looks(seconds: float, now: Callable[[], float] = monotonic) -> Iterator[float]:
    """For how long to wait until the next look, until `seconds` were waited in all.

    A look that took longer counts as one: meanwhile the machine slept, or somebody had stopped this
    process and what it waits for.
    """
    while seconds > 0:
        began = now()
        yield min(LOOK, seconds)
        seconds -= min(now() - began, LOOK)


def until(
    condition: Callable[[], bool], what: str = "it never happened", seconds: float = DEADLINE
) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    for _ in looks(seconds):
        if condition():
            return
        sleep(0.02)
    assert condition(), what


def finished(
    command: Sequence[str | PathLike[str]],
    seconds: float = DEADLINE,
    check: bool = False,
    input: str | None = None,
    **how: Any,
) -> "subprocess.CompletedProcess[str]":
    """What a command said, once it has ended."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | how
    if input is not None:
        how["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, **how) as process:
        try:
            out, err = _said(process, input, seconds)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _said(process: "subprocess.Popen[Any]", given: str | None, seconds: float) -> tuple[Any, Any]:
    for look in looks(seconds):
        with suppress(subprocess.TimeoutExpired):  # nothing of what it said is lost
            return process.communicate(given, timeout=look)
    raise subprocess.TimeoutExpired(process.args, seconds)


@contextmanager
def started(
    command: Sequence[str | PathLike[str]], seconds: float = DEADLINE, **how: Any
) -> "Iterator[subprocess.Popen[Any]]":
    """A process that is killed after `seconds`: then its pipes end, and whoever reads them goes on.

    Leaving the block waits for its end.
    """
    over = threading.Event()

    def bound(process: "subprocess.Popen[Any]") -> None:
        if not any(over.wait(look) for look in looks(seconds)):
            process.kill()

    with subprocess.Popen(command, **how) as process:
        threading.Thread(target=bound, args=(process,), daemon=True).start()
        try:
            yield process
            process.wait(2 * seconds)  # it is killed before that
        except BaseException:
            process.kill()
            raise
        finally:
            over.set()


def joined(worker: BaseProcess | threading.Thread, seconds: float = DEADLINE) -> None:
    """Wait for the end of a process or a thread."""
    for look in looks(seconds):
        worker.join(look)
        if not worker.is_alive():
            return
    if isinstance(worker, BaseProcess):
        worker.kill()
        worker.join(seconds)
        raise AssertionError(f"the process did not end in {seconds:g} s")
    raise AssertionError(f"the thread did not end in {seconds:g} s")


def received(pipe: "Connection[Any, Any]", seconds: float = DEADLINE) -> Any:
    """The next thing that comes through a pipe."""
    assert any(pipe.poll(look) for look in looks(seconds)), f"nothing came in {seconds:g} s"
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
        for look in looks(seconds, asyncio.get_running_loop().time):
            if (await asyncio.wait({task}, timeout=look))[0]:
                return task.result()
        raise AssertionError(f"no end after {seconds:g} s; tasks wait here:\n{whereabouts()}")
    finally:
        task.cancel()


def completed(work: Coroutine[Any, Any, T], seconds: float = DEADLINE) -> T:
    """What a story of coroutines returns."""
    return asyncio.run(within(seconds, work))
