"""Who exists, who reaches whom, and how neighbouring servers mix."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from sdfeel.core.arrays import Floats, Ints, floats, ints
from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import TOLERANCE, check_weights, laplacian_weights, mixing_rate


@dataclass(frozen=True)
class Shelf:
    """Rows beside the servers' models: one for each client or server, each held by one party."""

    name: str
    per: Literal["client", "server"]
    held: Literal["client", "server"] = "server"  # by the client itself, or by a server: its own
    start: Literal["model", "zero"] = "model"  # what its rows are at first
    returned: bool = False  # are its rows what a run returns, in place of the servers' models?


@dataclass(frozen=True, eq=False)
class Network:
    """C clients and D edge servers, checked on construction.

    `links` joins servers; `weights[dst, src]` says how a server mixes its neighbours' models
    (default: the paper's matrix). To change the graph, build another network.
    A client that reaches no server takes no part and has no weight.
    """

    samples: Floats  # (C,) training examples of each client
    reach: tuple[tuple[int, ...], ...]  # servers that each client can reach, its home first
    links: Floats  # (D, D) 1 where two servers are connected
    weights: Floats | None = None  # (D, D) how servers mix
    shelves: tuple[Shelf, ...] = ()  # what the scheme keeps beside the servers' models
    sizes: Floats | None = None  # (D,) each cluster's examples; given for one moment of a changing
    # network (core.outages), whose parts may be down or cut off from one another
    graph: Floats | None = None  # (D, D) all links of a changing network, up or down

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", floats(self.samples))
        object.__setattr__(self, "links", floats(self.links))
        object.__setattr__(self, "reach", tuple(tuple(servers) for servers in self.reach))
        names = [shelf.name for shelf in self.shelves]
        assert len(set(names)) == len(names), f"two shelves have the same name: {names}"
        assert sum(shelf.returned for shelf in self.shelves) <= 1, "a run returns one shelf"
        whole = self.sizes is None
        _check_links(self.links, whole)
        _check_clients(self.samples, self.reach, len(self.links), whole)
        if self.weights is None:
            object.__setattr__(self, "weights", floats(laplacian_weights(self.links, self.mass)))
        else:
            object.__setattr__(self, "weights", floats(self.weights))
            if whole:
                check_weights(self.mixing, self.links, self.mass)

    def neighbours(self, server: int) -> Ints:
        """The servers that are linked to this one, whether or not it can reach them now."""
        return np.flatnonzero((self.links if self.graph is None else self.graph)[server])

    @property
    def clients(self) -> Ints:
        """The clients that reach a server."""
        return np.flatnonzero(self.home >= 0)

    def shelf(self, name: str) -> Ints:
        """(C,) or (D,) the numbers of a shelf's rows, which any mixing may name.

        They are negative: the rows of shelves come after the servers' models and count backwards.

        >>> from dataclasses import replace
        >>> pair = clustered([1, 1, 1], [0, 0, 1], np.array([[0, 1], [1, 0]]))
        >>> kept = replace(pair, shelves=(Shelf("cache", "client"), Shelf("step", "server")))
        >>> kept.shelf("step").tolist()
        [-4, -5]
        """
        return self._rows_of[name]

    @property
    def kept(self) -> int:
        """Rows on all shelves."""
        return sum(map(len, self._rows_of.values()))

    @cached_property
    def returned(self) -> tuple[Ints, Floats]:
        """The rows whose weighted mean a run returns, and their weights: the servers' models by
        their clusters' data, unless a shelf is `returned`."""
        shelf = next((each for each in self.shelves if each.returned), None)
        if shelf is None:
            return ints(self.servers), self.mass
        rows = self.shelf(shelf.name)
        if shelf.per == "server":
            return rows, self.mass
        who = self.clients
        return ints(rows[who]), floats(self.samples[who] / self.samples[who].sum())

    @cached_property
    def _rows_of(self) -> dict[str, Ints]:
        found, begin = {}, 0
        for each in self.shelves:
            count = len(self.samples) if each.per == "client" else len(self.links)
            found[each.name] = ints(-1 - begin - np.arange(count))
            begin += count
        return found

    @cached_property
    def _holders(self) -> Ints:
        """(kept,) the holder of row -1 - n."""
        found = [np.zeros(0, dtype=np.int64)]
        for each in self.shelves:
            own = np.arange(len(self._rows_of[each.name]))
            if each.per == "client":
                own = -1 - own if each.held == "client" else np.maximum(self.home, 0)
            found.append(own)
        return ints(np.concatenate(found))

    def holder(self, rows: ArrayLike) -> Ints:
        """Who holds each of these rows, servers' own and shelves': d for server d, -1 - i for
        client i."""
        numbers = np.asarray(rows, dtype=np.int64)
        if not self.shelves:
            return ints(numbers)
        behind = self._holders[np.where(numbers < 0, -1 - numbers, 0)]
        return ints(np.where(numbers >= 0, numbers, behind))

    @property
    def servers(self) -> tuple[int, ...]:
        """All server numbers."""
        return tuple(range(len(self.links)))

    @property
    def mixing(self) -> Floats:
        """(D, D) how servers mix: `mixing[dst, src]`."""
        assert self.weights is not None  # __post_init__ fills it
        return self.weights

    @cached_property
    def home(self) -> Ints:
        """(C,) each client's own server; -1 for a client that reaches none."""
        return ints([servers[0] if servers else -1 for servers in self.reach])

    @cached_property
    def mass(self) -> Floats:
        """(D,) each cluster's share of all training examples; sums to 1."""
        if self.sizes is not None:
            return floats(self.sizes / self.sizes.sum())
        who = self.clients
        counts = np.bincount(self.home[who], self.samples[who], minlength=len(self.links))
        return floats(counts / counts.sum())

    @cached_property
    def zeta(self) -> float:
        """How slowly the servers agree: 0 means in one exchange, close to 1 hardly ever.

        At a moment of a changing network, it is that of the servers that are linked to one another.
        """
        if self.sizes is not None:
            rates = np.abs(np.linalg.eigvals(self.mixing))
            return float(rates[rates < 1 - TOLERANCE].max(initial=0.0))
        return mixing_rate(self.mixing, self.mass)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The server graph as pairs, lower number first."""
        return [(int(a), int(b)) for a, b in np.argwhere(np.triu(self.links))]


def clustered(
    samples: Sequence[float] | Floats, home: Sequence[int] | Ints, links: Floats
) -> Network:
    """A network in which every client reaches exactly one server.

    >>> clustered([30, 10, 20, 40], [0, 0, 1, 2], np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])).mass
    array([0.4, 0.2, 0.4])
    """
    return Network(floats(samples), tuple((int(d),) for d in home), floats(links))


def _check_links(links: Floats, whole: bool) -> None:
    if links.ndim != 2 or links.shape[0] != links.shape[1] or len(links) == 0:
        raise InputError(f"links must be a square matrix with a row per server, got {links.shape}")
    if not np.isin(links, (0, 1)).all():
        raise InputError("links must hold only 0 (not connected) and 1 (connected)")
    if not np.array_equal(links, links.T):
        a, b = map(int, np.argwhere(links != links.T)[0])
        raise InputError(
            f"links go both ways, but servers {a} and {b} disagree about theirs: "
            f"make the matrix symmetric"
        )
    if links.diagonal().any():
        raise InputError(
            f"server {int(links.diagonal().argmax())} is linked to itself: leave the diagonal 0"
        )
    apart = unreached(links)
    if apart and whole:
        raise InputError(
            f"the server graph is disconnected: servers {apart} cannot be reached from server 0, "
            f"so models would never agree; add a link between the parts"
        )


def unreached(links: Floats) -> list[int]:
    """Servers that no path joins to server 0.

    >>> unreached(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]]))
    [2]
    """
    seen = np.zeros(len(links), dtype=bool)
    seen[0] = True
    front = seen
    while front.any():
        front = (links[front].sum(axis=0) > 0) & ~seen
        seen = seen | front
    return [int(d) for d in np.flatnonzero(~seen)]


def fastest_paths(links: Floats, rates: Floats | None = None) -> tuple[Floats, Ints]:
    """(D, D) how long a model travels between two servers, and over how many links.

    The unit is a link of rate 1 (`rates`: (D, D), default 1 everywhere); infinite where there is no
    path.

    >>> times, crossed = fastest_paths(np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]]),
    ...                                np.array([[0, 1, 0.2], [1, 0, 1], [0.2, 1, 0]]))
    >>> times[0].tolist(), crossed[0].tolist()
    ([0.0, 1.0, 2.0], [0, 1, 2])
    """
    speed = links * (1.0 if rates is None else rates)
    times = np.divide(1.0, speed, out=np.full(links.shape, np.inf), where=speed > 0)
    np.fill_diagonal(times, 0.0)
    crossed = (speed > 0).astype(np.int64)
    for via in range(len(links)):
        through = times[:, via, None] + times[via]
        shorter = through < times
        crossed = np.where(shorter, crossed[:, via, None] + crossed[via], crossed)
        times = np.where(shorter, through, times)
    return floats(times), ints(crossed)


def _check_clients(
    samples: Floats, reach: tuple[tuple[int, ...], ...], servers: int, whole: bool
) -> None:
    if samples.ndim != 1 or len(samples) == 0:
        raise InputError("a network needs at least one client")
    if len(reach) != len(samples):
        raise InputError(
            f"{len(samples)} clients have samples, but {len(reach)} have servers: give one of each"
        )
    empty = np.flatnonzero(~(samples > 0) | ~np.isfinite(samples))
    if empty.size:
        raise InputError(
            f"client {int(empty[0])} has {samples[empty[0]]:g} training examples; every client "
            f"needs at least one: use fewer clients or another partition"
        )
    for client, own in enumerate(reach):
        bad = [d for d in own if not 0 <= d < servers]
        if bad:
            raise InputError(
                f"client {client} is assigned to server {bad[0]}, but servers are numbered "
                f"0 to {servers - 1}"
            )
    lonely = sorted(set(range(servers)) - {own[0] for own in reach if own})
    if lonely and whole:
        raise InputError(
            f"server {lonely[0]} has no clients; every cluster needs at least one: "
            f"use fewer servers or more clients"
        )
