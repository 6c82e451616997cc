"""Server graphs by name."""

from collections.abc import Callable
from math import ceil, log, sqrt

import networkx as nx
import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import InputError, at_least, of_kind, said, unknown, whole_number
from sdfeel.core.sparse import Sparse, reached

TRIES = 200  # draws of a random graph before giving up on a connected one
STRIP = 256  # servers of a random graph that are looked at together


def star(servers: int) -> nx.Graph:
    """Server 0 in the middle."""
    return nx.star_graph(servers - 1)


def ring(servers: int) -> nx.Graph:
    """Each server has two neighbours."""
    return nx.path_graph(2) if servers == 2 else nx.cycle_graph(servers)


def path(servers: int) -> nx.Graph:
    """A line."""
    return nx.path_graph(servers)


def complete(servers: int) -> nx.Graph:
    """Everyone is everyone's neighbour."""
    return nx.complete_graph(servers)


def partial(servers: int) -> nx.Graph:
    """Partially connected: two halves, each server linked to all of the other half.

    The paper does not define it; with 6 servers, this is the graph that fits its zeta of 1/3.
    """
    return nx.complete_bipartite_graph(servers // 2, servers - servers // 2)


def grid(servers: int) -> nx.Graph:
    """A rectangle as square as the number of servers allows."""
    return nx.convert_node_labels_to_integers(nx.grid_2d_graph(*_sides(servers)))


def torus(servers: int) -> nx.Graph:
    """A grid with opposite borders joined."""
    graph = nx.grid_2d_graph(*_sides(servers), periodic=True)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return nx.convert_node_labels_to_integers(graph)


FIXED: dict[str, Callable[[int], nx.Graph]] = {
    "star": star,
    "ring": ring,
    "path": path,
    "complete": complete,
    "partial": partial,
    "grid": grid,
    "torus": torus,
}
RANDOM = ("geometric", "erdos-renyi")
TOPOLOGIES = (*FIXED, *RANDOM)
ALIASES = {"full": "complete", "line": "path", "partially-connected": "partial"}


LARGEST = 10_000  # servers whose links are a matrix with all its zeros, of 800 MB


def links(
    name: str,
    servers: int,
    rng: np.random.Generator | None = None,
    radius: float | None = None,
    probability: float | None = None,
) -> Floats:
    """(D, D) the graph called `name`; `rng` draws the random ones.

    >>> links("path", 3)
    array([[0., 1., 0.],
           [1., 0., 1.],
           [0., 1., 0.]])
    """
    of_kind("the name of a graph", name, str, "a text such as ring")
    whole_number("the number of servers", servers, 1)
    if servers > LARGEST:
        raise InputError(
            f"a matrix of all links is made for at most {LARGEST:,} servers, got {servers:,}: give "
            f"a networkx graph to sdfeel.network instead"
        )
    return linked(name, servers, rng, radius, probability).dense


def linked(
    name: str,
    servers: int,
    rng: np.random.Generator | None = None,
    radius: float | None = None,
    probability: float | None = None,
) -> Sparse:
    """`links`, without its zeros."""
    at_least("the number of servers", servers, 1)
    name = ALIASES.get(name, name)
    if name not in TOPOLOGIES:
        raise unknown("topology", name, TOPOLOGIES)
    if servers == 1:
        return Sparse.of(np.zeros((1, 1)))
    if name in FIXED:
        return _joined(FIXED[name](servers))
    draw = rng if rng is not None else np.random.default_rng(0)
    if name == "geometric":
        return _geometric(servers, draw, radius)
    return _erdos_renyi(servers, draw, probability)


def adjacency(graph: nx.Graph) -> Floats:
    """(D, D) of any networkx graph, servers in the order of its nodes."""
    _check_simple(graph)
    return _joined(graph).dense


def _check_simple(graph: nx.Graph) -> None:
    """Refuse what links between servers cannot be, rather than leave it out."""
    ends = [(a, b) for a, b, *_ in graph.edges]
    loop = next((a for a, b in ends if a == b), None)
    if loop is not None:
        raise InputError(
            f"the graph joins {said(loop)} to itself, but servers are linked to others: remove "
            f"such edges with graph.remove_edges_from(list(networkx.selfloop_edges(graph)))"
        )
    known = set(ends)
    if len(known) < len(ends):
        a, b = next(pair for pair in ends if graph.number_of_edges(*pair) > 1)
        raise InputError(
            f"the graph has {graph.number_of_edges(a, b)} edges between {said(a)} and {said(b)}, "
            f"but two servers have one link or none: give networkx.Graph(graph)"
        )
    one_way = next((e for e in ends if e[::-1] not in known), None) if graph.is_directed() else None
    if one_way is not None:
        raise InputError(
            f"the graph leads from {said(one_way[0])} to {said(one_way[1])} but not back, and "
            f"links go both ways: give graph.to_undirected()"
        )


def _joined(graph: nx.Graph) -> Sparse:
    """Both ways of each of its links."""
    number = {node: n for n, node in enumerate(graph)}
    pairs = [(number[a], number[b]) for a, b, *_ in graph.edges if a != b]
    given = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    both = np.unique(np.concatenate([given, given[:, ::-1]]), axis=0)
    return Sparse.at(both[:, 0], both[:, 1], np.ones(len(both)), (len(number), len(number)))


def _geometric(servers: int, rng: np.random.Generator, radius: float | None) -> Sparse:
    """Servers at random places of a unit square, linked when closer than `radius`."""
    reach = sqrt(2.5 * log(servers + 1) / (np.pi * servers)) if radius is None else radius
    hint = "raise network.radius"
    return _until_connected("geometric", hint, lambda: _near(rng.random((servers, 2)), reach))


def _near(places: Floats, radius: float) -> Sparse:
    """Who is close to whom: a few servers at a time, compared with those in a strip around them."""
    order = places[:, 0].argsort(kind="stable")
    across = places[order, 0]
    found = [np.zeros((0, 2), dtype=np.int64)]
    for begin in range(0, len(order), STRIP):
        some = order[begin : begin + STRIP]
        low = np.searchsorted(across, places[some, 0].min() - 2 * radius)
        high = np.searchsorted(across, places[some, 0].max() + 2 * radius)
        around = order[low:high]
        gaps = np.linalg.norm(places[some][:, None] - places[around][None, :], axis=2)
        a, b = np.nonzero(gaps < radius)
        found.append(np.stack([some[a], around[b]], axis=1))
    pairs = np.concatenate(found)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return Sparse.at(pairs[:, 0], pairs[:, 1], np.ones(len(pairs)), (len(places), len(places)))


def _erdos_renyi(servers: int, rng: np.random.Generator, probability: float | None) -> Sparse:
    """Each pair is linked with the same probability."""
    p = min(1.0, 2 * log(servers + 1) / servers) if probability is None else probability
    if not 0 < p <= 1:
        raise InputError(f"network.probability must be above 0 and at most 1, got {p:g}")

    def draw() -> Sparse:
        found = []
        for begin in range(0, servers, STRIP):  # the draws of a whole matrix, a few rows at a time
            drawn = rng.random((min(STRIP, servers - begin), servers)) < p
            a, b = np.nonzero(np.triu(drawn, begin + 1))
            found.append(np.stack([a + begin, b]))
        a, b = np.concatenate(found, axis=1)
        ends = np.concatenate([a, b]), np.concatenate([b, a])
        return Sparse.at(*ends, np.ones(2 * len(a)), (servers, servers))

    return _until_connected("erdos-renyi", "raise network.probability", draw)


def _until_connected(name: str, hint: str, draw: Callable[[], Sparse]) -> Sparse:
    for _ in range(TRIES):
        found = draw()
        if reached(found, 0).all():
            return found
    raise InputError(
        f"{TRIES} draws gave no connected {name} graph with {len(found)} servers: {hint}"
    )


def _sides(servers: int) -> tuple[int, int]:
    """The two factors closest to each other.

    >>> _sides(12), _sides(10), _sides(7)
    ((3, 4), (2, 5), (1, 7))
    """
    short = next(n for n in range(ceil(sqrt(servers)), 0, -1) if servers % n == 0)
    short = min(short, servers // short)
    return short, servers // short
