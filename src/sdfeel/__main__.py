"""The command `sdfeel`, also as `python -m sdfeel` where it is not on the path."""

import signal
import sys
from types import FrameType

LATER = 0.02  # seconds until a Ctrl-C that came at a bad moment is tried again


def interrupt(_: int, frame: FrameType | None) -> None:
    """Raise what Ctrl-C raises, as soon as nobody on the stack would lose it."""
    while frame is not None:
        if _loses_exceptions(frame):
            signal.setitimer(signal.ITIMER_REAL, LATER)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _loses_exceptions(frame: FrameType) -> bool:
    """Modules that load swallow Ctrl-C or abort the process; Pydantic makes another error of it."""
    code = frame.f_code
    return (
        code.co_filename == "<frozen importlib._bootstrap>"
        or code.co_name == "__del__"
        or str(frame.f_globals.get("__name__")).partition(".")[0] == "pydantic"
    )


def _listen() -> None:
    """Hear Ctrl-C, unless whoever started this process has made it deaf (as `nohup` does)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and sys.platform != "win32":
        signal.signal(signal.SIGALRM, interrupt)
        signal.signal(signal.SIGINT, interrupt)


def main() -> None:
    """Run a command. Ctrl-C ends it without a traceback, even while its code is being loaded."""
    try:
        _listen()
        from sdfeel.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
