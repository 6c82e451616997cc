"""Weighted sums of models: who takes how much from whom.

The simulator reads a mixing as a matrix product, a deployment as a message schedule: every
entry means that its source sends a model to its destination. It is stored as a sparse matrix,
because a client takes from one server out of a thousand.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike

from sdfeel.core.arrays import Floats, Ints, floats, ints
from sdfeel.core.errors import InputError, of_kind, repeated, said
from sdfeel.core.link_times import Link
from sdfeel.core.network import Network
from sdfeel.core.peers import exchanges
from sdfeel.core.rules import Rule


@dataclass(frozen=True)
class Relay:
    """How models travel through a hub, where they do not go straight from source to taker."""

    legs: float  # the time of the links crossed one after another, in links of the usual rate
    crossings: int  # links crossed by all models together
    busy: float | None = None  # the time of all crossings, in links of the usual rate
    at: int | None = None  # the server that is the hub, if one is

    @property
    def transfers(self) -> float:
        """What all crossings take together, in transfers over a link of the usual rate."""
        return self.crossings if self.busy is None else self.busy


@dataclass(frozen=True, eq=False)
class Mixing:
    """`out[rows] = weights @ inputs`, done `hops` times; rows not named keep what they have."""

    rows: Ints  # (R,) destinations, each once
    starts: Ints  # (R + 1,) where each row's entries begin
    sources: Ints  # (N,) ascending within a row: sums have one order
    weights: Floats  # (N,)
    via: Link
    hops: int = 1
    relay: Relay | None = None
    rule: Rule | None = None  # how a row's terms become one; None: their weighted sum
    votes: Floats | None = None  # (N,) how much a term counts under a rule; None: its weight
    sent: Ints | None = None  # (M, 2) messages (row, to whom); None: one per entry

    def __post_init__(self) -> None:
        repeated("hops", self.hops, "exchanges")
        for name in ("rows", "starts", "sources"):
            object.__setattr__(self, name, ints(getattr(self, name)))
        object.__setattr__(self, "weights", floats(self.weights))
        assert len(self.starts) == len(self.rows) + 1
        assert len(self.sources) == len(self.weights) == self.starts[-1]
        assert self.votes is None or len(self.votes) == len(self.weights)

    def __iter__(self) -> Iterator[tuple[int, Ints, Floats]]:
        """(destination, its sources, their weights), destination by destination."""
        for n, dst in enumerate(self.rows.tolist()):
            span = slice(self.starts[n], self.starts[n + 1])
            yield dst, self.sources[span], self.weights[span]

    def row(self, dst: int) -> dict[int, float]:
        """What `dst` takes: {source: weight}.

        >>> of_matrix(np.array([[0.25, 0.75, 0], [0, 1, 0]])).row(0)
        {0: 0.25, 1: 0.75}
        """
        (n,) = np.flatnonzero(self.rows == dst)
        span = slice(self.starts[n], self.starts[n + 1])
        return dict(zip(self.sources[span].tolist(), self.weights[span].tolist(), strict=True))

    def senders(self, dst: int) -> list[int]:
        """Whom `dst` waits for."""
        return list(self.row(dst))

    def receivers(self, src: int) -> list[int]:
        """Whom `src` sends to."""
        owners = np.repeat(self.rows, np.diff(self.starts))
        return [int(dst) for dst in owners[self.sources == src]]

    @property
    def legs(self) -> float:
        """Links that are crossed one after another: what it costs in time."""
        if self.relay is not None:
            return self.relay.legs
        return self.hops if self.crossings else 0

    @property
    def messages(self) -> int:
        """Models that clients send up."""
        return len(self.sources) if self.sent is None else len(self.sent)

    @cached_property
    def taken(self) -> Ints:
        """The sources, each once, ascending."""
        return ints(np.unique(self.sources))

    @cached_property
    def crossings(self) -> int:
        """Models that cross a link: what it costs in traffic."""
        if self.relay is not None:
            return self.relay.crossings
        if self.sent is not None:
            return self.hops * len(self.sent)
        owners = np.repeat(self.rows, np.diff(self.starts))
        sent = (owners != self.sources) & (owners >= 0) & (self.sources >= 0)
        return self.hops * int(sent.sum())

    @cached_property
    def places(self) -> tuple[list[int], list[int]]:
        """`rows` and `sources` for those who read them one by one."""
        return self.rows.tolist(), self.sources.tolist()

    def sending(self, sent: Ints | None) -> "Mixing":
        """The same with these messages: `replace`, without checking again what was checked."""
        if sent is self.sent:
            return self
        other = object.__new__(Mixing)
        other.__dict__.update(self.__dict__, sent=sent)
        other.__dict__.pop("crossings", None)
        if sent is not None and self.relay is None:
            other.__dict__["crossings"] = self.hops * len(sent)
        return other

    def weighing(self, weights: Floats, votes: Floats | None = None) -> "Mixing":
        """The same with these weights: `replace`, without checking again what was checked."""
        assert len(weights) == len(self.sources)
        other = object.__new__(Mixing)
        # What does not depend on weights is worked out here, once for all that are made from this.
        known = {"places": self.places, "crossings": self.crossings}
        other.__dict__.update(self.__dict__, **known, weights=floats(weights), votes=votes)
        return other

    def dense(self, width: int) -> Floats:
        """(R, width) the same weights as a matrix, for inspection."""
        matrix = np.zeros((len(self.rows), width))
        for n, (_, sources, weights) in enumerate(self):
            matrix[n, sources] = weights
        return matrix


def of_matrix(
    weights: ArrayLike,
    rows: Sequence[int] | None = None,
    hops: int = 1,
    via: Link = "server-server",
    relay: Relay | None = None,
) -> Mixing:
    """A mixing from `weights[dst, src]`; row n is for destination `rows[n]` (default: n)."""
    matrix = floats(weights)
    if matrix.ndim != 2:
        raise InputError(f"weights[dst, src] are a matrix, got {said(weights)}")
    where, sources = np.nonzero(matrix)
    counts = np.bincount(where, minlength=len(matrix))
    return Mixing(
        rows=ints(range(len(matrix)) if rows is None else rows),
        starts=ints(np.concatenate([[0], np.cumsum(counts)])),
        sources=ints(sources),
        weights=floats(matrix[where, sources]),
        via=via,
        hops=hops,
        relay=relay,
    )


ONE_ENTRY, WHOLE = ints([0, 1]), floats([1])


def average(
    destinations: ArrayLike,
    sources: ArrayLike,
    mass: Floats | None = None,
    via: Link = "client-server",
) -> Mixing:
    """Each destination takes the `mass`-weighted mean of the sources paired with it.

    >>> average([7, 7], [1, 0], mass=np.array([1.0, 3.0])).row(7)
    {0: 0.25, 1: 0.75}
    """
    dst, src = np.asarray(destinations, dtype=np.int64), np.asarray(sources, dtype=np.int64)
    if len(dst) == 1:
        return _taken_whole(int(dst[0]), int(src[0]), via)
    order = np.lexsort((src, dst))
    dst, src = dst[order], src[order]
    changes = np.flatnonzero(dst[1:] != dst[:-1]) + 1
    starts = np.concatenate([[0] if len(dst) else [], changes, [len(dst)]]).astype(np.int64)
    weights = np.ones(len(src)) if mass is None else _masses(mass, src)
    if len(weights):
        totals = np.add.reduceat(weights, starts[:-1])
        weights = weights / np.repeat(totals, np.diff(starts))
    return Mixing(ints(dst[starts[:-1]]), ints(starts), ints(src), floats(weights), via)


def _masses(mass: Floats, sources: Ints) -> Floats:
    try:
        found: Floats = mass[sources]
    except IndexError:
        raise InputError(
            f"average takes from number {sources.max()}, but `mass` has {np.size(mass)} entries, "
            f"numbered from 0"
        ) from None
    return found


@lru_cache(maxsize=1 << 16)
def _taken_whole(dst: int, src: int, via: Link) -> Mixing:
    """One destination takes one model; asynchronous lanes do so again and again."""
    return Mixing(ints([dst]), ONE_ENTRY, ints([src]), WHOLE, via)


def of_rows(
    rows: Mapping[int, Mapping[int, float]],
    via: Link = "server-server",
) -> Mixing:
    """A mixing from {destination: {source: weight}}.

    >>> of_rows({7: {1: 0.25, 0: 0.75}}).row(7)
    {0: 0.75, 1: 0.25}
    """
    kind = "a mapping of {destination: {source: weight}}"
    of_kind("rows", rows, Mapping, kind)
    # Asking an abstract class about each of hundreds of rows would cost as much as all the rest.
    if not all(type(row) is dict or isinstance(row, Mapping) for row in rows.values()):
        of_kind("rows", rows, (), kind)
    entries = [sorted(row.items()) for row in rows.values()]
    return Mixing(
        rows=ints(list(rows)),
        starts=ints(list(accumulate(map(len, entries), initial=0))),
        sources=ints([source for row in entries for source, _ in row]),
        weights=floats([weight for row in entries for _, weight in row]),
        via=via,
    )


def broadcast(net: Network, clients: Ints | None = None, via: Link = "client-server") -> Mixing:
    """Each of `clients` (default: all) takes the model of its home server."""
    if clients is not None:
        return average(clients, net.home[clients], via=via)
    key = "broadcast", via  # most schemes ask for the same in every round
    if key not in net.memo:
        net.memo[key] = average(net.clients, net.home[net.clients], via=via)
    found: Mixing = net.memo[key]
    return found


def collect(net: Network, clients: Ints | None = None, via: Link = "client-server") -> Mixing:
    """Each server averages those of `clients` that are its own, by their sample counts."""
    if clients is not None:
        return average(net.home[clients], clients, mass=net.samples, via=via)
    key = "collect", via
    if key not in net.memo:
        net.memo[key] = average(net.home[net.clients], net.clients, mass=net.samples, via=via)
    found: Mixing = net.memo[key]
    return found


def broadcast_within(net: Network, server: int) -> Mixing:
    """The clients of one server take its model."""
    key = "broadcast_within", server
    if key not in net.memo:
        net.memo[key] = broadcast(net, net.cluster(server))
    found: Mixing = net.memo[key]
    return found


@lru_cache(maxsize=16)
def gossip(net: Network, hops: int) -> Mixing:
    """Servers mix with their neighbours, `hops` times."""
    shares, servers = net.shares, ints(net.servers)
    return Mixing(servers, shares.starts, shares.columns, shares.values, "server-server", hops)


@lru_cache(maxsize=64)
def meeting(net: Network, hops: int, number: int = 0) -> tuple[Mixing, ...]:
    """The `hops` exchanges of the servers' meeting `number`, with all neighbours or with few."""
    if net.peers is None:
        return (gossip(net, hops),)
    found = exchanges(net.peers, net.mass, net.links, number * hops, hops)
    return tuple(map(_of_those_who_meet, found))


