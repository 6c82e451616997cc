"""The command `sdfeel`, also as `python -m sdfeel` where it is not on the path."""

import os
import sys


def main() -> None:
    """Run a command. Ctrl-C ends it without a traceback, even while its code is being loaded."""
    _open_missing_streams()
    try:
        from sdfeel.core.interrupts import listen

        listen()
        from sdfeel.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


def _open_missing_streams() -> None:
    """Let standard input, output and error be the null device where the caller closed them.

    Otherwise the next file or connection would get their number, and with it whatever a library
    writes to standard error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


if __name__ == "__main__":
    main()
