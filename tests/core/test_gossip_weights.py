from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core import gossip_weights
from sdfeel.core.arrays import Floats
from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import (
    GOSSIP_RULES,
    check_weights,
    consensus_exchanges,
    laplacian_weights,
    metropolis,
    mixing_rate,
    size_weighted,
)
from sdfeel.core.graphs import links
from sdfeel.core.lanczos import largest_modulus


def equal(servers: int) -> Floats:
    return np.full(servers, 1 / servers)


@pytest.mark.parametrize(
    ("vector", "name", "servers"),
    [
        ("P_star6", "star", 6),
        ("P_ring6", "ring", 6),
        ("P_k33", "partial", 6),
        ("P_full6", "complete", 6),
        ("P_ring10", "ring", 10),
        ("P_star10", "star", 10),
        ("P_full10", "complete", 10),
    ],
)
def test_the_papers_matrix_equals_the_vectors(
    vectors: Any, vector: str, name: str, servers: int
) -> None:
    graph = links(name, servers)
    weights = laplacian_weights(graph, equal(servers))
    np.testing.assert_allclose(weights.T, vectors[vector]["P"], atol=1e-11)
    assert mixing_rate(weights, equal(servers)) == pytest.approx(vectors[vector]["zeta"], abs=1e-11)
    edges = [[int(a), int(b)] for a, b in np.argwhere(np.triu(graph))]
    assert edges == vectors[vector]["edges"]


def test_the_weighted_path_equals_the_vectors(vectors: Any) -> None:
    mass = np.array(vectors["P_path3_weighted"]["m"])
    weights = laplacian_weights(links("path", 3), mass)
    np.testing.assert_allclose(weights.T, vectors["P_path3_weighted"]["P"], atol=1e-11)
    assert mixing_rate(weights, mass) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("name", "servers", "zeta"),
    [("path", 6, 0.8660), ("partial", 10, 1 / 3), ("star", 10, 9 / 11), ("complete", 7, 0.0)],
)
def test_zeta_of_known_graphs(name: str, servers: int, zeta: float) -> None:
    rate = mixing_rate(laplacian_weights(links(name, servers), equal(servers)), equal(servers))
    assert rate == pytest.approx(zeta, abs=5e-5)


@pytest.mark.parametrize(("gamma", "zeta"), [(0, 0.8257), (1, 0.8527), (2, 0.8893), (3, 0.9265)])
def test_zeta_of_an_imbalanced_ring_in_block_order(gamma: int, zeta: float) -> None:
    mass = np.array([5.0] * 4 + [5.0 - gamma] * 3 + [5.0 + gamma] * 3) / 50
    assert mixing_rate(laplacian_weights(links("ring", 10), mass), mass) == pytest.approx(
        zeta, abs=5e-5
    )


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
def test_unequal_clusters_need_size_weighting_to_agree_at_once(gamma: int) -> None:
    mass = np.array([5.0] * 4 + [5.0 - gamma] * 3 + [5.0 + gamma] * 3) / 50
    full = links("complete", 10)
    assert mixing_rate(laplacian_weights(full, mass), mass) == pytest.approx(gamma / 5)
    np.testing.assert_allclose(size_weighted(full, mass), np.tile(mass, (10, 1)), atol=1e-12)


masses = st.lists(st.floats(0.1, 10), min_size=2, max_size=9).map(
    lambda values: np.array(values) / np.sum(values)
)


@given(mass=masses, name=st.sampled_from(["ring", "star", "path", "complete", "partial", "grid"]))
@pytest.mark.parametrize("rule", GOSSIP_RULES)
def test_every_rule_keeps_the_weighted_mean_and_agrees(rule: str, mass: Floats, name: str) -> None:
    graph = links(name, len(mass))
    weights = GOSSIP_RULES[rule](graph, mass)
    check_weights(weights, graph, mass)  # rows sum to 1, mean kept, links respected, zeta < 1
    np.testing.assert_allclose(mass @ weights, mass, atol=1e-12)
    if rule == "metropolis":
        assert (weights >= 0).all()


@given(mass=masses)
def test_two_servers_agree_in_one_exchange(mass: Floats) -> None:
    pair = mass[:2] / mass[:2].sum()
    np.testing.assert_allclose(laplacian_weights(links("path", 2), pair), np.tile(pair, (2, 1)))


def test_a_single_server_keeps_its_model() -> None:
    assert laplacian_weights(links("ring", 1), np.ones(1)) == np.ones((1, 1))
    assert mixing_rate(np.ones((1, 1)), np.ones(1)) == 0


def test_each_exchange_shrinks_the_weighted_spread_by_zeta() -> None:
    mass = np.array([5.0] * 4 + [2.0] * 3 + [8.0] * 3) / 50
    weights = laplacian_weights(links("ring", 10), mass)
    zeta = mixing_rate(weights, mass)
    models = np.random.default_rng(0).normal(size=(10, 3))
    for _ in range(200):
        before = spread(models, mass)
        models = weights @ models
    assert spread(models, mass) / before == pytest.approx(zeta, rel=1e-3)


