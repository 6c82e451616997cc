"""The rows of a covering array."""

from itertools import combinations

import pytest

from tests.pairs.cover import all_pairs, cover, pairs_of
from tests.pairs.options import FACTORS
from tests.pairs.suite import refused_pairs, rows


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_pair_meets_in_a_row(seed: int) -> None:
    made = cover(FACTORS, seed=seed)
    assert set().union(*map(pairs_of, made)) == set(all_pairs(FACTORS))


def test_there_are_not_many_more_rows_than_the_two_largest_factors_need() -> None:
    sizes = sorted(len(values) for values in FACTORS.values())
    assert len(cover(FACTORS)) <= 1.2 * sizes[-1] * sizes[-2]


def test_pairs_that_are_refused_meet_nowhere_and_all_others_do() -> None:
    factors = {name: "0123" for name in "abcdef"}
    never = {frozenset({("a", "0"), (name, "1")}) for name in "bcdef"}
    made = cover(factors, never)
    assert set().union(*map(pairs_of, made)) == set(all_pairs(factors)) - never


def test_a_value_that_everyone_refuses_meets_nobody() -> None:
    never = [frozenset({("a", "1"), ("b", b)}) for b in "01"]
    assert all(
        {"a", "b"} - row.keys() or row["a"] == "0"
        for row in cover({"a": "01", "b": "01", "c": "01"}, never)
    )


def test_the_same_rows_come_every_time() -> None:
    assert rows() == rows()


def test_the_rows_of_the_suite_hold_nothing_that_is_refused() -> None:
    refused = [frozenset(choice.items()) for choice in refused_pairs()]
    met = {frozenset(pair) for row in rows() for pair in combinations(row.items(), 2)}
    assert not met & set(refused)
