"""Forked processes, each with a pipe to its parent; none outlives its parent.

A process that waits on its pipe learns that its parent is gone when no other process holds the
parent's end. A fork copies every open file, so each new process closes those that must end with
their owner: the parent's ends of all pipes, and locks. It touches no other files. Libraries keep
some of their own, and threads that continue in the new process: gRPC's threads abort it when the
file that they wait for is closed.

Nor does it finalise what was garbage in its parent: gRPC's connections would wait for ever for
their threads, which were not forked.
"""

import gc
import multiprocessing as mp
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, Protocol
from weakref import WeakSet


class Closes(Protocol):
    """A file, a pipe."""

    def close(self) -> None: ...


_mine: WeakSet[Closes] = WeakSet()


def not_inherited(file: Closes) -> None:
    """From now on, no process that `forked` starts holds `file` open."""
    _mine.add(file)


def forked(
    target: Callable[..., None], *args: Any, daemon: bool = False
) -> tuple[ForkProcess, Connection]:
    """Start `target(pipe, *args)` in a new process; return it and our end of its pipe.

    Only a fork shares the data and the user's own classes without a main guard.
    """
    context = mp.get_context("fork")
    ours, theirs = context.Pipe()
    not_inherited(ours)
    collects = gc.isenabled()
    process = context.Process(target=_begin, args=(target, theirs, collects, args), daemon=daemon)
    gc.disable()  # until the new process has set aside what it inherits
    try:
        process.start()
    finally:
        if collects:
            gc.enable()
    theirs.close()
    return process, ours


def _begin(
    target: Callable[..., None], pipe: Connection, collects: bool, args: tuple[Any, ...]
) -> None:
    gc.freeze()
    if collects:
        gc.enable()
    for file in list(_mine):
        file.close()
    _mine.clear()
    not_inherited(pipe)
    target(pipe, *args)
