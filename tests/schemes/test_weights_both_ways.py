"""Corrections by what mixing did to a model: for which weights of the servers they work."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import FIXED, links
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Scheme
from sdfeel.schemes import KGT, SDGT, DSquared, FreeTracking, GossipMtgc
from sdfeel.schemes.d_squared import LEAST_EIGENVALUE, damped
from tests.examples import examples
from tests.schemes.test_corrections import Problem

BY_WHAT_MIXING_DID: dict[str, Scheme] = {
    "d2": DSquared(),
    "mtgc-gossip": GossipMtgc(trust=0, tau1=2),
    "free-tracking": FreeTracking(trust=0, tau1=2),
    "sd-gt": SDGT(trust=0, tau1=2),
}


def flowing(seed: int, servers: int, mutual: bool) -> Network:
    """A network of one client each, in which models flow both ways or round in circles.

    What flows into a server also flows out of it, so the weighted mean is kept.
    """
    draws = np.random.default_rng(seed)
    sizes = draws.integers(5, 20, servers).astype(float)
    flow = np.zeros((servers, servers))
    for _ in range(servers):
        around = draws.permutation(servers)
        amount = draws.uniform(0.5, 1)
        flow[around, np.roll(around, 1)] += amount
    flow = (flow + flow.T) / 2 if mutual else flow
    np.fill_diagonal(flow, 0)
    mass = sizes / sizes.sum()
    given = 0.4 * flow * (mass / flow.sum(axis=1)).min() / mass[:, None]
    weights = given + np.diag(1 - given.sum(axis=1))
    graph = np.ones((servers, servers)) - np.eye(servers)
    return Network(sizes, tuple((d,) for d in range(servers)), graph, weights=weights)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BY_WHAT_MIXING_DID)
@examples(6)
@given(seed=st.integers(0, 10_000), servers=st.integers(3, 6))
def test_weights_that_are_not_mutual_are_refused_and_mutual_ones_work(
    name: str, seed: int, servers: int
) -> None:
    scheme, one_way = BY_WHAT_MIXING_DID[name], flowing(seed, servers, mutual=False)
    there = one_way.mass[:, None] * one_way.mixing
    if np.abs(there - there.T).max() > 1e-3:
        with pytest.raises(InputError, match=rf"^scheme.name is {name}, which needs servers that"):
            scheme.adapt(one_way)
    problem = Problem(seed, servers=servers, clients=servers)
    problem.net = flowing(seed, servers, mutual=True)
    problem.share = problem.net.mass
    problem.move(problem.centres)
    assert problem.reaches(scheme, 1e-4)


def test_one_way_weights_suit_schemes_that_send_directions_and_a_single_subnet() -> None:
    """These schemes do not correct by what gossip did to a model."""
    one_way = flowing(3, 4, mutual=False)
    for scheme in (KGT(trust=0, tau1=2), SDGT(trust=0, tau1=2, subnets=1)):
        problem = Problem(3, servers=4, clients=4)
        problem.net, problem.share = one_way, one_way.mass
        problem.move(problem.centres)
        assert problem.reaches(scheme, 1e-6)


def cases() -> list[Any]:
    return [(graph, servers) for graph in FIXED for servers in (2, 3, 4, 6, 8, 9, 10, 12, 16, 20)]


@pytest.mark.parametrize(("graph", "servers"), cases())
def test_no_rounding_decides_whether_a_mixing_is_made_lazy(graph: str, servers: int) -> None:
    """Some least eigenvalues are exactly -1/3: the last bit of a library must not decide."""
    try:
        linked = np.asarray(links(graph, servers))
    except InputError:
        pytest.skip("there is no such graph")
    draws = np.random.default_rng(servers)
    lazy = set()
    for order in (np.arange(servers), *(draws.permutation(servers) for _ in range(5))):
        net = clustered(np.ones(servers), range(servers), linked[np.ix_(order, order)])
        weights = damped(net.mixing)
        assert least(weights) > LEAST_EIGENVALUE + 1e-10
        lazy.add(weights is not net.mixing and not np.array_equal(weights, net.mixing))
    assert len(lazy) == 1


def least(weights: Floats) -> float:
    return float(np.linalg.eigvals(weights).real.min())
