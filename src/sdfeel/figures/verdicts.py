"""When a claim holds: differences seed by seed, each with an interval, a margin and a count.

Runs of one seed share their data, their clusters and their first model, so each seed is compared
with itself. A claim holds if Student's 95 % interval of the mean difference lies above what the
claim asks for, does not hold if it lies below, and is open otherwise. Where a difference is known
only by its sign (a run never got to the target, or diverged), signs are counted instead.

Claims that five seeds leave open may be given eight. That is a second look, and whoever looks twice
is twice as likely to be fooled by luck: with more than five seeds, chance must be half as likely.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import comb, inf, nan, sqrt
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Floats, floats
from sdfeel.report.intervals import LEVEL, student, tail

State = Literal["holds", "does not hold", "not decided", "report only"]
ENOUGH = 3  # seeds: with fewer, nothing is decided
FIRST_LOOK = 5  # seeds: more of them are only added where these left a claim open
CHANCE = (1 - LEVEL) / 2  # of an interval that lies wholly on one side by luck
ROUNDING = 1e-9  # numbers that differ by a smaller share of their size are the same number


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim. `effect` is a mean over seeds, `low` to `high` its interval."""

    state: State
    effect: float = nan
    low: float = nan
    high: float = nan
    margin: float = 0.0  # what the effect is compared with
    unit: str = ""
    seeds: int = 0
    agree: int = 0  # seeds that support the claim on their own, and seeds that contradict it
    against: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    p_for: float = 1.0  # how likely luck is to look like this if the claim is wrong, and if right
    p_against: float = 1.0

    def with_numbers(self, **numbers: float) -> "Verdict":
        return replace(self, numbers={**self.numbers, **numbers})


def more(high: Floats, low: Floats, unit: str = "", by: float = 0.0) -> Verdict:
    """`high` is above `low` by more than `by`."""
    gaps = _gaps(high, low)
    return _above(gaps, gaps, by, unit)


def no_less(high: Floats, low: Floats, margin: float, unit: str = "") -> Verdict:
    """`high` is not below `low` by `margin` or more."""
    gaps = _gaps(high, low)
    return _above(gaps, gaps, -margin, unit)


def close(one: Floats, other: Floats, within: float, unit: str = "") -> Verdict:
    """`one` and `other` differ by less than `within`, in both directions."""
    gaps = _gaps(one, other)
    sides = [_above(gaps, gaps, -within, unit), _above(-gaps, -gaps, -within, unit)]
    worst = all_of(sides)
    near = int((np.abs(gaps) < within).sum())
    low, high = sides[0].low, sides[0].high
    shown = replace(worst, effect=sides[0].effect, low=low, high=high, margin=within)
    return replace(shown, agree=near, against=int((np.abs(gaps) > within).sum()))


def sooner(
    early: Floats, late: Floats, until: float, unit: str = "s", saving: float = 0.0
) -> Verdict:
    """`early` takes less time than `late`, by more than the share `saving` of it.

    Anything above `until`, when the runs ended, means "not by then": a lower bound, nothing more.
    """
    first, then = np.minimum(early, until), np.minimum(late, until)
    gaps = _gaps((1 - saving) * then, first)
    least = np.where(np.asarray(early) <= until, gaps, -inf)
    most = np.where(np.asarray(late) <= until, gaps, inf)
    return _above(floats(least), floats(most), 0.0, unit)


def each(flags: Sequence[bool], unit: str = "runs") -> Verdict:
    """More seeds have a true flag than chance explains, if a coin decided each of them."""
    signs = floats(np.where(np.asarray(flags, dtype=bool), inf, -inf))
    found = _above(signs, signs, 0.0, unit)
    return replace(found, effect=sum(flags) / len(flags) if len(flags) else nan, margin=0.5)


def exactly(true: bool, effect: float = nan, unit: str = "", **numbers: float) -> Verdict:
    """A verdict that does not depend on seeds."""
    state: State = "holds" if true else "does not hold"
    found = Verdict(state, effect, effect, effect, unit=unit, numbers=numbers)
    return replace(found, p_for=float(not true), p_against=float(true))


def report(**numbers: float) -> Verdict:
    """Numbers to look at; the paper gives nothing to compare them with."""
    return Verdict("report only", numbers=numbers)


def all_of(parts: Sequence[Verdict]) -> Verdict:
    """Every part must hold; the part that supports the claim least is shown.

    One of many parts fails by luck more often than a single part would: to refute the whole, it
    must fail that much more clearly.
    """
    refuting = min(parts, key=lambda part: _sure(part)[1])
    worst = min(parts, key=lambda part: (-part.p_for, part.p_against))
    if len(parts) * _sure(refuting)[1] <= CHANCE:
        worst = refuting
    return _whole(
        worst,
        parts,
        lambda chances: max(p_for for p_for, _ in chances),
        lambda chances: len(parts) * min(p_against for _, p_against in chances),
    )


def any_of(parts: Sequence[Verdict]) -> Verdict:
    """One part is enough; the part that supports the claim most is shown."""
    proving = min(parts, key=lambda part: _sure(part)[0])
    best = min(parts, key=lambda part: (part.p_for, -part.p_against))
    if len(parts) * _sure(proving)[0] <= CHANCE:
        best = proving
    return _whole(
        best,
        parts,
        lambda chances: len(parts) * min(p_for for p_for, _ in chances),
        lambda chances: max(p_against for _, p_against in chances),
    )


