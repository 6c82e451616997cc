"""The rows of a covering array."""

from itertools import combinations

import pytest

from tests.pairs.cover import all_pairs, cover, pairs_of
from tests.pairs.options import FACTORS
from tests.pairs.suite import refused_pairs, rows

FEW = {"a": "01", "b": "012", "c": "0123", "d": "0123", "e": "01234"}


def test_every_pair_meets_in_a_row_and_there_are_not_many() -> None:
    made = cover(FACTORS)
    assert set().union(*map(pairs_of, made)) == set(all_pairs(FACTORS))
    sizes = sorted(len(values) for values in FACTORS.values())
    assert len(made) <= 1.2 * sizes[-1] * sizes[-2]


@pytest.mark.parametrize("seed", range(5))
def test_every_order_of_the_factors_makes_every_pair_meet(seed: int) -> None:
    made = cover(FEW, seed=seed)
    assert set().union(*map(pairs_of, made)) == set(all_pairs(FEW))
    assert made == cover(FEW, seed=seed) != cover(FEW, seed=seed + 1)


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


def test_the_rows_of_the_suite_hold_nothing_that_is_refused() -> None:
    refused = [frozenset(choice.items()) for choice in refused_pairs()]
    met = {frozenset(pair) for row in rows() for pair in combinations(row.items(), 2)}
    assert not met & set(refused)