def _of_those_who_meet(weights: Floats) -> Mixing:
    """A mixing without the rows of servers that meet nobody."""
    rows = np.flatnonzero((weights != 0).sum(axis=1) > 1)
    return of_matrix(weights[rows], rows=rows.tolist())


def star(net: Network, centre: int, trust: Floats, balanced: bool = False) -> Mixing:
    """`centre` mixes with its neighbours, each weighted by its `trust` (D,).

    The centre takes the trusted mean of its neighbourhood; each neighbour moves towards the
    centre by the same share. That keeps the plain mean of all models; `balanced` keeps the mean
    weighted by the clusters' sizes instead.

    >>> from sdfeel.core.network import clustered
    >>> line = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> star(clustered([1, 1, 1], [0, 1, 2], line), 0, np.array([0.5, 1 / 6, 0])).dense(3)
    array([[0.75, 0.25, 0.  ],
           [0.25, 0.75, 0.  ]])
    """
    return star_among(net, centre, trust[net.neighbourhood(centre)], balanced)


def star_among(net: Network, centre: int, trust: Floats, balanced: bool = False) -> Mixing:
    """The same, given only the `trust` in each neighbour, and in the centre: its last number."""
    around, others = net.neighbours(centre), trust[:-1]
    assert len(others) == len(around)
    shares = others / (np.add.reduce(others) + trust[-1])
    taken, given = shares, shares
    if balanced:
        ratio = net.mass[around] / net.mass[centre]
        taken, given = shares * np.minimum(1, ratio), shares * np.minimum(1, 1 / ratio)
    places, own = _star_places(net, centre)
    weights = np.concatenate((taken, given, 1 - given, (1 - np.add.reduce(taken),)))[own]
    weights.setflags(write=False)
    found = places.weighing(weights)
    return found if np.count_nonzero(weights) == len(weights) else _without_zeros(found)