def test_the_consensus_phase_reaches_its_tolerance() -> None:
    mass = equal(10)
    weights = laplacian_weights(links("ring", 10), mass)
    models = np.random.default_rng(1).normal(size=(10, 3))
    start = spread(models, mass)
    exchanges = consensus_exchanges(mixing_rate(weights, mass), start, 1e-6 * start)
    assert exchanges == 73
    agreed = np.linalg.matrix_power(weights, exchanges) @ models
    assert spread(agreed, mass) <= 1e-6 * start
    np.testing.assert_allclose(mass @ agreed, mass @ models, atol=1e-12)
    assert consensus_exchanges(0.5, 1e-9, 1e-6) == 0
    assert consensus_exchanges(0.0, 1.0, 1e-6) == 1


def spread(models: Floats, mass: Floats) -> float:
    return float(np.sqrt(mass @ ((models - mass @ models) ** 2).sum(axis=1)))


def test_a_matrix_that_is_not_reversible_has_a_zeta_too() -> None:
    turn = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])  # a one-way ring
    assert mixing_rate(turn, equal(3)) == pytest.approx(0.5)


RING = links("ring", 4)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.eye(3), "must be 4 x 4, one row per server, got 3 x 3"),
        (np.full((4, 4), np.nan), "not finite"),
        (np.eye(4) * 0.5, "row 0 of the mixing matrix sums to 0.5"),
        (np.full((4, 4), 0.25), "lets server 0 take from server 2, but they are not linked"),
        (np.eye(4), "zeta 1, but it must be below 1"),
        (
            np.array([[0.5, 0.5, 0, 0], [0.25, 0.5, 0.25, 0], [0, 0.5, 0.5, 0], [0.5, 0, 0, 0.5]]),
            "does not keep the mean weighted by cluster sizes",
        ),
    ],
)
def test_a_wrong_matrix_is_refused(weights: Floats, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_weights(weights, RING, equal(4))


def test_a_transposed_matrix_is_recognised() -> None:
    mass = np.array([0.4, 0.2, 0.4])
    weights = laplacian_weights(links("path", 3), mass)
    with pytest.raises(InputError, match="its columns do, so give the transpose"):
        check_weights(weights.T, links("path", 3), mass)


def test_metropolis_needs_only_neighbours() -> None:
    mass = np.array([0.4, 0.2, 0.4])
    weights = metropolis(links("path", 3), mass)
    assert weights[0, 1] == pytest.approx(min(1 / 2, 0.2 / (0.4 * 3)))
    assert weights[1, 0] == pytest.approx(min(1 / 3, 0.4 / (0.2 * 2)))


@pytest.mark.parametrize("rule", GOSSIP_RULES)
@pytest.mark.parametrize(
    ("name", "servers"),
    [("ring", 40), ("path", 25), ("star", 30), ("complete", 12), ("partial", 16), ("ring", 3)],
)
def test_zeta_of_many_servers_is_that_of_few(
    monkeypatch: pytest.MonkeyPatch, rule: str, name: str, servers: int
) -> None:
    mass = np.random.default_rng(servers).uniform(1, 4, servers)
    mass /= mass.sum()
    weights = GOSSIP_RULES[rule](links(name, servers), mass)
    few = mixing_rate(weights, mass)
    gossip_weights._KNOWN.clear()
    monkeypatch.setattr(gossip_weights, "LARGE", 0)
    assert mixing_rate(weights, mass) == pytest.approx(few, rel=1e-12, abs=1e-12)
    again = GOSSIP_RULES[rule](links(name, servers), mass)
    assert again.tobytes() == weights.tobytes()  # by Lanczos' method, and still the same bits


def test_zeta_of_many_servers_takes_steps_that_hardly_grow_with_them() -> None:
    """Where everybody has a few neighbours at random: the matrix is never written out."""
    steps = []
    for servers in (1000, 4000):
        draws = np.random.default_rng(2)
        orders = [draws.permutation(servers) for _ in range(4)]
        backs = [order.argsort() for order in orders]
        taken = 0

        def product(vector: Floats, orders: list[Any] = [*orders, *backs]) -> Floats:  # noqa: B006
            nonlocal taken
            taken += 1
            return np.asarray(sum(vector[order] for order in orders) / 8 - vector.mean())

        rate = largest_modulus(product, servers)
        assert 0.5 < rate < 0.8  # at most about sqrt(7) / 4 = 0.66
        steps.append(taken)
    assert max(steps) <= 1024


@pytest.mark.parametrize("name", ["ring", "star", "complete"])
@pytest.mark.parametrize("servers", [2, 5, 40])
def test_weights_that_surely_agree_need_no_eigenvalues(
    name: str, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, mass = links(name, servers), equal(servers)
    lazy = (metropolis(graph, mass) + np.eye(servers)) / 2  # all keep a part, and take from all
    assert mixing_rate(lazy, mass) < 1
    monkeypatch.setattr(gossip_weights, "mixing_rate", lambda weights, mass: 1.0)
    check_weights(lazy, graph, mass)
    for useless in (np.eye(servers), 2 * np.eye(servers) - lazy):
        with pytest.raises(InputError, match="servers never agree"):
            check_weights(useless, graph, mass)  # some links are not used, or are used backwards


def test_servers_that_are_cut_off_never_agree() -> None:
    pairs = np.kron(np.eye(2), np.ones((2, 2)) - np.eye(2))
    with pytest.raises(InputError, match="zeta 1, but it must be below 1"):
        check_weights(np.kron(np.eye(2), np.full((2, 2), 0.5)), pairs, equal(4))
