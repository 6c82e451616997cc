"""Rules instead of sums, compared with versions written out number by number."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import InputError
from sdfeel.core.rules import (
    Clipped,
    ClippedSum,
    Geometric,
    Krum,
    Median,
    MultiKrum,
    Nearest,
    OwnRule,
    Parts,
    Rule,
    Scaled,
    Squares,
    Trimmed,
)
from sdfeel.engine.combine import combine, weighted
from tests.examples import examples

VOTED: list[Rule] = [
    *(Median(), Trimmed(0.3), Krum(2, 3), MultiKrum(0.3), Geometric(200), Clipped(2.0)),
    *(Clipped(None, 2), ClippedSum(1), Nearest(Median(), 0.3), Nearest(Trimmed(0.3), 0.3)),
]
BYZFL = json.loads(Path(__file__).with_name("byzfl.json").read_text())
SEEDS = examples(20)


def draw(seed: int, equal: bool = False) -> tuple[Floats, Floats]:
    """(N, 7) rows, some of which share numbers, and their votes."""
    draws = np.random.default_rng(seed)
    count = int(draws.integers(1, 12))
    rows = draws.normal(size=(count, 7)).round(1)
    votes = np.ones(count) if equal else draws.integers(1, 5, size=count).astype(float)
    return rows, votes / votes.sum()


def combined(rule: Rule, rows: Any, votes: Any, own: Any = None, weights: Any = None) -> Floats:
    given_rows = [torch.as_tensor(np.asarray(row, dtype=np.float64)) for row in rows]
    before = torch.zeros_like(given_rows[0]) if own is None else torch.as_tensor(own)
    votes = np.asarray(votes, dtype=np.float64)
    found = combine(rule, votes if weights is None else weights, votes, given_rows, before)
    out: Floats = found.numpy()
    return out


def median_of(values: Floats, votes: Floats) -> float:
    """The middle of all points from which no side has more than half of the votes."""
    half = votes.sum() / 2 + 1e-9
    middles = [
        v for v in values if votes[values < v].sum() <= half and votes[values > v].sum() <= half
    ]
    return float((min(middles) + max(middles)) / 2)


def trimmed_of(values: Floats, votes: Floats, share: float) -> float:
    """Every value as many times as it has 27720ths of the votes, and the ends cut off."""
    parts = np.repeat(np.sort(values), (votes[np.argsort(values)] * 27720).round().astype(int))
    cut = round(share * len(parts))
    return float(parts[cut : len(parts) - cut].mean())


@SEEDS
@given(st.integers(0, 10_000), st.booleans())
def test_the_median_is_every_numbers_weighted_median(seed: int, equal: bool) -> None:
    rows, votes = draw(seed, equal)
    expected = [median_of(column, votes) for column in rows.T]
    np.testing.assert_allclose(combined(Median(), rows, votes), expected, atol=1e-12)


@SEEDS
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.25, 0.4]))
def test_the_trimmed_mean_leaves_out_votes_at_both_ends(seed: int, share: float) -> None:
    rows, votes = draw(seed, equal=True)
    expected = [trimmed_of(column, votes, share) for column in rows.T]
    np.testing.assert_allclose(combined(Trimmed(share), rows, votes), expected, atol=1e-9)


def test_a_trimmed_vote_can_be_trimmed_in_part() -> None:
    """Votes 1/2, 1/4, 1/4 and 0.3 at either end: 0.2 of the first is left, and 0.2 of the next."""
    found = combined(Trimmed(0.3), [[0.0], [1.0], [10.0]], [0.5, 0.25, 0.25])
    np.testing.assert_allclose(found, [0.5])


def krum_of(rows: Floats, votes: Floats, liars: int, best: int) -> Floats:
    scores = []
    for i, row in enumerate(rows):
        apart = sorted(((row - other) ** 2).sum() for j, other in enumerate(rows) if j != i)
        scores.append(sum(apart[: max(1, len(rows) - liars - 2)]))
    picked = sorted(range(len(rows)), key=lambda i: (scores[i], i))[:best]
    mean: Floats = np.average(rows[picked], axis=0, weights=votes[picked])
    return mean


@SEEDS
@given(st.integers(0, 10_000), st.integers(0, 3), st.integers(1, 4))
def test_krum_takes_the_rows_with_the_nearest_neighbours(seed: int, liars: int, best: int) -> None:
    draws = np.random.default_rng(seed)
    rows = draws.normal(size=(int(draws.integers(1, 12)), 7))  # not rounded: no ties
    votes = draws.random(len(rows)) + 0.1
    expected = krum_of(rows, votes, liars, best)
    np.testing.assert_allclose(combined(Krum(liars, best), rows, votes), expected, atol=1e-12)


@SEEDS
@given(st.integers(0, 10_000))
def test_the_geometric_median_has_the_least_distance(seed: int) -> None:
    rows, votes = draw(seed)

    def distance(point: Floats) -> float:
        return float(votes @ np.linalg.norm(rows - point, axis=1))

    found = combined(Geometric(500), rows, votes)
    draws = np.random.default_rng(seed)
    nearby = [found + step * draws.normal(size=7) for step in (1e-3, 1e-2, 0.1, 1) for _ in "abc"]
    assert distance(found) <= min(map(distance, [*nearby, *rows])) + 1e-4


def test_the_geometric_median_leaves_a_row_that_is_not_it() -> None:
    """Four corners, and a row in the coordinatewise median that lies beside the centre."""
    rows = [[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0], [1.0, 1.0]]
    votes = [0.24, 0.24, 0.24, 0.24, 0.04]
    assert combined(Median(), rows, votes).tolist() == [1.0, 1.0]
    found = combined(Geometric(200), rows, votes)
    assert np.linalg.norm(found - [2.0, 2.0]) < 0.3


@SEEDS
@given(st.integers(0, 10_000))
def test_clipping_shortens_differences_to_the_own_row(seed: int) -> None:
    rows, votes = draw(seed)
    own = np.random.default_rng(seed + 1).normal(size=7)
    expected = own.copy()
    for row, vote in zip(rows, votes, strict=True):
        gap = row - own
        expected += vote * gap * min(1, 2.0 / np.linalg.norm(gap))
    np.testing.assert_allclose(combined(Clipped(2.0), rows, votes, own), expected, atol=1e-12)
    plain = weighted(zip(votes.tolist(), map(torch.from_numpy, rows), strict=True))
    np.testing.assert_allclose(combined(Clipped(1e9), rows, votes, own), plain, atol=1e-12)


@SEEDS
@given(st.integers(0, 10_000), st.sampled_from(VOTED))
def test_the_order_of_rows_makes_no_difference(seed: int, rule: Rule) -> None:
    draws = np.random.default_rng(seed)
    rows, votes = draws.normal(size=(9, 7)), draws.random(9) + 0.1
    own, order = draws.normal(size=7), draws.permutation(9)
    there, back = combined(rule, rows, votes, own), combined(rule, rows[order], votes[order], own)
    np.testing.assert_allclose(there, back, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("median", Median()),
        ("trimmed-mean", Trimmed(2 / 9)),
        ("krum", Krum(2)),
        ("multi-krum", MultiKrum(2 / 9)),
        ("geometric-median", Geometric(2000)),
        ("centred-clipping", Clipped(1.5, 3)),
        ("nearest, then median", Nearest(Median(), 2 / 9)),
    ],
)
def test_rules_agree_with_byzfl(name: str, rule: Rule) -> None:
    """`make test-byzfl` records what byzfl makes of the same rows."""
    found = combined(rule, BYZFL["rows"], np.full(9, 1 / 9))
    expected = BYZFL["rules"].get(name, BYZFL.get(name))
    np.testing.assert_allclose(found, expected, atol=1e-7)


@SEEDS
@given(st.integers(0, 10_000), st.integers(0, 2))
def test_liars_add_at_most_what_cs_takes_from_the_honest(seed: int, liars: int) -> None:
    """Gaucher et al. 2025: off by at most the root of 2 b sum w |gap|^2 over the honest."""
    draws = np.random.default_rng(seed)
    rows, own = draws.normal(size=(7, 5)), draws.normal(size=5)
    weights = draws.random(7) + 0.1
    lying = draws.permutation(7)[:liars]
    honest = np.setdiff1d(np.arange(7), lying)
    rows[lying] = own + draws.normal(size=(liars, 5)) * draws.choice([0.5, 3, 1e6])
    found = combined(ClippedSum(liars), rows, weights, own) - own
    gaps = rows[honest] - own
    off = np.linalg.norm(found - weights[honest] @ gaps)
    trusted = np.sort(weights)[::-1][:liars].sum()  # the most that this many could weigh
    bound = np.sqrt(2 * trusted * (weights[honest] * (gaps**2).sum(axis=1)).sum())
    clipped = weights.max() * np.linalg.norm(gaps, axis=1).max()  # where 2 b falls into a weight
    assert off <= bound + (clipped if liars else 0) + 1e-9


def test_a_server_with_too_few_neighbours_moves_by_the_shorter_difference() -> None:
    rows = [[0.0], [2.0], [-100.0]]  # itself, a neighbour, and one that may lie
    assert combined(ClippedSum(1), rows, [0.4, 0.3, 0.3], [0.0]).tolist() == [0.0]
    assert combined(ClippedSum(0), rows, [0.4, 0.3, 0.3], [0.0]) == pytest.approx([-29.4])
    assert combined(ClippedSum(1), rows[:2], [0.4, 0.3], [0.0]).tolist() == [0.0]


def test_a_server_that_trusts_itself_most_still_listens() -> None:
    """The median length is one of what others send: its own row is at no distance."""
    found = combined(Clipped(None), [[0.0], [1.0], [3.0]], [0.6, 0.2, 0.2], [0.0])
    assert found == pytest.approx([0.2 * 1 + 0.2 * 2])


@SEEDS
@given(st.integers(0, 10_000))
def test_each_row_is_mixed_with_those_most_like_it(seed: int) -> None:
    draws = np.random.default_rng(seed)
    rows = draws.normal(size=(8, 7))
    rows[draws.integers(8)] *= 1e9  # which must not cost the others their digits
    apart = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    expected = np.stack([rows[np.argsort(each)[:6]].mean(axis=0) for each in apart])
    found: list[Floats] = []

    def seen(messages: Floats, votes: Floats, own: Floats) -> Floats:
        found.append(messages)
        return own

    combined(Nearest(OwnRule(seen), 0.25), rows, np.full(8, 1 / 8))
    np.testing.assert_allclose(found[0], expected, rtol=1e-9, atol=1e-9)


def test_a_rule_of_ones_own_must_give_a_model() -> None:
    with pytest.raises(InputError, match=r"a rule must give 2 numbers, .* gave an array of \(1,\)"):
        combined(OwnRule(lambda messages, votes, own: own[:1]), [[1.0, 2.0]], [1.0])


@pytest.mark.parametrize("rule", [Median(), Trimmed(0.2)])
def test_equal_numbers_stay_in_the_order_of_their_rows(rule: Rule) -> None:
    """Sorting must not decide whose vote is trimmed where many numbers are the same."""
    draws = np.random.default_rng(4)
    rows, votes = draws.integers(0, 3, size=(50, 3000)).astype(float), draws.random(50)
    votes /= votes.sum()
    whole = combined(rule, rows, votes)
    assert (
        whole.tolist()
        == np.concatenate(
            [combined(rule, rows[:, n : n + 7], votes) for n in range(0, 3000, 7)]
        ).tolist()
    )


LIES: list[Callable[[Floats], Floats]] = [
    lambda row: row + 3e38,
    lambda row: -1e6 * row,
    lambda row: np.full_like(row, np.inf),
    lambda row: np.full_like(row, np.nan),
]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    "rule",
    [
        *(Median(), Trimmed(0.4), Krum(4, 1), Krum(4, 3), MultiKrum(0.4), Geometric(20)),
        *(Clipped(0.5), Clipped(None, 3), Nearest(Median(), 0.4), Nearest(Trimmed(0.4), 0.4)),
    ],
)
def test_liars_that_are_few_enough_change_little(
    rule: Rule, lie: Callable[[Floats], Floats]
) -> None:
    draws = np.random.default_rng(3)
    honest = 1 + 0.1 * draws.normal(size=(11, 50))
    rows = honest.copy()
    for liar in (0, 3, 5, 9):
        rows[liar] = lie(rows[liar])
    found = combined(rule, rows, np.full(11, 1 / 11), own=np.ones(50))
    assert np.linalg.norm(found - 1) < 2


@pytest.mark.parametrize("rule", [Median(), Geometric(50)])
def test_the_majority_of_votes_decides_not_that_of_rows(rule: Rule) -> None:
    rows = [[0.0, 0.0], [5.0, 5.0], [5.1, 5.2]]
    np.testing.assert_allclose(combined(rule, rows, [0.6, 0.2, 0.2]), [0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("rule", VOTED)
def test_one_row_alone_stays_as_it_is(rule: Rule) -> None:
    row = np.array([1.5, -2.0, 0.25])
    np.testing.assert_allclose(combined(rule, [row], [1.0], own=row), row, atol=1e-15)


@pytest.mark.parametrize("rule", VOTED)
def test_without_any_vote_the_own_row_stays(rule: Rule) -> None:
    own = np.array([1.0, 2.0])
    assert combined(rule, [[np.nan, 0.0], [1.0, np.inf]], [0.5, 0.5], own).tolist() == [1.0, 2.0]
    assert combined(rule, [[3.0, 0.0]], [0.0], own).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("rule", [Median(), Trimmed(), Krum(), Geometric(), Nearest(Median())])
def test_negative_votes_are_refused(rule: Rule) -> None:
    with pytest.raises(
        InputError, match=r"counts votes, but one of them is -0\.2: choose mixing weights"
    ):
        combined(rule, [[1.0], [2.0]], [1.2, -0.2])


def test_weights_over_votes_scale_the_messages() -> None:
    """As FedNova's: a third of the votes each, and updates that count by their steps."""
    rows, votes = [[1.0], [2.0], [6.0]], np.full(3, 1 / 3)
    weights = votes * np.array([6.0, 2.0, 1.0])
    assert combined(Median(), rows, votes, weights=weights) == pytest.approx([6.0])
    assert combined(Clipped(1e9), rows, votes, weights=weights) == pytest.approx([16 / 3])


