"""How many liars a network withstands: in each cluster, among its servers, and in all.

In a cluster, a rule says how many of its rows may contain anything. Among servers, CS+ is proven to
hold (in small steps) while the honest servers are connected more strongly than four times what
liars weigh (after Gaucher et al. 2025); and no rule holds where liars are half of some server's
neighbours, or all that joins two parts of the graph. A server whose cluster is lost to liars lies
as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import networkx as nx
import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.core.network import Network
from sdfeel.core.rules import (
    Clipped,
    ClippedSum,
    Geometric,
    Median,
    MultiKrum,
    Nearest,
    Rule,
    Trimmed,
    share_of,
)

TRIED = 20_000  # sets of lying servers that are looked at one by one; beyond it, a bound is used


@dataclass(frozen=True)
class Breakdown:
    """What a network withstands, and what breaks it, in the worst case."""

    clusters: tuple[int | None, ...]  # clients that may lie in each; None: nobody can say
    servers: int | None  # edge servers that may lie, as far as it is proven
    hopeless: int  # lying servers that can break every rule

    @property
    def clients(self) -> int | None:
        """Lying clients that a run withstands wherever they are; None if nobody can say.

        To break it, liars must take over one server more than the others withstand.
        """
        if self.servers is None or any(each is None for each in self.clusters):
            return None
        price = sorted(1 + (each or 0) for each in self.clusters)
        return sum(price[: self.servers + 1]) - 1


def withstood(rule: Rule | None, rows: int) -> int | None:
    """How many of `rows`, with one vote each, may contain anything; None: nobody can say.

    >>> [withstood(Median(), n) for n in (1, 4, 5)], withstood(Trimmed(0.2), 9), withstood(None, 9)
    ([0, 1, 2], 1, 0)
    """
    if rule is None:
        return 0
    if isinstance(rule, Median | Geometric | Clipped):
        return (rows - 1) // 2
    if isinstance(rule, Trimmed):
        return share_of(rule.share, rows)
    if isinstance(rule, MultiKrum):
        liars = share_of(rule.share, rows)
        return liars if rows >= 2 * liars + 3 else 0
    if isinstance(rule, Nearest):
        then = withstood(rule.then, rows)
        return None if then is None else min(share_of(rule.share, rows), then)
    return None


def breakdown(net: Network, cluster: Rule | None, servers: Rule | None) -> Breakdown:
    """What a network with these rules withstands."""
    sizes = np.bincount(net.home[net.clients], minlength=len(net.servers))
    return Breakdown(
        clusters=tuple(withstood(cluster, int(sizes[d])) for d in net.present),
        servers=_servers(net, servers),
        hopeless=hopeless(net),
    )


def hopeless(net: Network) -> int:
    """The fewest lying servers that can break every rule, in the worst places.

    >>> from sdfeel.core.network import clustered
    >>> ring = np.roll(np.eye(5), 1, axis=0) + np.roll(np.eye(5), -1, axis=0)
    >>> hopeless(clustered([1] * 5, range(5), ring))
    1
    """
    graph = nx.Graph()
    graph.add_edges_from(net.edges)
    graph.add_nodes_from(net.present.tolist())
    if len(graph) < 2:
        return 1
    half = min(-(-int(degree) // 2) for _, degree in graph.degree())
    return max(1, min(half, int(nx.node_connectivity(graph))))


def _servers(net: Network, rule: Rule | None) -> int | None:
    """Lying servers that a rule withstands, wherever they are: as far as it is proven."""
    if rule is None or len(net.present) < 2:
        return 0
    if not isinstance(rule, ClippedSum):
        return None
    weights = net.mixing[np.ix_(net.present, net.present)]
    if weights.min() < 0:
        return 0
    for liars in range(rule.liars, 0, -1):
        if _holds(weights, net.mass[net.present], liars, rule.liars):
            return liars
    return 0


def _holds(weights: Floats, mass: Floats, liars: int, expected: int) -> bool:
    """Are honest servers connected well enough, whoever lies? They clip for `expected` liars."""
    count = len(weights)
    if liars >= count - 1:
        return False
    others = weights - np.diag(np.diag(weights))
    lying = np.sort(others, axis=1)[:, ::-1][:, :expected].sum(axis=1)
    everyone = tuple(range(count))
    if comb(count, liars) > TRIED:  # a server less takes away no more than its heaviest link
        left = _connected(others, mass, everyone) - liars * float(others.max())
        return bool(4 * lying.max() < left)
    for who in combinations(everyone, liars):
        honest = [d for d in everyone if d not in who]
        if not 4 * lying[honest].max() < _connected(others, mass, honest):
            return False
    return True


def _connected(others: Floats, mass: Floats, honest: Sequence[int]) -> float:
    """How strongly these servers are connected: the second smallest eigenvalue of I - W."""
    own = others[np.ix_(honest, honest)]
    root = np.sqrt(mass[honest])
    scaled = root[:, None] * (np.diag(own.sum(axis=1)) - own) / root[None, :]
    return float(np.linalg.eigvalsh((scaled + scaled.T) / 2)[1])
