"""`sdfeel dash` itself: its address, its token and its mistakes."""

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.command import call
from tests.dashboard.browser import served
from tests.dashboard.logs import events, write


def status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_page_is_served_on_loopback(tmp_path: Path) -> None:
    write(tmp_path / "one", events())
    with served(tmp_path) as address:
        assert address.startswith("http://127.0.0.1:")
        assert "token" not in address
        assert status(f"{address}/api/run?name=one") == 200
        assert status(f"{address}/api/run?name=..%2Fone") == 404


def test_any_other_address_gets_a_token(tmp_path: Path) -> None:
    with served(tmp_path, "--host", "127.0.0.2") as address:  # loopback, but not by its name
        open_to_all, _, token = address.partition("?token=")
        assert len(token) >= 20
        assert status(open_to_all) == 401
        assert status(address) in (200, 401)  # without a cookie jar the redirect is refused


def test_a_chosen_token_is_asked_for_on_loopback_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDFEEL_DASH_TOKEN", "open-sesame")
    with served(tmp_path) as address:
        assert address.endswith("?token=open-sesame")
        assert status(address.partition("?")[0]) == 401


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    outcome = call("dash", tmp_path / "none", "--no-browser")
    assert outcome.sentence == (
        f"sdfeel: no directory {tmp_path / 'none'}: give one that holds runs"
    )


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = call("dash", tmp_path, "--no-browser", "--port", str(port))
    assert f"cannot listen on 127.0.0.1 port {port}" in outcome.sentence
    assert outcome.code != 0
