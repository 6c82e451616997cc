"""A real page in a real browser."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.waiting import DEADLINE, started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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
ALL_TESTS = 3600.0  # seconds: one page may serve all tests of a file, on a busy machine
PATIENCE = 180_000  # milliseconds: a machine may be busy
MAIN = "from sdfeel.cli import main; main()"


def browser_path() -> str | None:
    """Where the system's browser is; None if there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@contextmanager
def served_by(directory: Path, *options: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """`sdfeel dash` over a directory: its address and its process."""
    command = [sys.executable, "-c", MAIN, "dash", str(directory), "--no-browser", *options]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with started(command, ALL_TESTS, **how) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().rstrip("/"), process
        finally:
            process.terminate()
            process.wait(DEADLINE)


@contextmanager
def served(directory: Path, *options: str) -> Iterator[str]:
    """`sdfeel dash` over a directory: its address."""
    with served_by(directory, *options) as (address, _):
        yield address


def patient(page: "Page") -> "Page":
    """A page that is opened again when the machine's network changes meanwhile.

    Containers or interfaces that come and go make Chromium break off whatever it loads, even from
    loopback. The page recovers by itself, but not if its document has never arrived.
    """
    from playwright.sync_api import Error

    goto = page.goto

    def again(url: str, **options: Any) -> Any:
        for _ in range(20):
            try:
                return goto(url, **options)
            except Error as error:
                if not any(each in str(error) for each in ("ERR_NETWORK_CHANGED", "interrupted")):
                    raise
        return goto(url, **options)

    page.goto = again  # type: ignore[method-assign]
    return page


@contextmanager
def window(browser: "Browser", address: str) -> Iterator["Page"]:
    """A window in which nothing may go wrong or be asked of another host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=address)
    context.set_default_timeout(PATIENCE)
    page = patient(context.new_page())
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith(address) else None)
    try:
        yield page
    finally:
        context.close()
    assert wrong == []
