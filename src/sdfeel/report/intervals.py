"""What several seeds say together: means with intervals, and differences seed by seed.

A run that never reaches a target is censored: what it had cost when it ended is a lower bound of
what reaching the target would have cost, and is treated as nothing else.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import atan, cos, pi, sqrt
from statistics import fmean, stdev

LEVEL = 0.95  # of every interval
# What "±" means, in every table: the spread of single seeds is wider, and is never written so.
MARGIN = f"half of the {100 * LEVEL:g} % confidence interval (Student's t)"


@dataclass(frozen=True)
class Observed:
    """One run's value of a quantity; `censored`: the true value is larger than this."""

    value: float
    censored: bool = False


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; `margin` is half of its interval, None where there is none."""

    mean: float
    margin: float | None
    seeds: int
    censored: int = 0  # seeds with only a lower bound; then the mean is a lower bound, too

    @property
    def certain(self) -> bool:
        return self.censored == 0


@dataclass(frozen=True)
class Difference:
    """How one line differs from another, each seed compared with itself."""

    estimate: Estimate | None  # over pairs without a censored run
    pairs: int
    above: int  # pairs in which it is certainly above the other
    below: int  # pairs in which it is certainly below


def estimate(outcomes: Iterable[Observed]) -> Estimate | None:
    """The mean and Student's interval; only a lower bound of the mean if any outcome is censored.

    >>> found = estimate([Observed(1.0), Observed(2.0), Observed(3.0)])
    >>> found.mean, round(found.margin, 3)
    (2.0, 2.484)
    >>> estimate([Observed(1.0), Observed(3.0, censored=True)])
    Estimate(mean=2.0, margin=None, seeds=2, censored=1)
    """
    known = list(outcomes)
    if not known:
        return None
    values = [each.value for each in known]
    censored = sum(each.censored for each in known)
    margin = None
    if len(values) > 1 and not censored:
        margin = student(len(values) - 1) * stdev(values) / sqrt(len(values))
    return Estimate(fmean(values), margin, len(values), censored)


def difference(one: Mapping[int, Observed], other: Mapping[int, Observed]) -> Difference:
    """`one` less `other`, seed by seed.

    >>> cut = {0: Observed(5.0), 1: Observed(9.0, censored=True)}
    >>> difference(cut, {0: Observed(4.0), 1: Observed(6.0)})
    Difference(estimate=Estimate(mean=1.0, margin=None, seeds=1, censored=0), pairs=2, above=2, \
below=0)
    """
    pairs = [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]
    whole = [(a, b) for a, b in pairs if not (a.censored or b.censored)]
    return Difference(
        estimate(Observed(a.value - b.value) for a, b in whole),
        len(pairs),
        sum(a.value > b.value and not b.censored for a, b in pairs),
        sum(a.value < b.value and not a.censored for a, b in pairs),
    )


@cache
def student(freedom: int, level: float = LEVEL) -> float:
    """How many standard errors Student's interval reaches to each side.

    >>> [round(student(freedom), 3) for freedom in (1, 2, 4, 30, 1000)]
    [12.706, 4.303, 2.776, 2.042, 1.962]
    """
    low, high = 0.0, 1e4
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability that Student's variable is between -t and t (Abramowitz and Stegun 26.7)."""
    angle = atan(t / sqrt(freedom))
    cosine, sine = cos(angle), t / sqrt(freedom + t * t)
    if freedom % 2:
        term, total = cosine, 0.0
        for k in range(1, freedom, 2):
            total += term
            term *= cosine * cosine * (k + 1) / (k + 2)
        return 2 / pi * (angle + sine * total)
    term, total = 1.0, 0.0
    for k in range(0, freedom, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    return sine * total


def tail(t: float, freedom: int) -> float:
    """The probability that Student's variable is above `t`.

    >>> round(tail(2.776, 4), 4), tail(0.0, 4), round(tail(-2.776, 4), 4)
    (0.025, 0.5, 0.975)
    """
    beyond = (1 - _within(abs(t), freedom)) / 2
    return beyond if t >= 0 else 1 - beyond