Chances = Sequence[tuple[float, float]]  # of luck for and against, for each part


def _whole(
    shown: Verdict,
    parts: Sequence[Verdict],
    for_it: Callable[[Chances], float],
    against_it: Callable[[Chances], float],
) -> Verdict:
    """The verdict on several parts; no part with too few seeds decides it."""
    numbers = {name: value for part in parts for name, value in part.numbers.items()}
    few = [part.seeds for part in parts if _has_few(part)]
    sure = [_sure(part) for part in parts]
    found = replace(
        shown, numbers=numbers, p_for=min(1.0, for_it(sure)), p_against=min(1.0, against_it(sure))
    )
    if few and min(found.p_for, found.p_against) >= CHANCE:
        all_of_them = [(part.p_for, part.p_against) for part in parts]
        chances = min(1.0, for_it(all_of_them)), min(1.0, against_it(all_of_them))
        found = replace(found, seeds=min(few), p_for=chances[0], p_against=chances[1])
    return _decided(found)


def _sure(part: Verdict) -> tuple[float, float]:
    """A part's p-values as far as they may decide something."""
    return (1.0, 1.0) if _has_few(part) else (part.p_for, part.p_against)


def _has_few(part: Verdict) -> bool:
    return 0 < part.seeds < ENOUGH  # 0: no seed decides it


def _gaps(one: Floats, other: Floats) -> Floats:
    """Differences seed by seed; where values differ only by rounding, 0."""
    one, other = floats(np.asarray(one, dtype=float)), floats(np.asarray(other, dtype=float))
    if one.shape != other.shape:
        raise ValueError(
            f"each seed is compared with itself: got {one.size} values and {other.size}"
        )
    with np.errstate(invalid="ignore"):  # infinity minus infinity is unknown
        gaps = one - other
        same = np.abs(gaps) <= ROUNDING * np.maximum(np.abs(one), np.abs(other))
    return floats(np.where(same & np.isfinite(gaps), 0.0, gaps))


def _above(least: Floats, most: Floats, by: float, unit: str) -> Verdict:
    """Differences that lie somewhere between `least` and `most` are above `by`."""
    least, most = _at(least, by), _at(most, by)
    count = len(least)
    agree, against = int((least > by).sum()), int((most < by).sum())
    found = Verdict("not decided", margin=by, unit=unit, seeds=count, agree=agree, against=against)
    if count == 0:
        return found
    if np.array_equal(least, most) and np.isfinite(least).all():
        return _decided(_by_interval(found, least, by))
    known = np.where(np.isfinite(least), least, most)
    known = known[np.isfinite(known)]
    effect = float(np.median(known)) if len(known) else nan
    # The smallest p-value that signs can have for five seeds is 1/32: 5 % on one side.
    chances = _signs(agree, count), _signs(against, count)
    return _decided(_with_chances(replace(found, effect=effect), *chances))


def _at(gaps: Floats, by: float) -> Floats:
    """The same differences; those that differ from `by` only by rounding become `by`."""
    return floats(np.where(np.abs(gaps - by) <= ROUNDING * abs(by), by, gaps))


def _by_interval(found: Verdict, gaps: Floats, by: float) -> Verdict:
    count = len(gaps)
    mean = float(_at(floats([np.mean(gaps)]), by)[0])
    if count < 2:
        return replace(found, effect=mean)
    error = float(np.std(gaps, ddof=1)) / sqrt(count)
    if error <= ROUNDING * max(abs(mean), abs(by)):  # all seeds say the same
        error = 0.0
    half = student(count - 1, 1 - (1 - LEVEL) / _looks(count)) * error
    found = replace(found, effect=mean, low=mean - half, high=mean + half)
    if error == 0.0:
        return _with_chances(found, float(mean <= by), float(mean >= by))
    p = tail((mean - by) / error, count - 1)
    return _with_chances(found, p, 1 - p)


def _with_chances(found: Verdict, p_for: float, p_against: float) -> Verdict:
    """The verdict with its p-values, each times the number of looks (Bonferroni)."""
    looks = _looks(found.seeds)
    return replace(found, p_for=min(1.0, looks * p_for), p_against=min(1.0, looks * p_against))


def _looks(seeds: int) -> int:
    """How often a claim with this many seeds has been judged by now."""
    return 1 if seeds <= FIRST_LOOK else 2


def _signs(count: int, of: int) -> float:
    """Half the chance that a fair coin falls this way at least that often: compared with CHANCE,
    it is a test at 5 % on one side.

    >>> _signs(5, 5), _signs(4, 5) < CHANCE, 2 * _signs(8, 8) < CHANCE, 2 * _signs(7, 8) < CHANCE
    (0.015625, False, True, False)
    """
    return float(sum(comb(of, k) for k in range(count, of + 1)) / 2 ** (of + 1))


def _decided(found: Verdict) -> Verdict:
    """The state that the p-values give."""
    if _has_few(found):
        return replace(found, state="not decided")
    if found.p_for < CHANCE:
        return replace(found, state="holds")
    return replace(found, state="does not hold" if found.p_against < CHANCE else "not decided")
