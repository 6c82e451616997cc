"""Figures' runs go to a cache of the test's own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not XDG_CACHE_HOME: compiled engines are kept there, and building one takes seconds.
    monkeypatch.setattr("sdfeel.figures.cache.root", lambda: tmp_path / "figures")
