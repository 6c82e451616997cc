"""What it takes for a claim to hold."""

import numpy as np
import pytest

from sdfeel.figures.verdicts import all_of, any_of, close, exactly, more, no_less, report

LOW, HIGH = np.array([1.0, 1.1, 0.9]), np.array([2.0, 2.1, 1.9])
BROAD = np.array([0.0, 1.0, 2.2])  # its mean is a little above LOW's, its error is large


def test_a_difference_counts_beyond_the_pooled_standard_error() -> None:
    assert more(HIGH, LOW).state == "holds"
    assert more(LOW, HIGH).state == "does not hold"
    assert more(BROAD, LOW).state == "not decided"
    assert more(HIGH, LOW).effect == pytest.approx(1)
    assert more(HIGH, LOW).error == pytest.approx(np.sqrt(2 * 0.01 / 3))


def test_seeds_are_compared_with_themselves_too() -> None:
    shifted = BROAD + 0.1  # far less than the scatter, but every seed says so
    assert more(shifted, BROAD).state == "not decided"
    assert more(shifted, BROAD).alike == 3
    assert close(HIGH, LOW, within=1.05).alike == 3
    assert more(HIGH, LOW).alike == 3
    assert more(LOW, HIGH).alike == 0


def test_at_least_fails_only_when_clearly_below() -> None:
    assert no_less(HIGH, LOW).state == "holds"
    assert no_less(LOW, BROAD).state == "holds"
    assert no_less(LOW, HIGH).state == "does not hold"


def test_two_seeds_decide_nothing() -> None:
    assert more(HIGH[:2], LOW[:2]).state == "not decided"
    assert no_less(LOW[:2], HIGH[:2]).state == "not decided"
    assert close(LOW[:2], LOW[:2], 1.0).state == "not decided"


def test_close_is_within_a_distance() -> None:
    assert close(LOW, HIGH, within=1.2).state == "holds"
    assert close(LOW, HIGH, within=0.5).state == "does not hold"
    assert close(LOW, HIGH, within=0.95).state == "not decided"


def test_never_is_later_than_anything_and_never_against_never_is_open() -> None:
    never = np.full(3, np.inf)
    assert more(never, LOW).state == "holds"
    assert more(LOW, never).state == "does not hold"
    assert more(never, never).state == "not decided"


def test_a_chain_is_as_strong_as_its_weakest_part() -> None:
    parts = [more(HIGH, LOW).with_numbers(a=1), more(BROAD, LOW).with_numbers(b=2)]
    assert all_of(parts).state == "not decided"
    assert all_of(parts).numbers == {"a": 1, "b": 2}
    assert all_of([*parts, more(LOW, HIGH)]).state == "does not hold"
    assert any_of([*parts, more(LOW, HIGH)]).state == "holds"
    assert any_of([more(LOW, HIGH), more(BROAD, LOW)]).state == "not decided"


def test_what_is_exact_needs_no_seeds() -> None:
    assert exactly(True).state == "holds"
    assert exactly(False).state == "does not hold"
    assert report(seconds=3.0).state == "report only"
