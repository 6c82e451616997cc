"""Learning-rate schedules: a factor on the step size, as a pure function of the round.

The factor depends on nothing else, so every engine and every deployed node takes the same steps,
and a resumed run continues where it was.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, cos, isfinite, pi
from typing import Any, Literal

from sdfeel.core.errors import InputError, at_least, told
from sdfeel.core.named import Kind

Curve = Callable[[float, float], float]  # (position, end of the run) -> factor


def constant() -> Curve:
    """The same rate throughout."""
    return lambda position, end: 1.0


def step(every: float, factor: float = 0.1) -> Curve:
    """Multiplied by `factor` after every `every` iterations or rounds.

    >>> [step(every=10, factor=0.5)(position, 30) for position in (0, 9, 10, 25)]
    [1.0, 1.0, 0.5, 0.25]
    """
    at_least("every", every, 1)
    return lambda position, end: float(factor ** (position // every))


def cosine(least: float = 0.01) -> Curve:
    """From 1 down to `least` on half a wave.

    >>> [round(cosine(least=0.0)(position, 100), 3) for position in (0, 50, 75)]
    [1.0, 0.5, 0.146]
    """
    return lambda at, end: least + (1 - least) * (1 + cos(pi * min(at / end, 1))) / 2


def linear(least: float = 0.01) -> Curve:
    """From 1 down to `least` on a straight line."""
    return lambda at, end: 1 - (1 - least) * min(at / end, 1)


NAMED = Kind(
    "schedule",
    {"constant": constant, "step": step, "cosine": cosine, "linear": linear},
    "sdfeel.schedules",
)


@dataclass(frozen=True)
class Schedule:
    """How the step size changes from round to round."""

    curve: Curve
    iterations: int  # of the whole run
    warmup: int = 0  # positions over which the rate grows to its full size
    unit: Literal["iteration", "round"] = "iteration"  # what positions count

    def factor(self, k: int, length: float) -> float:
        """The factor in round `k` of a lane whose rounds have `length` iterations."""
        length = max(length, 1)
        position, end = k * length, float(self.iterations)
        if self.unit == "round":
            position, end = k, ceil(self.iterations / length)
        rise = min(1.0, (position + 1) / self.warmup) if self.warmup else 1.0
        try:
            found = rise * float(self.curve(position, end))
        except Exception as error:  # somebody else's function may raise anything
            raise InputError(f"training.schedule did not give a factor: {told(error)}") from None
        if not (isfinite(found) and found > 0):
            raise InputError(
                f"training.schedule gave the factor {found:g} at {self.unit} {position:g}: a "
                f"factor on the learning rate must be above 0"
            )
        return found


def schedule(
    given: Any, options: dict[str, Any], warmup: int, unit: Any, iterations: int
) -> Schedule:
    """The schedule that a name, or a function of position and end, stands for.

    >>> schedule("cosine", {"least": 0.1}, 0, "iteration", 100).factor(k=10, length=5) > 0.5
    True
    """

    found = NAMED.find(given)
    builtin = isinstance(given, str) and given in NAMED.known
    if not callable(found):
        raise InputError(
            f"training.schedule must be a function of the iteration and of the number of "
            f"iterations that gives a factor, got {type(found).__name__}"
        )
    if options and not builtin:
        raise InputError("training.schedule_options belong to the built-in schedules: drop them")
    try:
        curve = found(**options) if builtin else found
    except TypeError as error:
        raise InputError(
            f"training.schedule = {given} does not accept its options: {error}"
        ) from None
    return Schedule(curve, iterations, warmup, unit)
