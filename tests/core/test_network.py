import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import InputError
from sdfeel.core.graphs import ALIASES, TOPOLOGIES, adjacency, links
from sdfeel.core.network import Network, clustered
from sdfeel.core.sparse import Sparse


def test_a_network_knows_its_shares_and_edges() -> None:
    net = clustered([30, 10, 20, 40], [0, 0, 1, 2], links("path", 3))
    np.testing.assert_allclose(net.mass, [0.4, 0.2, 0.4])
    assert net.edges == [(0, 1), (1, 2)]
    assert net.servers == (0, 1, 2)
    assert net.zeta == pytest.approx(2 / 3)


def test_a_network_cannot_be_changed_behind_its_back() -> None:
    samples = np.array([1.0, 2.0])
    net = clustered(samples, [0, 1], links("path", 2))
    samples[0] = 99
    assert net.samples[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        net.links[0, 1] = 0


def test_a_client_out_of_reach_has_no_weight() -> None:
    net = Network(np.array([1.0, 2.0, 97.0]), ((0,), (1,), ()), Sparse.of(links("path", 2)))
    np.testing.assert_allclose(net.mass, [1 / 3, 2 / 3])
    assert net.clients.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("samples", "home", "graph", "message"),
    [
        ([1, 1], [0, 1], np.zeros((2, 2)), r"disconnected: servers \[1\] cannot be reached"),
        ([1, 1], [0, 1], [[0, 1], [0, 0]], "servers 0 and 1 disagree"),
        ([1, 1], [0, 1], [[1, 1], [1, 0]], "server 0 is linked to itself"),
        ([1, 1], [0, 1], [[0, 2], [2, 0]], "only 0"),
        ([1, 1], [0, 1], np.zeros((2, 3)), "square matrix"),
        ([1, 1], [0, 0], links("path", 2), "server 1 has no clients"),
        ([1, 0], [0, 1], links("path", 2), "client 1 has 0 training examples"),
        ([1, 1], [0, 5], links("path", 2), "client 1 is assigned to server 5"),
        ([1, 1, 1], [0, 1], links("path", 2), "3 clients have samples, but 2 have servers"),
        ([], [], links("path", 1), "at least one client"),
    ],
)
def test_an_impossible_network_is_refused(
    samples: list[float], home: list[int], graph: np.ndarray, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        clustered(samples, home, np.asarray(graph, dtype=float))


@given(name=st.sampled_from([*TOPOLOGIES, *ALIASES]), servers=st.integers(1, 24))
def test_every_topology_is_a_connected_simple_graph(name: str, servers: int) -> None:
    graph = links(name, servers, np.random.default_rng(servers))
    assert graph.shape == (servers, servers)
    assert np.array_equal(graph, graph.T)
    assert not graph.diagonal().any()
    assert nx.is_connected(nx.from_numpy_array(graph))


def test_random_graphs_follow_their_generator() -> None:
    one = links("erdos-renyi", 12, np.random.default_rng(3))
    assert np.array_equal(one, links("erdos-renyi", 12, np.random.default_rng(3)))
    assert not np.array_equal(one, links("erdos-renyi", 12, np.random.default_rng(4)))
    assert links("geometric", 9).sum() > 0  # works without a generator, too


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "rnig", "servers": 4}, "unknown topology 'rnig': did you mean 'ring'?"),
        ({"name": "ring", "servers": 0}, "number of servers must be at least 1, got 0"),
        ({"name": "geometric", "servers": 20, "radius": 0.01}, "raise network.radius"),
        ({"name": "erdos-renyi", "servers": 20, "probability": 0.001}, "raise network.probab"),
        ({"name": "erdos-renyi", "servers": 4, "probability": 1.5}, "at most 1, got 1.5"),
    ],
)
def test_an_impossible_graph_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        links(**options)  # type: ignore[arg-type]


def test_any_networkx_graph_will_do() -> None:
    petersen = adjacency(nx.petersen_graph())
    net = clustered([1] * 10, range(10), petersen)
    assert net.zeta == pytest.approx(3 / 7)
