"""The command `sdfeel`, also as `python -m sdfeel` where it is not on the path."""

import sys


def main() -> None:
    """Run a command. Ctrl-C ends it without a traceback, even while its code is being loaded."""
    try:
        from sdfeel.core.interrupts import listen

        listen()
        from sdfeel.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
