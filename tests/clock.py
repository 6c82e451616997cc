"""A clock for code that asks a function for the time: it stands still until a test moves it."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Tells the time that tests let pass. Coroutines that wait need `tests/live/timeless.py`."""

    now: float = 1000.0  # seconds

    def __call__(self) -> float:
        return self.now
