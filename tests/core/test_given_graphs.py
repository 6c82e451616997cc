"""A user's networkx graph: every edge becomes a link, or the graph is refused for an edge."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import InputError
from sdfeel.core.graphs import FIXED, adjacency

KINDS = (nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph)
EDGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6)


@given(st.sampled_from(KINDS), EDGES)
def test_no_edge_is_left_out_silently(
    kind: type["nx.Graph[int]"], edges: list[tuple[int, int]]
) -> None:
    graph = kind()
    graph.add_nodes_from(range(4))
    graph.add_edges_from(edges)
    kept = [(a, b) for a, b, *_ in graph.edges]
    loops = any(a == b for a, b in kept)
    parallel = len(set(kept)) < len(kept)
    one_way = graph.is_directed() and any(pair[::-1] not in kept for pair in kept)
    if loops or parallel or one_way:
        with pytest.raises(InputError, match=r"to itself|edges between|but not back"):
            adjacency(graph)
        return
    links = np.zeros((4, 4))
    for a, b in kept:
        links[a, b] = links[b, a] = 1
    np.testing.assert_array_equal(adjacency(graph), links)


def of_edges(kind: type["nx.Graph[str]"], *edges: str) -> "nx.Graph[str]":
    graph = kind()
    graph.add_edges_from(tuple(each) for each in edges)
    return graph


@pytest.mark.parametrize(
    ("kind", "edges", "words"),
    [
        (nx.Graph, ["ab", "bb"], "joins 'b' to itself, but servers are linked to others: remove"),
        (nx.MultiGraph, ["ab", "ba"], "2 edges between 'a' and 'b', but two servers have one link"),
        (nx.DiGraph, ["ab", "ba", "bc"], "from 'b' to 'c' but not back, and links go both ways"),
    ],
)
def test_the_sentence_names_the_edge_and_the_way_out(
    kind: type["nx.Graph[str]"], edges: list[str], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        adjacency(of_edges(kind, *edges))


@pytest.mark.parametrize("name", FIXED)
def test_our_own_graphs_are_accepted_as_well(name: str) -> None:
    for servers in (2, 3, 4, 6, 9):
        found = adjacency(FIXED[name](servers))
        assert found.shape == (servers, servers)
