"""A real page in a real browser."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import started

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# A browser that looks for updates would be turned away by closed networks, again and again.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MAIN = "from sdfeel.cli import main; main()"


def browser_path() -> str | None:
    """Where the system's browser is; None if there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@contextmanager
def served_by(directory: Path, *options: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """`sdfeel dash` over a directory: its address and its process."""
    command = [sys.executable, "-c", MAIN, "dash", str(directory), "--no-browser", *options]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().rstrip("/"), process
        finally:
            process.terminate()


@contextmanager
def served(directory: Path, *options: str) -> Iterator[str]:
    """`sdfeel dash` over a directory: its address."""
    with served_by(directory, *options) as (address, _):
        yield address