def test_parts_come_from_the_first_term_and_the_rest_from_all_others() -> None:
    rows = [[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0], [30.0, 40.0, 50.0, 60.0]]
    found = combined(Parts(((0, 1), (2, 3))), rows, [1.0, 0.5, 0.5])
    assert found.tolist() == [1.0, 30.0, 3.0, 50.0]


def test_a_servers_steps_are_those_of_reddi_and_others() -> None:
    """Adaptive Federated Optimization, 2021, algorithm 2, written out for one number."""
    before, now, v, m = 2.0, 5.0, 4.0, 1.5
    move = (now - before) ** 2
    moments = {
        "adam": 0.9 * v + 0.1 * move,
        "yogi": v - 0.1 * move * np.sign(v - move),
        "adagrad": v + move,
    }
    for kind, expected in moments.items():
        rule = Squares(0.9, kind)  # type: ignore[arg-type]
        assert combined(rule, [[before], [now]], [1.0, 1.0], own=[v]) == pytest.approx([expected])
    found = combined(Scaled(0.1, 0.5), [[v], [m], [before]], [1.0] * 3, own=[now])
    assert found == pytest.approx([before + 0.1 * m / (2 + 0.5)])


def test_the_result_has_the_models_own_type() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])]
    found: Tensor = combine(Median(), np.ones(2) / 2, np.ones(2) / 2, rows, rows[0])
    assert found.dtype == torch.float32
    assert found.tolist() == [2.0, 3.5]
    assert [row.tolist() for row in rows] == [[1.0, 2.0], [3.0, 5.0]]


@pytest.mark.parametrize("rule", [Median(), Trimmed(0.3), Geometric(2)])
@pytest.mark.parametrize("size", [1, 2, 1025])
def test_narrow_rows_give_what_wide_ones_do(rule: Rule, size: int) -> None:
    """float32 rows are sorted another way: with ties, zeros of both signs and unequal votes."""
    draws = np.random.default_rng(size)
    rows = draws.normal(size=(9, size)).round(1).astype(np.float32)
    rows[draws.random(rows.shape) < 0.3] = -0.0
    for votes in (np.full(9, 1 / 9), draws.integers(1, 5, size=9) / 30):
        narrow = [torch.from_numpy(row) for row in rows]
        found = combine(rule, votes, votes, narrow, torch.zeros(size))
        wide = combined(rule, rows, votes)
        assert np.array_equal(found.numpy(), wide.astype(np.float32))
