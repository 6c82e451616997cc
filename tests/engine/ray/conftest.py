"""One Ray for all tests that do not need their own: it takes seconds to start."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdfeel.engine.ray import engine
from sdfeel.engine.ray.pool import SESSION


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks per actor, also for few clients."""
    monkeypatch.setattr(engine, "CLIENTS_PER_BLOCK", 4)


@pytest.fixture(scope="session")
def installed() -> None:
    # Not by importing it, which would be too early: it reads its settings then.
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install sdfeel[ray]")


@pytest.fixture(scope="module")
def ray(installed: None, cache: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))  # actors see the settings of Ray's start
        ray = SESSION.join("local", 2)
    yield ray
    SESSION.leave(ray)
