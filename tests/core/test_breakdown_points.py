"""As many liars as we claim are withstood, whatever they send; one more is too many."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.breakdown_points import breakdown, hopeless, withstood
from sdfeel.core.mixing import Mixing, gossip
from sdfeel.core.network import Network, clustered
from sdfeel.core.rules import (
    Clipped,
    ClippedSum,
    Geometric,
    Median,
    MultiKrum,
    Nearest,
    OwnRule,
    Rule,
    Trimmed,
)
from sdfeel.core.sparse import Sparse
from sdfeel.engine.combine import combine, mixed

RULES = (Median(), Trimmed(0.2), Geometric(20), MultiKrum(0.2), Nearest(Median(), 0.3))
FAR = 1e6


def network(graph: "nx.Graph[int]", clients: int = 1) -> Network:
    count = len(graph)
    links = nx.to_numpy_array(graph, nodelist=range(count))
    home = np.repeat(np.arange(count), clients)
    weights = np.where(links > 0, 1 / (1 + links.sum(axis=1).max()), 0.0)
    weights += np.diag(1 - weights.sum(axis=1))
    return replace(clustered(np.ones(len(home)), home, links), weights=Sparse.of(weights))


def result(rule: Rule, rows: int, liars: int, seed: int) -> float:
    """How far from zero a rule ends where honest rows are of length about one."""
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(rows, 3)) / 3
    if liars:
        x[:liars] = FAR * draws.choice([-1, 1], size=3)
    x, votes = draws.permutation(x), np.full(rows, 1 / rows)
    found = combine(rule, votes, votes, list(torch.from_numpy(x)), torch.zeros(3).double())
    return float(found.abs().max())


@given(st.sampled_from(RULES), st.integers(1, 14), st.integers(0, 999))
def test_as_many_liars_as_a_rule_withstands_hardly_move_its_result(
    rule: Rule, rows: int, seed: int
) -> None:
    count = withstood(rule, rows)
    assert count is not None
    assert result(rule, rows, count, seed) < 100


@pytest.mark.parametrize("rule", [None, Median(), Trimmed(0.2), Geometric(20)])
@pytest.mark.parametrize("rows", [3, 5, 10])
def test_one_more_liar_moves_the_result_as_far_as_it_likes(rule: Rule | None, rows: int) -> None:
    count = withstood(rule, rows)
    assert count is not None
    assert result(rule or Trimmed(0), rows, count + 1, 7) > FAR / 100


def test_nothing_is_claimed_about_rules_that_nobody_has_analysed() -> None:
    own = OwnRule(lambda messages, votes, row: row)
    assert withstood(own, 9) is None
    found = breakdown(network(nx.complete_graph(4), 3), own, None)
    assert found.clients is None


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (nx.cycle_graph(6), 1),  # one of two neighbours is half of them
        (nx.star_graph(5), 1),
        (nx.complete_graph(7), 3),
        (nx.barbell_graph(5, 1), 1),  # the bridge joins two parts
    ],
)
def test_fewest_servers_that_break_every_rule(graph: "nx.Graph[int]", expected: int) -> None:
    assert hopeless(network(graph)) == expected


def test_liars_take_over_the_cheapest_clusters_first() -> None:
    """By hand: ten servers withstand one liar, each cluster two; three and three break it."""
    found = breakdown(network(nx.complete_graph(10), 5), Median(), ClippedSum(1))
    assert (set(found.clusters), found.servers, found.clients) == ({2}, 1, 5)
    assert breakdown(network(nx.complete_graph(10), 5), None, None).clients == 0
    assert breakdown(network(nx.cycle_graph(6), 5), Median(), ClippedSum(1)).servers == 0
    assert breakdown(network(nx.cycle_graph(6), 5), Median(), Clipped()).servers is None


@given(st.integers(0, 200))
def test_honest_servers_agree_while_as_many_lie_as_is_proven(seed: int) -> None:
    """Liars may send anything, and different things to each neighbour; honest servers agree."""
    draws = np.random.default_rng(seed)
    net = network(nx.complete_graph(int(draws.integers(6, 12))))
    count = breakdown(net, None, ClippedSum(1)).servers
    assert count == 1
    models = torch.from_numpy(draws.normal(size=(len(net.servers), 3)))
    spread = first = float((models[1:] - models[1:].mean(dim=0)).norm())
    for _ in range(30):
        models[0] = torch.from_numpy(draws.normal(size=3) * draws.choice([0.1, 1, 100]))
        models[1:] = mixed(across(net), models)[1:]
        now = float((models[1:] - models[1:].mean(dim=0)).norm())
        assert now <= spread + 1e-12
        spread = now
    assert spread < first / 2


def across(net: Network) -> Mixing:
    return replace(gossip(net, 1), rule=ClippedSum(1))
