"""When a claim holds: means over seeds, compared with their pooled standard error."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan, sqrt
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Floats

State = Literal["holds", "does not hold", "not decided", "report only", "cannot judge"]
ENOUGH = 3  # seeds


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim. `effect` supports the claim when it is above 0."""

    state: State
    effect: float = nan
    error: float = nan  # pooled standard error of the effect
    unit: str = ""
    seeds: int = 0
    alike: int = 0  # seeds that support the claim, each compared with itself
    numbers: dict[str, float] = field(default_factory=dict)

    def with_numbers(self, **numbers: float) -> "Verdict":
        return replace(self, numbers={**self.numbers, **numbers})


def more(high: Floats, low: Floats, unit: str = "") -> Verdict:
    """`high` is above `low`: by more than the pooled standard error of the difference."""
    effect, error = difference(high, low)
    state: State = "not decided"
    if effect > error:
        state = "holds"
    elif effect < -error:
        state = "does not hold"
    return _if_enough(Verdict(state, effect, error, unit, _count(high, low), _alike(high, low)))


def no_less(high: Floats, low: Floats, unit: str = "") -> Verdict:
    """`high` is at least `low`: not below it by more than the pooled standard error."""
    effect, error = difference(high, low)
    state: State = "does not hold" if effect < -error else "holds"
    return _if_enough(Verdict(state, effect, error, unit, _count(high, low), _alike(high, low)))


def close(one: Floats, other: Floats, within: float, unit: str = "") -> Verdict:
    """The means differ by at most `within`; the effect is the margin that is left."""
    gap, error = difference(one, other)
    state: State = "holds"
    if not abs(gap) <= within:
        state = "does not hold" if abs(gap) - error > within else "not decided"
    near = int((np.abs(one - other) <= within).sum())
    return _if_enough(Verdict(state, within - abs(gap), error, unit, _count(one, other), near))


def exactly(true: bool, effect: float = nan, unit: str = "", **numbers: float) -> Verdict:
    """A claim that no seed decides."""
    return Verdict("holds" if true else "does not hold", effect, 0.0, unit, numbers=numbers)


def report(**numbers: float) -> Verdict:
    """Numbers to look at; the paper gives nothing to compare them with."""
    return Verdict("report only", numbers=numbers)


def all_of(parts: Sequence[Verdict]) -> Verdict:
    """Every part must hold; the part that supports the claim least is shown."""
    order: tuple[State, ...] = ("does not hold", "not decided", "holds", "report only")
    worst = min(parts, key=lambda part: (order.index(part.state), _weight(part)))
    numbers = {name: value for part in parts for name, value in part.numbers.items()}
    return replace(worst, numbers=numbers)


def any_of(parts: Sequence[Verdict]) -> Verdict:
    """One part is enough; the part that supports the claim most is shown."""
    order: tuple[State, ...] = ("holds", "not decided", "does not hold", "report only")
    best = min(parts, key=lambda part: (order.index(part.state), -_weight(part)))
    numbers = {name: value for part in parts for name, value in part.numbers.items()}
    return replace(best, numbers=numbers)


def difference(one: Floats, other: Floats) -> tuple[float, float]:
    """The means' difference and its standard error.

    >>> difference(np.array([3.0, 5.0]), np.array([1.0, 1.0]))
    (3.0, 1.0)
    """
    return float(np.mean(one)) - float(np.mean(other)), sqrt(_squared(one) + _squared(other))


def _squared(values: Floats) -> float:
    """The squared standard error of a mean."""
    if len(values) < 2 or not np.isfinite(values).all():
        return 0.0
    return float(np.var(values, ddof=1) / len(values))


def _count(one: Floats, other: Floats) -> int:
    return min(len(one), len(other))


def _alike(high: Floats, low: Floats) -> int:
    """Runs of one seed share their data, their clusters and their first model."""
    return int((high > low).sum())


def _if_enough(verdict: Verdict) -> Verdict:
    if verdict.seeds < ENOUGH or np.isnan(verdict.effect):
        return replace(verdict, state="not decided")
    return verdict


def _weight(part: Verdict) -> float:
    """How clearly a part supports its claim: the effect in standard errors."""
    if not isfinite(part.effect):
        return part.effect if part.effect == part.effect else 0.0
    return part.effect / max(part.error, 1e-12)
