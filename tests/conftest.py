"""Shared by all tests."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def vectors() -> Any:
    """The specification's test vectors."""
    return json.loads((HERE / "vectors.json").read_text())


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests and workers: what was compiled once need not be compiled again."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "cache"


@pytest.fixture(autouse=True)
def _quiet_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