def _star_places(net: Network, centre: int) -> tuple[Mixing, Ints]:
    """Who takes from whom in a star, and which of its weights (what the centre takes, what it
    gives, what is left, what it keeps) belongs to each entry."""
    key = "star", centre
    if key not in net.memo:
        around = net.neighbours(centre).tolist()
        count = len(around)
        rows = {centre: {server: float(n) for n, server in enumerate(around)}}
        rows[centre][centre] = 3.0 * count
        for n, server in enumerate(around):
            rows[server] = {centre: float(count + n), server: float(2 * count + n)}
        places = of_rows({dst: rows[dst] for dst in sorted(rows)})
        net.memo[key] = places, ints(places.weights.astype(np.int64))
    found: tuple[Mixing, Ints] = net.memo[key]
    return found


def _without_zeros(mixing: Mixing) -> Mixing:
    """The same without entries of weight 0, for which nobody need send anything."""
    rows = {dst: dict(zip(s.tolist(), w.tolist(), strict=True)) for dst, s, w in mixing}
    return of_rows({dst: {s: w for s, w in row.items() if w} for dst, row in rows.items()})


def everyones_mean(net: Network, via: Link, relay: Relay) -> Mixing:
    """Every server takes the mean over all clusters, computed in one place."""
    return of_matrix(np.tile(net.mass, (len(net.servers), 1)), via=via, relay=relay)


@lru_cache(maxsize=16)
def cloud_average(net: Network) -> Mixing:
    """Every server takes the mean over all clusters, computed in the cloud."""
    # The way down costs traffic but no time, as in the paper.
    return everyones_mean(net, "server-cloud", Relay(legs=1, crossings=2 * len(net.present)))
