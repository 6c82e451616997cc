"""Who meets whom: servers that meet few others at a time, in a sequence that all of them know.

A gossip's exchanges are numbered, and every exchange has its own pairs. Sequences that agree
exactly leave every server with the weighted mean of all after one pass; the others get closer with
every exchange. Draws have an address, so that all servers know them without a message.

Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep Training", 2021
(one-peer-exponential). Takezawa et al., "Beyond Exponential Graph: Communication-Efficient
Topologies for Decentralized Learning via Finite-time Convergence", 2023 (base-N). de Vos et al.,
"Epidemic Learning: Boosting Decentralized Learning with Randomized Communication", 2023
(epidemic-N; all servers draw the same graph, so that the paper's oracle is not needed). Boyd et
al., "Randomized Gossip Algorithms", 2006 (pairwise).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sdfeel.core.arrays import Bools, Floats, floats
from sdfeel.core.errors import InputError
from sdfeel.core.seeds import rng

NAMES = ("one-peer-exponential", "base-2", "base-3", "epidemic-1", "epidemic-2", "pairwise")
Pairs = dict[tuple[int, int], float]  # how much two servers take of each other


@dataclass(frozen=True)
class Peers:
    """A rule that says who meets whom in which exchange."""

    kind: str  # one-peer-exponential, base, epidemic or pairwise
    degree: int = 1  # base: servers that one meets at a time; epidemic: that each one sends to
    seed: int = 0

    @property
    def name(self) -> str:
        """
        >>> Peers("base", 2).name, Peers("pairwise").name
        ('base-3', 'pairwise')
        """
        number = {"base": self.degree + 1, "epidemic": self.degree}.get(self.kind)
        return self.kind if number is None else f"{self.kind}-{number}"


def named(name: str, seed: int) -> Peers | None:
    """The rule of this name, if there is one."""
    if name in ("one-peer-exponential", "pairwise"):
        return Peers(name, 1, seed)
    kind, _, number = name.partition("-")
    least = {"base": 2, "epidemic": 1}.get(kind)
    if least is None or not number.isdecimal() or int(number) < least:
        return None
    return Peers(kind, int(number) - (kind == "base"), seed)


def period(peers: Peers, servers: int) -> int | None:
    """Exchanges after which all servers agree exactly; None where they never do.

    >>> [period(Peers("base", 1), n) for n in (1, 2, 5, 6, 7, 8)]
    [0, 1, 5, 4, 5, 3]
    >>> period(Peers("one-peer-exponential"), 8), period(Peers("one-peer-exponential"), 6)
    (3, None)
    """
    if servers == 1:
        return 0
    if peers.kind == "base":
        return len(_base(servers, peers.degree))
    exact = peers.kind == "one-peer-exponential" and servers & (servers - 1) == 0
    return (servers - 1).bit_length() if exact else None


def exchanges(peers: Peers, mass: Floats, links: Floats, first: int, count: int) -> list[Floats]:
    """(D, D) each: `weights[dst, src]` of exchanges `first` to `first + count - 1`.

    Their product keeps the mean weighted by `mass`. Whole passes of a sequence that agrees exactly
    reach it: each model is weighted by the data that it stands for by then. Any other exchange
    keeps the mean on its own.
    """
    drawn = [_exchange(peers, links, number) for number in range(first, first + count)]
    length = period(peers, len(mass))
    if length and count % length == 0 and first % length == 0:
        return _standing_for(drawn, mass)
    return [_balanced(weights, mass) for weights in drawn]


def rate(peers: Peers, mass: Floats, links: Floats) -> float:
    """How much of a disagreement an exchange leaves, as a root mean square over some of them."""
    count = (period(peers, len(mass)) or 24) + 1  # not a whole pass, which leaves nothing
    root, left = np.sqrt(mass), []
    for weights in exchanges(peers, mass, links, 0, count):
        balanced = (weights - mass[None, :]) * root[:, None] / root[None, :]
        left.append(float((balanced**2).sum()) / max(len(mass) - 1, 1))
    return float(np.sqrt(np.mean(left)))


def check_links(peers: Peers, links: Floats, out: tuple[int, ...] = ()) -> None:
    """Refuse a sequence with pairs of servers that are not linked, or not there."""
    servers = len(links)
    if out:
        raise InputError(
            f"network.mixing is {peers.name}, which counts on all servers, but server {out[0]} "
            f"joins later or has left: set network.mixing to metropolis"
        )
    if peers.kind == "pairwise" or servers == 1:
        return  # it draws among the existing links
    used: Bools
    if peers.kind == "epidemic":
        if peers.degree >= servers:
            raise InputError(
                f"network.mixing is {peers.name}, but there are only {servers - 1} other servers "
                f"to send to: lower the number"
            )
        used = ~np.eye(servers, dtype=bool)  # anyone may be drawn
    else:
        length = period(peers, servers) or (servers - 1).bit_length()
        used = np.array([_exchange(peers, links, n) for n in range(length)]).sum(axis=0) > 0
    lacking = np.argwhere(used & (links == 0) & ~np.eye(servers, dtype=bool))
    if lacking.size:
        a, b = map(int, lacking[0])
        raise InputError(
            f"network.mixing is {peers.name}, in which servers {a} and {b} meet, but network.graph "
            f"does not link them: set network.graph to complete, or network.mixing to pairwise"
        )


def _exchange(peers: Peers, links: Floats, number: int) -> Floats:
    """(D, D) the weights of one exchange between servers of equal clusters."""
    servers = len(links)
    if servers == 1:
        return np.ones((1, 1))
    if peers.kind == "base":
        stages = _base(servers, peers.degree)
        return _matrix(stages[number % len(stages)], servers)
    if peers.kind == "one-peer-exponential":
        hop = 2 ** (number % (servers - 1).bit_length())
        return floats((np.eye(servers) + np.roll(np.eye(servers), hop, axis=0)) / 2)
    draws = rng(peers.seed, "peers", number)
    if peers.kind == "epidemic":  # in a drawn circle, each sends to the next few
        order = draws.permutation(servers)
        weights = np.eye(servers)
        for hop in range(1, peers.degree + 1):
            weights[np.roll(order, -hop), order] = 1
        return floats(weights / (peers.degree + 1))
    free, pairs = set(range(servers)), Pairs()
    edges = np.argwhere(np.triu(links))
    for a, b in edges[draws.permutation(len(edges))].tolist():
        if {a, b} <= free:
            free -= {a, b}
            pairs[a, b] = 1 / 2
    return _matrix(pairs, servers)


def _matrix(pairs: Pairs, servers: int) -> Floats:
    weights = np.zeros((servers, servers))
    for (a, b), share in pairs.items():
        weights[a, b] = weights[b, a] = share
    return floats(weights + np.diag(1 - weights.sum(axis=1)))


def _balanced(weights: Floats, mass: Floats) -> Floats:
    """The same exchange among clusters of any sizes; it keeps their weighted mean on its own."""
    away = weights - np.diag(weights.diagonal())
    if (away == away.T).all():  # two servers give each other what the smaller one can
        away = away * np.minimum(1, mass[None, :] / mass[:, None])
    else:  # whatever flows in, flows out
        away = away * mass.min() / mass[:, None]
    return floats(away + np.diag(1 - away.sum(axis=1)))


def _standing_for(drawn: list[Floats], mass: Floats) -> list[Floats]:
    """Whole passes whose product is the weighted mean: models count by what they stand for."""
    found, weight = [], mass * len(mass)
    for weights in drawn:
        after = (weights * weight).sum(axis=1)
        found.append(floats(weights * weight[None, :] / after[:, None]))
        weight = after
    return found


@lru_cache(maxsize=64)
def _base(servers: int, k: int) -> tuple[Pairs, ...]:
    """The base-(k + 1) graphs: exact agreement of any number of servers, each with k at a time."""
    everyone = list(range(servers))
    smooth = max(n for n in range(1, servers + 1) if not servers % n and _factors(n, k) is not None)
    parts = [everyone[n::smooth] for n in range(smooth)]  # each agrees, then they do
    inner = _together([_simple(part, k) for part in parts])
    rows = list(zip(*parts, strict=True))
    outer = _together([_cube(list(row), k) for row in rows])
    both, simple = [*inner, *outer], _simple(everyone, k)
    return tuple(simple if len(simple) <= len(both) else both)


def _simple(nodes: list[int], k: int) -> list[Pairs]:
    """Split by the digits of the count: each part agrees, then larger ones share with smaller."""
    if _factors(len(nodes), k) is not None:
        return _cube(nodes, k)
    parts = _digits(nodes, k)
    stages = _together([_cube([n for block in part for n in block], k) for part in parts])
    ends: list[list[Pairs]] = []
    for step, blocks in enumerate(parts[:-1]):
        rest = [n for part in parts[step + 1 :] for block in part for n in block]
        size = sum(map(len, blocks))
        share = size / len(blocks) / (size + len(rest))
        met: Pairs = {(n, block[at]): share for at, n in enumerate(rest) for block in blocks}
        after = _together([_cube(block, k) for block in blocks])
        ends.append([*([{}] * step), met, *after])
    return [*stages, *_together(ends)]


def _digits(nodes: list[int], k: int) -> list[list[list[int]]]:
    """Blocks of powers of k + 1, the largest first: as many of each as the digit says."""
    found, left = [], nodes
    while left:
        size = 1
        while size * (k + 1) <= len(left):
            size *= k + 1
        count = len(left) // size
        found.append([left[n * size : (n + 1) * size] for n in range(count)])
        left = left[count * size :]
    return found


def _cube(nodes: list[int], k: int) -> list[Pairs]:
    """Stages of groups of at most k + 1 that have not met yet: a hypercube with longer sides."""
    found, stride = [], 1
    for side in _factors(len(nodes), k) or ():
        pairs: Pairs = {}
        for a in range(len(nodes)):
            for n in range(1, side):
                b = a + n * stride
                same = a // (stride * side) == b // (stride * side)
                if same and b < len(nodes):
                    pairs[nodes[a], nodes[b]] = 1 / side
        found.append(pairs)
        stride *= side
    return found


def _together(sequences: list[list[Pairs]]) -> list[Pairs]:
    """What separate groups do at the same time."""
    length = max(map(len, sequences), default=0)
    return [
        {pair: share for each in sequences if n < len(each) for pair, share in each[n].items()}
        for n in range(length)
    ]


@lru_cache(maxsize=256)
def _factors(n: int, k: int) -> tuple[int, ...] | None:
    """The fewest factors of `n` that are at most k + 1; None if there are none.

    >>> _factors(12, 2), _factors(8, 3), _factors(10, 2)
    ((3, 2, 2), (4, 2), None)
    """
    if n == 1:
        return ()
    tried = [
        (side, *rest)
        for side in range(min(n, k + 1), 1, -1)
        if n % side == 0 and (rest := _factors(n // side, k)) is not None
    ]
    return min(tried, key=len, default=None)
