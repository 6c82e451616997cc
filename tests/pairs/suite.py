"""All combinations that are tried, and what is found."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from sdfeel.core.events import Event
from tests.pairs.cover import Pair, cover
from tests.pairs.known import KNOWN, Known
from tests.pairs.options import FACTORS, Choice, Place, names, parsed, text
from tests.pairs.trial import (
    Refused,
    Violated,
    Violation,
    check,
    events_of,
    prepared_or_refused,
    tells_the_same,
)

BRIEF = ("training.iterations=8",)  # what has an effect has it soon
REFUSED = Path(__file__).with_name("refused.txt")
# What does not depend on the scheme, and what tests/experiment/test_effects.py and, of draws,
# tests/schemes/test_sampling.py try with all of them, is tried with two.
TOGETHER = (
    *("model", "partition", "optimizer", "training", "engine", "evaluation", "stop", "preset"),
    *("outages", "schedule", "uplink", "backhaul", "channel", "fading", "links"),
    *("devices", "clusters", "overlap", "graph", "attack", "sampling"),
)
# Where an option rightly changes nothing: values, schemes, and why.
NOTHING_TO_DO: list[tuple[str, str, str]] = [
    ("late=drop", "multi-level joint fednova fedsa fedcs", "everybody keeps the deadline"),
    ("late=drop-unbiased", "multi-level fednova", "everybody keeps the deadline"),
    ("late=equalise", "fednova", "all begin to send at once, on equal channels"),
    ("counted=consensus", "hierfavg fogfl", "servers that have just met agree"),
    ("graph=path schedule=link", "fogfl", "the nearest server is as near as before"),
]
PLAIN = [name for name, settings in FACTORS["scheme"].items() if settings[0].endswith(f"={name}")]


@dataclass(frozen=True)
class Found:
    """A violation, and the fewest options that show it."""

    choice: str
    violation: Violation

    def __str__(self) -> str:
        return f"{self.violation}\n    python -m tests.pairs --only '{self.choice}'"


def judged(
    place: Place, choice: Choice, directory: Path, stop_at: float | None = 0.5, slack: float = 0.0
) -> list[Found]:
    """A combination is refused with a reason, or it must run as it should.

    Where two of its options are refused, the others are tried without the one and without the
    other, so that no pair goes untried because of its company.
    """
    found: list[Found] = []
    left, seen = [choice], set[str]()
    while left:
        row = left.pop()
        if text(row) in seen:
            continue
        seen.add(text(row))
        try:
            wrong = check(place, row, directory, stop_at, slack)
            found += [Found(text(row), each) for each in wrong]
        except Refused:
            culprits = fewest(place, row)
            found += [Found(text(culprits), each) for each in of_refusal(place, culprits)]
            if len(row) > 2:  # a pair hides no other
                left += [without(row, factor) for factor in culprits]
    return [each for each in found if not excused(parsed(each.choice), each.violation.kind)]


def fewest(place: Place, choice: Choice) -> Choice:
    """The part of a refused combination that is refused on its own.

    First halves of it are left out, then quarters, and in the end single options.
    """
    size = len(choice)
    while size := size // 2:
        factors = list(choice)
        for first in range(0, len(factors), size):
            fewer = without(choice, *factors[first : first + size])
            if prepared_or_refused(place, fewer) is not None:
                choice = fewer
    return choice


def without(choice: Choice, *factors: str) -> Choice:
    return {f: value for f, value in choice.items() if f not in factors}


def of_refusal(place: Place, choice: Choice) -> Iterator[Violation]:
    """A refusal is one sentence that names what clashes."""
    sentence = prepared_or_refused(place, choice)
    if sentence is None:
        return
    if "\n" in sentence or len(sentence) > 400:
        yield Violation("refusal", f"this is not one sentence: {sentence}")
    if len(choice) < 2:
        yield Violation("refusal", f"refused by itself: {sentence}")
    told = {
        f"{factor}={value}": any(word in sentence.lower() for word in names(factor, value))
        for factor, value in choice.items()
    }
    # That even the fastest client misses a deadline may have any cause: the figures show the way.
    slow = "even the fastest client needs" in sentence
    if sum(told.values()) < 2 and not slow:  # of three that clash, two show the way out
        unnamed = ", ".join(option for option, named in told.items() if not named)
        yield Violation("refusal", f"it does not name {unnamed}: {sentence}")


def ignored(place: Place, scheme: str, factor: str, value: str, directory: Path) -> list[Found]:
    """An option must change what happens, or a note must say that it does not."""
    choice = {"scheme": scheme, factor: value}
    found = [] if excused(choice, "ignored") else _ignored(place, scheme, factor, value, directory)
    return [each for each in found if not excused(choice, each.violation.kind)]


def _ignored(place: Place, scheme: str, factor: str, value: str, directory: Path) -> list[Found]:
    choice = {"scheme": scheme, factor: value}
    place = replace(place, base=(*place.base, *BRIEF))
    try:
        if not tells_the_same(place, choice, directory, usual(place, scheme)):
            return []
    except Refused:
        return []
    except Violated as error:
        return [Found(text(choice), error.violation)]
    said = "the run is the same without it, and no note says so"
    return [Found(text(choice), Violation("ignored", said))]


@cache
def usual(place: Place, scheme: str) -> list[Event]:
    """What happens with all other options at their defaults."""
    return events_of(place, {"scheme": scheme}, place.files / "usual")


def still_wrong(place: Place, known: Known, directory: Path) -> bool:
    """Do the options of an entry show its violation on their own?"""
    choice = parsed(known.choice)
    if known.kind == "ignored":
        (option,) = choice.items()
        return any(
            found.violation.kind == "ignored"
            for scheme in reversed(PLAIN)
            if not _nothing_to_do(scheme, known.choice)
            for found in _ignored(place, scheme, *option, directory)
        )
    try:
        return known.kind in {each.kind for each in check(place, choice, directory)}
    except Refused:
        return known.kind in {each.kind for each in of_refusal(place, choice)}


def excused(choice: Choice, kind: str) -> bool:
    return any(
        known.kind == kind and parsed(known.choice).items() <= choice.items() for known in KNOWN
    )


@cache
def refused_pairs() -> list[Choice]:
    """Pairs that were refused when the list was last written."""
    return [parsed(line) for line in REFUSED.read_text().splitlines()]


@cache
def rows() -> list[Choice]:
    """Every pair meets in one of these, but for those that are refused."""
    never: list[Pair] = [frozenset(choice.items()) for choice in refused_pairs()]
    return cover(FACTORS, never)


@cache
def few() -> list[int]:
    """Numbers of rows with a value that no row before them has: every value is in one of them."""
    seen = set[tuple[str, str]]()
    kept = []
    for n, row in enumerate(rows()):
        if row.items() - seen:
            kept.append(n)
            seen |= row.items()
    return kept


def alone() -> list[tuple[str, str, str]]:
    """Scheme, factor and value: what may be ignored silently.

    One value for each set of keys.
    """
    return [
        (scheme, factor, value)
        for factor in FACTORS
        if factor != "scheme"
        for value in _by_keys(factor)
        for scheme in (PLAIN if factor not in TOGETHER else ["sd-feel", "fedasync"])
        if not _nothing_to_do(scheme, f"{factor}={value}")
    ]


def _by_keys(factor: str) -> list[str]:
    if factor == "late":  # one key, but every value is a separate case
        return list(FACTORS[factor])[1:]
    keys = {
        tuple(setting.partition("=")[0] for setting in settings): value
        for value, settings in FACTORS[factor].items()
    }
    return [value for settings, value in keys.items() if settings]


def _nothing_to_do(scheme: str, option: str) -> bool:
    return any(
        option in options.split() and scheme in schemes.split()
        for options, schemes, _ in NOTHING_TO_DO
    )
