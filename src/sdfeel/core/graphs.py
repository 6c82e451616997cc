"""Server graphs by name."""

from collections.abc import Callable
from math import ceil, log, sqrt

import networkx as nx
import numpy as np

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.errors import InputError, at_least, unknown

TRIES = 200  # draws of a random graph before giving up on a connected one


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
    at_least("the number of servers", servers, 1)
    name = ALIASES.get(name, name)
    if name not in TOPOLOGIES:
        raise unknown("topology", name, TOPOLOGIES)
    if servers == 1:
        return floats(np.zeros((1, 1)))
    if name in FIXED:
        return adjacency(FIXED[name](servers))
    draw = rng if rng is not None else np.random.default_rng(0)
    if name == "geometric":
        return _geometric(servers, draw, radius)
    return _erdos_renyi(servers, draw, probability)


def adjacency(graph: nx.Graph) -> Floats:
    """(D, D) of any networkx graph, servers in the order of its nodes; loops are dropped."""
    simple = nx.Graph(graph)
    simple.remove_edges_from(list(nx.selfloop_edges(simple)))
    return floats(nx.to_numpy_array(simple, weight=None))


def _geometric(servers: int, rng: np.random.Generator, radius: float | None) -> Floats:
    """Servers at random places of a unit square, linked when closer than `radius`."""
    reach = sqrt(2.5 * log(servers + 1) / (np.pi * servers)) if radius is None else radius
    hint = "raise network.radius"
    return _until_connected("geometric", hint, lambda: _near(rng.random((servers, 2)), reach))


def _near(places: Floats, radius: float) -> Floats:
    gaps = np.linalg.norm(places[:, None] - places[None, :], axis=2)
    return floats((gaps < radius) & ~np.eye(len(places), dtype=bool))


def _erdos_renyi(servers: int, rng: np.random.Generator, probability: float | None) -> Floats:
    """Each pair is linked with the same probability."""
    p = min(1.0, 2 * log(servers + 1) / servers) if probability is None else probability
    if not 0 < p <= 1:
        raise InputError(f"network.probability must be above 0 and at most 1, got {p:g}")

    def draw() -> Floats:
        half = np.triu(rng.random((servers, servers)) < p, 1)
        return floats(half | half.T)

    return _until_connected("erdos-renyi", "raise network.probability", draw)


def _until_connected(name: str, hint: str, draw: Callable[[], Floats]) -> Floats:
    for _ in range(TRIES):
        found = draw()
        if nx.is_connected(nx.from_numpy_array(found)):
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
