"""Shared by all tests."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Other programs may have the machine: no example is wrong because it came late. A directory may
# serve all examples of a test.
settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("patient")

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def vectors() -> Any:
    """The specification's test vectors."""
    return json.loads((HERE / "vectors.json").read_text())


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """One cache for all tests and workers: what was compiled once need not be compiled again.

    Compiled models are named by everything they depend on, as is matplotlib's list of fonts:
    they outlive the session, in `.pytest_cache`.
    """
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "cache"
    kept: pytest.Cache | None = getattr(pytestconfig, "cache", None)  # none if pytest is told so
    if kept is not None:
        for name in ("sdfeel/native", "matplotlib"):
            link = cache / name
            link.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # the other worker was first
                link.symlink_to(kept.mkdir(link.name))
    return cache


@pytest.fixture(autouse=True)
def _quiet_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are empty, for tests that are about something else: drawing takes a second."""
    empty = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
    monkeypatch.setattr("sdfeel.report.drawing._rendered", lambda figure, kind: empty)
