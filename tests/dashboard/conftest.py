"""The page in this process, and a browser where there is one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("starlette", reason="the page needs `pip install 'sdfeel[dash]'`")
pytest.importorskip("httpx2", reason="the tests of the page need httpx2")

from starlette.testclient import TestClient

from sdfeel.dashboard.app import build
from tests.cli.command import call, settings
from tests.dashboard.browser import FLAGS, PATIENCE, browser_path, served
from tests.dashboard.logs import started, write

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Page = Callable[..., TestClient]
ORIGIN = "http://127.0.0.1"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """`page(allow_start=True)`: a client of the page over the test's directory."""
    opened: list[TestClient] = []

    def opening(
        allow_start: bool = False, token: str | None = None, directory: Path = tmp_path
    ) -> TestClient:
        client = TestClient(build(directory, allow_start, token), base_url=ORIGIN)
        client.__enter__()
        opened.append(client)
        return client

    yield opening
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real runs, and one with a damaged log."""
    directory = tmp_path_factory.mktemp("served")
    for scheme in ("sd-feel", "async-sd-feel"):
        done = call("run", *settings(scheme_name=scheme), "--out", directory / "race" / scheme)
        assert done.code == 0, done.err
    write(directory / "bad", [started()], b"<img src=x onerror=alert(1)>\n")
    return directory


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with served(runs, "--allow-start") as found:
        yield found
