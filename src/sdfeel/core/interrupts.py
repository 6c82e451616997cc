"""Ctrl-C at a moment at which Python or a package would lose it: it is tried again later."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

LATER = 0.02  # seconds until a Ctrl-C that came at a bad moment is tried again

_held = 0


def listen() -> None:
    """React to Ctrl-C, unless this process was started so that it ignores it (as by `nohup`)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and sys.platform != "win32":
        signal.signal(signal.SIGALRM, interrupt)
        signal.signal(signal.SIGINT, interrupt)


def interrupt(_: int, frame: FrameType | None) -> None:
    """Raise what Ctrl-C raises, as soon as nobody on the stack would lose it."""
    bad = _held > 0
    while frame is not None and not bad:
        bad = _loses_exceptions(frame)
        frame = frame.f_back
    if not bad:
        raise KeyboardInterrupt
    signal.setitimer(signal.ITIMER_REAL, LATER)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep Ctrl-C waiting. Blocking the signal is not enough: other threads still receive it."""
    global _held
    _held += 1
    try:
        yield
    finally:
        _held -= 1


@contextmanager
def ctrl_c_blocked_in_children() -> Iterator[None]:
    """Processes that are started meanwhile do not react to Ctrl-C until they `unblock_ctrl_c`."""
    with uninterrupted():
        resource_tracker.ensure_running()  # later, it would unblock the signal when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_ctrl_c() -> None:
    """React to Ctrl-C from now on, but not to one that came before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _loses_exceptions(frame: FrameType) -> bool:
    """Modules that are loading swallow Ctrl-C or abort; Pydantic turns it into another error."""
    code = frame.f_code
    return (
        code.co_filename == "<frozen importlib._bootstrap>"
        or code.co_name == "__del__"
        or str(frame.f_globals.get("__name__")).partition(".")[0] == "pydantic"
    )
