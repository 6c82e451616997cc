"""The page in this process, and a browser where there is one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the page needs `pip install 'sdfeel[dash]'`")
pytest.importorskip("httpx2", reason="the tests of the page need httpx2")

from starlette.testclient import TestClient

from sdfeel.dashboard.app import build

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
