"""What it takes for a claim to hold."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.figures.verdicts import (
    Verdict,
    all_of,
    any_of,
    close,
    each,
    exactly,
    more,
    no_less,
    report,
    sooner,
)

LOW = np.array([1.0, 1.1, 0.9, 1.0, 1.05])
HIGH = LOW + np.array([1.0, 1.1, 0.9, 1.0, 1.05])
SCATTERED = np.array([0.0, 10.0, 20.0, 30.0, 40.0])  # far more than any difference below
MIRROR = {"holds": "does not hold", "does not hold": "holds", "not decided": "not decided"}
seeds = st.lists(st.floats(-100, 100), min_size=3, max_size=8)


def states(*found: Verdict) -> list[str]:
    return [verdict.state for verdict in found]


def test_at_least_does_not_hold_when_every_seed_is_against_it() -> None:
    # The scatter between seeds is large, but each is below its partner by five margins.
    assert states(no_less(SCATTERED - 0.5, SCATTERED, margin=0.1)) == ["does not hold"]
    assert states(no_less(SCATTERED + 0.5, SCATTERED, margin=0.1)) == ["holds"]


def test_as_good_as_does_not_hold_when_no_seed_is_near() -> None:
    one, other = np.array([0.0, 2.0, 0.0, 2.0, 1.0]), np.array([2.0, 0.0, 2.0, 0.0, 1.0])
    assert one.mean() == other.mean()
    assert states(close(one, other, within=0.5)) == ["not decided"]
    assert states(close(one + 9, one, within=0.5)) == ["does not hold"]
    assert states(close(one, one + 9, within=0.5)) == ["does not hold"]
    assert states(close(one + 0.1, one, within=0.5)) == ["holds"]


def test_one_seed_that_never_arrives_is_not_an_infinite_mean() -> None:
    times, others = np.array([5.0, 5.0, 5.0, 5.0, 5.0]), np.array([4.0, 4.0, 4.0, 4.0, inf])
    assert states(more(others, times)) == ["not decided"]
    assert states(more(times, others)) == ["not decided"]
    assert states(sooner(times, others, until=9.0)) == ["not decided"]
    assert states(sooner(others, times, until=9.0)) == ["not decided"]


def test_a_constant_difference_is_decided_however_far_apart_the_seeds_are() -> None:
    shifted = SCATTERED + 0.1
    assert states(more(shifted, SCATTERED), more(SCATTERED, shifted)) == [
        "holds",
        "does not hold",
    ]
    assert more(shifted, SCATTERED).agree == 5
    assert more(SCATTERED, shifted).against == 5


@given(seeds, st.integers(0, 2**32 - 1), st.floats(0, 5))
def test_what_is_swapped_is_judged_the_other_way_round(
    values: list[float], draw: int, by: float
) -> None:
    one = np.array(values)
    other = one + np.random.default_rng(draw).normal(1, 2, len(one))
    there, back = more(one, other), more(other, one)
    assert back.state == MIRROR[there.state]
    assert (back.effect, back.agree, back.against) == (-there.effect, there.against, there.agree)
    assert close(one, other, by + 0.1).state == close(other, one, by + 0.1).state
    at_least, above = no_less(one, other, by), more(other, one, by=by)
    assert above.state == MIRROR[at_least.state]  # "not below by a margin" denies "above by it"


@given(seeds, st.floats(0.01, 5))
def test_intervals_decide_and_nothing_else(values: list[float], margin: float) -> None:
    gaps, zero = np.array(values), np.zeros(len(values))
    found, within = no_less(gaps, zero, margin), close(gaps, zero, margin)
    assert found.low <= found.effect <= found.high
    assert (found.state == "holds") == (found.low > -margin)
    assert (found.state == "does not hold") == (found.high < -margin)
    if within.state == "holds":
        assert -margin < within.low
        assert within.high < margin
    assert more(gaps, zero, by=margin).margin == margin


@given(seeds, st.integers(0, 2**32 - 1))
def test_two_halves_of_a_wrong_claim_seldom_hold_together(values: list[float], draw: int) -> None:
    one = np.array(values)
    other = one + np.random.default_rng(draw).normal(0, 1, len(one))
    there, back = more(one, other), more(other, one)
    assert all_of([there, back]).state != "holds"
    assert any_of([there, back]).state != "does not hold"


def test_an_effect_size_must_be_passed_by_the_whole_interval() -> None:
    assert states(more(HIGH, LOW, by=0.5), more(HIGH, LOW, by=1.0), more(HIGH, LOW, by=2.0)) == [
        "holds",
        "not decided",
        "does not hold",
    ]


def test_two_seeds_decide_nothing() -> None:
    pair = (HIGH[:2], LOW[:2])
    found = (more(*pair), no_less(*pair, 0.1), close(*pair, 5.0), sooner(*pair, 9.0))
    assert states(*found, each([True, True])) == ["not decided"] * 5


def test_times_that_are_all_known_are_compared_by_their_interval() -> None:
    assert states(sooner(LOW, HIGH, until=9.0), sooner(HIGH, LOW, until=9.0)) == [
        "holds",
        "does not hold",
    ]
    # Half of the time is saved: a fifth is, two thirds are not.
    assert sooner(LOW, 2 * LOW, until=9.0, saving=0.2).state == "holds"
    assert sooner(LOW, 2 * LOW, until=9.0, saving=0.66).state == "does not hold"


def test_never_is_later_than_anything_and_never_against_never_is_open() -> None:
    never, times = np.full(5, inf), np.array([1.0, 4.0, 7.0, 2.0, 8.0])
    assert states(sooner(times, never, until=9.0), sooner(never, times, until=9.0)) == [
        "holds",
        "does not hold",
    ]
    assert sooner(never, never, until=9.0).state == "not decided"
    # Four of five seeds arrive, the others never: a coin does that too often.
    assert sooner(np.array([1, 2, 3, 4, inf]), never, until=9.0).state == "not decided"
    # A fifth less than "later than 9" is certain only for those who were there by 7.2.
    assert sooner(times, never, until=9.0, saving=0.2).agree == 4


def test_three_seeds_are_too_few_where_only_signs_are_known() -> None:
    assert sooner(LOW[:3], np.full(3, inf), until=9.0).state == "not decided"
    assert each([True] * 3).state == "not decided"
    assert states(each([True] * 5), each([False] * 5), each([True] * 4 + [False])) == [
        "holds",
        "does not hold",
        "not decided",
    ]


def test_a_second_look_must_be_twice_as_clear() -> None:
    gaps = np.array([1.0, -1.0, 0.5, 1.5, 2.0, -0.5, 1.0, 0.9])
    first, second = more(gaps[:5] - gaps[:5].mean() + 1.2, np.zeros(5)), more(gaps, np.zeros(8))
    half = 2.841 * gaps.std(ddof=1) / np.sqrt(8)  # Student's, 97.5 %, 7 degrees of freedom
    assert second.high - second.effect == pytest.approx(half, rel=1e-3)
    assert first.high - first.effect == pytest.approx(
        2.776 * gaps[:5].std(ddof=1) / np.sqrt(5), 1e-3
    )
    # 95 % would have held: the mean is between the two intervals' half widths.
    shifted = gaps - gaps.mean() + 0.93 * half
    assert 2.365 / 2.841 < 0.93
    assert more(shifted, np.zeros(8)).state == "not decided"
    assert more(gaps - gaps.mean() + 1.01 * half, np.zeros(8)).state == "holds"
    assert states(each([True] * 8), each([False] * 8), each([True] * 7 + [False])) == [
        "holds",
        "does not hold",
        "not decided",
    ]


def test_looking_twice_misleads_no_more_often_than_promised() -> None:
    """Where nothing differs, five seeds and then eight find something in 7.5 % of cases at most."""
    draws, found = np.random.default_rng(5).standard_normal((4000, 8)), 0
    for gaps in draws:
        at_five = more(gaps[:5], np.zeros(5)).state
        found += at_five != "not decided" or more(gaps, np.zeros(8)).state != "not decided"
    assert 0.05 < found / len(draws) < 0.075


def test_a_run_that_diverged_loses_and_two_of_them_are_open() -> None:
    lost = np.array([inf, inf, inf, inf, inf])  # the loss
    assert states(more(lost, LOW), more(LOW, lost), more(lost, lost)) == [
        "holds",
        "does not hold",
        "not decided",
    ]
    assert more(np.full(5, nan), LOW).state == "not decided"


def test_a_chain_is_as_strong_as_its_weakest_part() -> None:
    open_one = more(SCATTERED, np.full(5, 20.0)).with_numbers(b=2)
    parts = [more(HIGH, LOW).with_numbers(a=1), open_one]
    assert all_of(parts).state == "not decided"
    assert all_of(parts).numbers == {"a": 1, "b": 2}
    assert all_of([*parts, more(LOW, HIGH)]).state == "does not hold"
    assert all_of([more(HIGH, LOW)] * 3).state == "holds"
    assert any_of([*parts, more(LOW, HIGH)]).state == "holds"
    assert any_of([more(LOW, HIGH), open_one]).state == "not decided"


def test_the_more_parts_there_are_the_clearer_one_of_them_must_be() -> None:
    slightly = np.array([0.1, 0.2, 0.3, 0.4, 0.1])
    slightly = slightly - slightly.mean() + 0.17  # holds alone, with p of about 0.02
    open_one = more(SCATTERED, np.full(5, 20.0))
    alone = more(slightly, np.zeros(5))
    assert alone.state == "holds"
    assert any_of([alone, *[open_one] * 4]).state == "not decided"
    assert all_of([more(-slightly, np.zeros(5)), *[open_one] * 4]).state == "not decided"


@pytest.mark.parametrize("true", [True, False])
def test_what_is_exact_needs_no_seeds(true: bool) -> None:
    assert exactly(true).state == ("holds" if true else "does not hold")
    assert all_of([exactly(true), exactly(True)]).state == exactly(true).state
    assert any_of([exactly(true), exactly(False)]).state == exactly(true).state
    assert report(seconds=3.0).state == "report only"


sizes = st.floats(0.001, 5)


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=8), sizes)
def test_a_difference_of_exactly_the_margin_is_open_however_it_is_rounded(
    values: list[float], margin: float
) -> None:
    here = np.array(values)
    there = here + margin
    assert (
        states(
            close(here, there, margin),
            close(there, here, margin),
            no_less(here, there, margin),
            more(there, here, by=margin),
            more(here * (1 + 1e-15), here),
        )
        == ["not decided"] * 5
    )


@given(
    st.lists(st.floats(1, 30), min_size=5, max_size=5),
    st.lists(st.floats(1, 30), min_size=5, max_size=5),
    st.floats(0, 0.5),
)
def test_what_happens_after_the_window_changes_no_verdict(
    early: list[float], late: list[float], saving: float
) -> None:
    until = 10.0
    one, other = np.array(early), np.array(late)
    first, second = (np.where(times <= until, times, inf) for times in (one, other))
    assert str(sooner(one, other, until, saving=saving)) == str(
        sooner(first, second, until, saving=saving)
    )
    # And it says nothing that the times themselves contradict in every seed.
    if (one < (1 - saving) * other).all():
        assert sooner(one, other, until, saving=saving).state != "does not hold"


@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 5, 8]), min_size=1, max_size=4),
    st.sampled_from([-1.0, 1.0]),
)
def test_seeds_that_decide_nothing_alone_decide_nothing_as_parts(
    counts: list[int], sign: float
) -> None:
    """A whole is decided as if parts with too few seeds could fall either way."""
    parts = [
        more(np.full(n, sign), np.zeros(n)) if n else exactly(sign > 0) for n in counts
    ]  # all as clear as can be
    few = any(0 < n < 3 for n in counts)
    # One part that is sure is enough to prove an `any` and to refute an `all`.
    sure = any(n not in (1, 2) for n in counts)
    wanted = "holds" if sign > 0 else "does not hold"
    easy, hard = (any_of, all_of) if sign > 0 else (all_of, any_of)
    assert easy(parts).state == (wanted if sure else "not decided")
    assert hard(parts).state == ("not decided" if few else wanted)
    assert hard([exactly(sign > 0), hard(parts)]).state == ("not decided" if few else wanted)


def test_each_seed_is_compared_with_itself() -> None:
    with pytest.raises(ValueError, match="each seed is compared with itself: got 5 values and 1"):
        more(LOW, HIGH[:1])


def test_nothing_is_judged_without_seeds() -> None:
    none = np.array([])
    found = (more(none, none), close(none, none, 0.1), each([]), sooner(none, none, 9.0))
    assert states(*found) == ["not decided"] * 4


def test_a_whole_of_many_parts_misleads_no_more_often_than_one() -> None:
    """Five parts of which each is true by chance alone: one in forty is refuted, or proven."""
    draws, found = np.random.default_rng(7).standard_normal((2000, 5, 5)), []
    for gaps in draws:
        parts = [more(own, np.zeros(5)) for own in gaps]
        found.append((all_of(parts).state, any_of(parts).state))
    assert np.mean([state == "does not hold" for state, _ in found]) < 0.035
    assert np.mean([state == "holds" for _, state in found]) < 0.035
