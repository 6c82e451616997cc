"""Waiting for something to become true, and no longer."""

from collections.abc import Callable
from time import monotonic, sleep

DEADLINE = 90.0  # seconds until a test gives up


def until(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    end = monotonic() + DEADLINE
    while not condition():
        assert monotonic() < end, "it never happened"
        sleep(0.02)
