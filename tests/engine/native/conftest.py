"""All tests here share one folder of compiled libraries: a compilation costs seconds."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(autouse=True)
def _quiet_home(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the one for all tests, which would give every test a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(libraries))
