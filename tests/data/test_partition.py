"""Every rule: disjoint, complete, deterministic, nobody empty; and what each one promises."""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError
from sdfeel.data.partition import (
    ALIASES,
    PARTITIONS,
    Members,
    _dealt,
    dirichlet,
    exact_classes,
    holdings,
    iid,
    shards,
    skew,
    split,
)
from tests.examples import examples

MNIST_SIZES = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def shuffled(sizes: tuple[int, ...], seed: int = 0) -> Ints:
    return rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def mnist_like() -> Ints:
    return shuffled(MNIST_SIZES)


def check_parts(parts: list[Ints], clients: int, examples: int, lost: int = 0) -> None:
    """Disjoint, in range, nobody empty, each sorted, and at most `lost` examples left out."""
    assert len(parts) == clients
    assert all(len(part) for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < examples
    assert examples - lost <= len(everything)


@pytest.mark.parametrize("name", [*PARTITIONS, *ALIASES])
@given(
    sizes=st.lists(st.integers(60, 90), min_size=2, max_size=6),
    clients=st.integers(3, 12),
    seed=st.integers(0, 2**32),
)
@examples(15)
def test_every_rule_splits_without_overlap_and_repeats_itself(
    name: str, sizes: list[int], clients: int, seed: int
) -> None:
    labels = shuffled(tuple(sizes), seed)

    def once() -> list[Ints]:
        return split(labels, clients, rng(seed), partition=name, concentration=2.0, min_size=1)

    parts = once()
    check_parts(parts, clients, len(labels), lost=2 * clients - 1 if "shard" in name else 0)
    assert all(map(np.array_equal, parts, once()))


def test_another_seed_gives_another_split() -> None:
    labels = mnist_like()
    for name in PARTITIONS:
        one, two = (split(labels, 50, rng(seed), partition=name) for seed in (1, 2))
        assert not all(map(np.array_equal, one, two))


@given(seed=st.integers(0, 2**32), clients=st.integers(1, 7))
def test_iid_sizes_differ_by_one_at_most(seed: int, clients: int) -> None:
    sizes = [len(part) for part in iid(np.zeros(31, dtype=np.int64), clients, rng(seed))]
    assert max(sizes) - min(sizes) <= 1


@given(data=st.data())
@examples(40)
def test_every_client_holds_exactly_the_classes_it_should(data: st.DataObject) -> None:
    classes = data.draw(st.integers(1, 8))
    per_client = data.draw(st.integers(1, classes))
    fewest = -(-classes // per_client)
    clients = data.draw(st.integers(fewest, 25))
    sizes = data.draw(st.lists(st.integers(25, 60), min_size=classes, max_size=classes))
    seed = data.draw(st.integers(0, 2**32))
    labels = shuffled(tuple(sizes), seed)

    parts = exact_classes(labels, clients, per_client, rng(seed))

    check_parts(parts, clients, len(labels))
    counts = holdings(labels, parts, classes)
    assert ((counts > 0).sum(axis=1) == per_client).all()
    owners = (counts > 0).sum(axis=0)
    assert owners.max() - owners.min() <= 1
    for k in range(classes):
        shares = counts[counts[:, k] > 0, k]
        assert shares.max() - shares.min() <= 1


def test_exact_classes_on_mnist_sizes_agrees_with_the_specification() -> None:
    labels = mnist_like()
    counts = holdings(labels, exact_classes(labels, 50, 2, rng()), 10)
    assert ((counts > 0).sum(axis=0) == 10).all()
    assert counts.sum(axis=1).min() >= 1084  # two shares of the smallest class
    assert counts.sum(axis=1).max() <= 1350  # two shares of the largest
    pairs = {tuple(np.flatnonzero(row)) for row in counts}
    assert len(pairs) > 20  # of 45: dealt at random, not in turn


@pytest.mark.parametrize("per_client", [1, 9, 10])
def test_exact_classes_copes_with_the_extremes(per_client: int) -> None:
    labels = mnist_like()
    counts = holdings(labels, exact_classes(labels, 50, per_client, rng()), 10)
    assert ((counts > 0).sum(axis=1) == per_client).all()


def test_exact_classes_takes_label_numbers_as_they_come() -> None:
    labels = np.array([7, -3, 7, -3, 7, -3])
    parts = exact_classes(labels, 2, 1, rng())
    assert [set(labels[part]) for part in parts] in ([{7}, {-3}], [{-3}, {7}])


def test_shards_agree_with_the_specification() -> None:
    labels = mnist_like()
    parts = shards(labels, 50, 2, rng())
    assert {len(part) for part in parts} == {1200}
    held = (holdings(labels, parts, 10) > 0).sum(axis=1)
    assert 30 <= (held == 2).sum() <= 48  # about 78 % of clients


def test_shards_come_from_a_stable_sort_and_drop_the_tail() -> None:
    labels = np.array([1, 0, 1, 0, 1, 0, 1])
    parts = shards(labels, 3, 1, rng())  # sorted: 1 3 5 | 0 2 4 6, shards of two
    assert sorted(map(tuple, parts)) == [(0, 5), (1, 3), (2, 4)]


@pytest.mark.parametrize(
    ("concentration", "balance", "share"),
    [
        (0.1, False, 0.65),
        (0.1, True, 0.71),
        (0.5, False, 0.38),
        (0.5, True, 0.42),
        (10, False, 0.15),
    ],
)
def test_dirichlet_is_as_skewed_as_the_specification_says(
    concentration: float, balance: bool, share: float
) -> None:
    labels = shuffled((5000,) * 10)
    shares = [
        skew(
            holdings(labels, dirichlet(labels, 50, concentration, rng(s), balance), 10)
        ).largest_share
        for s in range(10)
    ]
    assert np.mean(shares) == pytest.approx(share, abs=0.025)


def test_balance_narrows_the_sizes() -> None:
    labels = shuffled((5000,) * 10)
    largest = [
        np.mean([max(map(len, dirichlet(labels, 50, 0.5, rng(s), balance))) for s in range(10)])
        for balance in (False, True)
    ]
    assert largest[1] < largest[0]


@pytest.mark.parametrize("concentration", [1e-320, 1e-5, 0.001, 0.01])
@pytest.mark.parametrize("balance", [False, True])
def test_a_tiny_concentration_gives_whole_classes_away(concentration: float, balance: bool) -> None:
    labels = shuffled((30,) * 40)
    parts = dirichlet(labels, 2, concentration, rng(), balance, min_size=1)
    check_parts(parts, 2, len(labels))
    counts = holdings(labels, parts, 40)
    assert ((counts == 0) | (counts == 30)).mean() > 0.8


@pytest.mark.parametrize("concentration", [1.0, 1e6, 1e300])
def test_a_huge_concentration_gives_even_shares(concentration: float) -> None:
    labels = shuffled((300, 300))
    sizes = [len(part) for part in dirichlet(labels, 3, concentration, rng(), min_size=1)]
    assert sum(sizes) == 600
    if concentration > 1:
        assert max(sizes) - min(sizes) <= 4


def test_hopeless_draws_end_with_advice() -> None:
    labels = shuffled((100,) * 3)
    with pytest.raises(
        InputError,
        match=r"no draw out of 20 left each of 20 clients with min_size = 10 .*larger conc",
    ):
        dirichlet(labels, 20, 0.001, rng(), tries=20)


def test_no_draw_is_tried_where_none_can_do() -> None:
    with pytest.raises(InputError, match="20 clients with at least 10 examples each need 200, but"):
        dirichlet(np.zeros(100, dtype=np.int64), 20, 1.0, rng())


@pytest.mark.parametrize(
    "rule",
    [
        lambda labels, r: iid(labels, 2_000, r),
        lambda labels, r: exact_classes(labels, 2_000, 2, r),
        lambda labels, r: exact_classes(labels, 2_000, 5, r),
        lambda labels, r: shards(labels, 2_000, 2, r),
        lambda labels, r: dirichlet(labels, 2_000, 1000.0, r, min_size=1),
    ],
    ids=["iid", "two classes", "five classes", "shards", "dirichlet"],
)
def test_many_clients_cost_as_much_as_they_are_and_not_their_square(
    rule: Callable[[Ints, np.random.Generator], list[Ints]],
) -> None:
    labels, calls = mnist_like(), 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    tracemalloc.start()
    sys.setprofile(count)
    try:
        parts = rule(labels, rng())
    finally:
        sys.setprofile(None)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert calls < 200 * 2_000
    assert most < 20e6  # bytes: a row of all examples for each client would be 120 million
    check_parts(parts, 2_000, len(labels))


TEN = np.arange(10) % 5  # ten examples of five classes


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        (0, {"partition": "iid"}, "clients must be at least 1, got 0"),
        (11, {"partition": "iid"}, "11 clients cannot share 10 examples.*at most 10 clients"),
        (
            5,
            {"partition": "classes", "classes_per_client": 0},
            "classes_per_client must be at least",
        ),
        (
            5,
            {"partition": "shards", "classes_per_client": 0},
            "classes_per_client must be at least",
        ),
        (5, {"partition": "classes", "classes_per_client": 6}, "must be at most 5, .*got 6"),
        (2, {"partition": "classes"}, "2 clients with 2 classes each can own 4 of the 5 classes"),
        (10, {"partition": "classes"}, "class 0 has 2 examples but 4 clients would own it"),
        (6, {"partition": "shards"}, "6 clients with 2 shards each need 12 examples, but"),
        (2, {"partition": "dirichlet", "concentration": 0}, "concentration must be above 0"),
        (2, {"partition": "dirichlet", "concentration": -1}, "above 0 and finite, got -1"),
        (2, {"partition": "dirichlet", "concentration": float("nan")}, "finite, got nan"),
        (2, {"partition": "dirichlet", "min_size": 0}, "min_size must be at least 1, got 0"),
        (
            2,
            {"partition": "dirichlett"},
            "unknown partition 'dirichlett': did you mean 'dirichlet'",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(
    clients: int, options: dict[str, str | float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        split(TEN, clients, rng(), **options)  # type: ignore[arg-type]


def test_values_without_classes_can_only_be_split_at_random() -> None:
    targets = np.linspace(0, 1, 10)
    assert len(split(targets, 2, rng(), partition="iid")) == 2  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"needs class numbers, .*float64: use 'iid' or a file"):
        split(targets, 2, rng(), partition="classes")  # type: ignore[arg-type]


def test_the_members_of_a_set_are_counted_through() -> None:
    draws = np.random.default_rng(1)
    there = draws.random(77) < 0.4
    found = Members(there)
    for number in draws.integers(77, size=200).tolist():
        found.change(number, -1 if there[number] else 1)
        there[number] = not there[number]
        assert [found.nth(n) for n in range(found.count)] == np.flatnonzero(there).tolist()


def plainly_dealt(owners: Ints, clients: int, rng: np.random.Generator) -> Ints:
    """The definition, which looks at every client for every swap."""
    slots = rng.permutation(np.repeat(np.arange(len(owners)), owners)).reshape(clients, -1)
    held = np.zeros((clients, len(owners)), dtype=np.int64)
    np.add.at(held, (np.arange(clients)[:, None], slots), 1)
    while (surplus := np.argwhere(held > 1)).size:
        for client, k in surplus.tolist():
            if held[client, k] > 1:
                other = int(rng.choice(np.flatnonzero(held[:, k] == 0)))
                spare = held[other] > 1
                if not spare.any():
                    spare = held[other] > held[client]
                taken = int(rng.choice(np.flatnonzero(spare)))
                held[client, [k, taken]] += [-1, 1]
                held[other, [k, taken]] += [1, -1]
    return held


@pytest.mark.parametrize("seed", range(12))
def test_classes_are_dealt_as_by_the_plain_definition(seed: int) -> None:
    draws = np.random.default_rng(seed)
    classes, clients = int(draws.integers(2, 9)), int(draws.integers(3, 60))
    each = int(draws.integers(1, classes + 1))
    owners = np.full(classes, clients * each // classes)
    owners[: clients * each % classes] += 1
    one, other = (deal(owners, clients, rng(seed)) for deal in (_dealt, plainly_dealt))
    assert np.array_equal(one, other)
    assert (one.max(), one.sum(axis=1).tolist()) == (1, [each] * clients)


def test_a_dirichlet_draw_without_hope_is_given_up_at_once() -> None:
    labels = np.arange(40_000) % 10
    with pytest.raises(InputError, match=r"no draw out of 20 left each of 2000 clients .* too few"):
        dirichlet(labels, 2000, 0.1, np.random.default_rng(0))
