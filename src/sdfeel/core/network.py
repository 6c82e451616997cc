"""Who exists, who reaches whom, and how neighbouring servers mix."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sdfeel.core.arrays import Floats, Ints, floats, ints
from sdfeel.core.errors import InputError, of_kind
from sdfeel.core.gossip_weights import (
    TOLERANCE,
    check_shape,
    check_weights,
    laplacian_weights,
    metropolis,
    mixing_rate,
    weights_of,
)
from sdfeel.core.peers import Peers, check_links, named
from sdfeel.core.peers import rate as rate_of
from sdfeel.core.sparse import Sparse, reached

RECENT = 1 << 12  # results that `Network.recent` keeps at a time

Found = TypeVar("Found")


@dataclass(frozen=True)
class Shelf:
    """Rows apart from the servers' models: one per client or server, each held by one party."""

    name: str
    per: Literal["client", "server"]
    held: Literal["client", "server"] = "server"  # by the client itself, or by its server
    start: Literal["model", "zero"] = "model"  # what its rows are at first
    returned: bool = False  # are its rows what a run returns, in place of the servers' models?
    trained: bool = False  # is it where servers put what clients trained, before they correct it?


@dataclass(frozen=True, eq=False)
class Network:
    """C clients and D edge servers, checked on construction.

    `linked` joins servers; `weights[dst, src]` says how a server mixes its neighbours' models
    (default: the paper's matrix). To change the graph, build another network.
    A client that reaches no server takes no part and has no weight, and neither does a server that
    is `out`: it has no clients and no links, only its number.
    """

    samples: Floats  # (C,) training examples of each client
    reach: tuple[tuple[int, ...], ...]  # servers that each client can reach, its home first
    linked: Sparse  # (D, D) 1 where two servers are connected; any matrix will do
    weights: Sparse | None = None  # (D, D) how servers mix; any matrix will do
    shelves: tuple[Shelf, ...] = ()  # what the scheme keeps in addition to the servers' models
    sizes: Floats | None = None  # (D,) each cluster's examples; given for one moment of a changing
    # network (core.outages), whose parts may be down or cut off from one another
    graph: Sparse | None = None  # (D, D) all links of a changing network, up or down
    out: tuple[int, ...] = ()  # servers that have left, or not yet joined (core.membership)
    places: tuple[tuple[float, float], ...] | None = None  # each server's longitude and latitude
    peers: Peers | None = None  # who meets whom in which exchange; None: all neighbours, always

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", floats(self.samples))
        object.__setattr__(self, "linked", square(self.linked))
        try:
            reach = tuple(tuple(servers) for servers in self.reach)
        except TypeError:
            of_kind(
                "reach", self.reach, (), "the servers that each client reaches, client by client"
            )
        object.__setattr__(self, "reach", reach)
        names = [shelf.name for shelf in self.shelves]
        assert len(set(names)) == len(names), f"two shelves have the same name: {names}"
        assert sum(shelf.returned for shelf in self.shelves) <= 1, "a run returns at most one shelf"
        assert sum(shelf.trained for shelf in self.shelves) <= 1, "at most one shelf is `trained`"
        whole = self.sizes is None
        _check_links(self.linked, whole, self.out)
        _check_clients(self.samples, self.reach, len(self.linked), whole, self.out)
        if self.peers is not None and whole:
            check_links(self.peers, self.links, self.out)
        if self.weights is not None:
            if not isinstance(self.weights, Sparse):
                check_shape(np.shape(self.weights), len(self.linked))
            weights = Sparse.of(self.weights)
            object.__setattr__(self, "weights", weights)
            if whole:
                check_shape(weights.shape, len(self.linked))
                there = self.present
                check_weights(weights.among(there), self.linked.among(there), self.mass[there])

    def neighbours(self, server: int) -> Ints:
        """The servers that are linked to this one, whether or not it can reach them now."""
        return (self.linked if self.graph is None else self.graph).row(server)

    def neighbourhood(self, server: int) -> Ints:
        """The same, and the server itself at the end."""
        key = "neighbourhood", server
        if key not in self.memo:
            self.memo[key] = ints(np.append(self.neighbours(server), server))
        found: Ints = self.memo[key]
        return found

    @cached_property
    def memo(self) -> dict[Hashable, Any]:
        """What has been worked out about this network and will be needed again."""
        return {}

    def recent(self, key: Hashable, make: Callable[[], Found]) -> Found:
        """`memo`, for keys that keep changing, such as the ages of models: only a few thousand
        results are kept."""
        recent: dict[Hashable, Found] = self.memo.setdefault("recent", {})
        try:
            return recent[key]
        except KeyError:
            if len(recent) >= RECENT:
                recent.clear()
        found = recent[key] = make()
        return found

    @property
    def links(self) -> Floats:
        """(D, D) `linked`, with all its zeros: not for thousands of servers."""
        return self.linked.dense

    @cached_property
    def clients(self) -> Ints:
        """The clients that reach a server."""
        return ints(np.flatnonzero(self.home >= 0))

    def cluster(self, server: int) -> Ints:
        """The clients whose own server this is, in ascending order."""
        by_server, begins = self._clusters
        return by_server[begins[server] : begins[server + 1]]

    @cached_property
    def _clusters(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.home, kind="stable")
        return ints(order), ints(np.searchsorted(self.home[order], range(len(self.linked) + 1)))

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
            return self.present, floats(self.mass[self.present])
        rows = self.shelf(shelf.name)
        if shelf.per == "server":
            return rows, self.mass
        who = self.clients
        return ints(rows[who]), floats(self.samples[who] / self.samples[who].sum())

    @property
    def trained(self) -> Ints:
        """(D,) the rows that clusters are averaged into: the models, unless a shelf is `trained`.

        A server that corrects what it mixes keeps the two apart.
        """
        shelf = next((each for each in self.shelves if each.trained), None)
        return ints(self.servers) if shelf is None else self.shelf(shelf.name)

    def first_rows(self) -> Iterator[tuple[int, int | None]]:
        """Each row of a shelf with the server whose model it is at first; None: it is zero."""
        for shelf in self.shelves:
            own = self.servers if shelf.per == "server" else self.home.tolist()
            for row, server in zip(self.shelf(shelf.name).tolist(), own, strict=True):
                yield row, None if shelf.start == "zero" or server < 0 else server

    @cached_property
    def _rows_of(self) -> dict[str, Ints]:
        found, begin = {}, 0
        for each in self.shelves:
            count = len(self.samples) if each.per == "client" else len(self.linked)
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
        return ints(np.where(numbers >= 0, numbers, self._holders[-1 - np.minimum(numbers, -1)]))

    @property
    def servers(self) -> tuple[int, ...]:
        """All server numbers."""
        return tuple(range(len(self.linked)))

    @cached_property
    def present(self) -> Ints:
        """The servers that are not out."""
        if not self.out:
            return ints(self.servers)
        out = set(self.out)
        return ints([d for d in self.servers if d not in out])

    @cached_property
    def shares(self) -> Sparse:
        """(D, D) how servers mix: `shares[dst, src]`."""
        if self.weights is None:  # not before somebody asks: it takes the time of an eigenvalue
            return weights_of(laplacian_weights, self.linked, self.mass)
        return self.weights

    @property
    def mixing(self) -> Floats:
        """(D, D) `shares`, with all its zeros: not for thousands of servers."""
        return self.shares.dense

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
        counts = np.bincount(self.home[who], self.samples[who], minlength=len(self.linked))
        return floats(counts / counts.sum())

    @cached_property
    def zeta(self) -> float:
        """How slowly the servers agree: 0 means in one exchange, close to 1 hardly ever.

        At a moment of a changing network, it is that of the servers that are linked to one another.
        Where each exchange has its own pairs, it is the share of a disagreement that an exchange
        leaves on average.
        """
        if self.peers is not None:
            return rate_of(self.peers, self.mass, self.links)
        if self.sizes is not None:
            rates = np.abs(np.linalg.eigvals(self.mixing))
            return float(rates[rates < 1 - TOLERANCE].max(initial=0.0))
        return mixing_rate(self.shares.among(self.present), self.mass[self.present])

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The server graph as pairs, lower number first."""
        pairs = zip(self.linked.rows.tolist(), self.linked.columns.tolist(), strict=True)
        return [(a, b) for a, b in pairs if a < b]


def meeting_by(net: Network, name: str, seed: int) -> Network | None:
    """`net` with servers that meet few at a time, by the rule of this name; None if none has it."""
    peers = named(name, seed)
    if peers is None:
        return None
    return replace(net, peers=peers, weights=weights_of(metropolis, net.linked, net.mass))


def clustered(
    samples: Sequence[float] | Floats, home: Sequence[int] | Ints, links: "Floats | Sparse"
) -> Network:
    """A network in which every client reaches exactly one server.

    >>> clustered([30, 10, 20, 40], [0, 0, 1, 2], np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])).mass
    array([0.4, 0.2, 0.4])
    """
    sizes, own = np.asarray(samples), np.asarray(home)
    if sizes.ndim != 1 or (len(sizes) and sizes.dtype.kind not in "iuf"):
        of_kind("samples", samples, (), "each client's number of training examples")
    if own.ndim != 1 or (len(own) and own.dtype.kind not in "iu"):
        of_kind("home", home, (), "a server's number for each client")
    return Network(floats(sizes), tuple((d,) for d in own.tolist()), square(links))


def square(links: "ArrayLike | Sparse") -> Sparse:
    if not isinstance(links, Sparse):
        try:
            links = np.asarray(links, dtype=float)
        except (TypeError, ValueError, RuntimeError):
            of_kind("links", links, (), "a square matrix with a row per server")
    shape = np.shape(links) if not isinstance(links, Sparse) else links.shape
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise InputError(f"links must be a square matrix with a row per server, got {shape}")
    return Sparse.of(links)


def _check_links(links: Sparse, whole: bool, out: tuple[int, ...]) -> None:
    if not (links.values == 1).all():
        raise InputError("links must hold only 0 (not connected) and 1 (connected)")
    one_way = np.setxor1d(links.places, links.columns * links.width + links.rows)
    if one_way.size:
        a, b = divmod(int(one_way[0]), len(links))
        raise InputError(
            f"links go both ways, but servers {a} and {b} disagree about theirs: "
            f"make the matrix symmetric"
        )
    own = links.rows[links.rows == links.columns]
    if own.size:
        raise InputError(f"server {int(own[0])} is linked to itself: leave the diagonal 0")
    gone = set(out)
    there = ints([d for d in range(len(links)) if d not in gone])
    if not there.size:
        raise InputError("all servers are out: leave at least one in")
    busy = next((d for d in out if links.row(d).size), None)
    if busy is not None:
        raise InputError(f"server {busy} is out, but has links: remove them")
    apart = there[~reached(links, int(there[0]))[there]].tolist() if whole else []
    if apart:
        raise InputError(
            f"the server graph is disconnected: servers {apart} cannot be reached from server "
            f"{there[0]}, "
            f"so models would never agree; add a link between the parts"
        )


def unreached(links: "ArrayLike | Sparse") -> list[int]:
    """Servers that no path joins to server 0.

    >>> unreached(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]]))
    [2]
    """
    given = Sparse.of(links)
    return [int(d) for d in np.flatnonzero(~reached(given, 0))]


def parts(links: "ArrayLike | Sparse") -> Iterator[Ints]:
    """The servers of each connected part, in ascending order.

    >>> [part.tolist() for part in parts(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]]))]
    [[0, 2], [1]]
    """
    given = Sparse.of(links)
    left = np.ones(len(given), dtype=bool)
    while left.any():
        part = reached(given, int(left.argmax()))
        yield np.flatnonzero(part)
        left &= ~part


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
    samples: Floats,
    reach: tuple[tuple[int, ...], ...],
    servers: int,
    whole: bool,
    out: tuple[int, ...],
) -> None:
    if samples.ndim != 1 or len(samples) == 0:
        raise InputError("a network needs at least one client")
    if len(reach) != len(samples):
        raise InputError(
            f"{len(samples)} clients have samples, but {len(reach)} have servers: give one list of "
            f"servers for each client"
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
        gone = [d for d in own if d in out]
        if gone:
            raise InputError(
                f"client {client} is assigned to server {gone[0]}, which is out: give it another"
            )
    lonely = sorted(set(range(servers)) - {own[0] for own in reach if own} - set(out))
    if lonely and whole:
        raise InputError(
            f"server {lonely[0]} has no clients; every cluster needs at least one: "
            f"use fewer servers or more clients, or look at network.assignment and network.epochs"
        )
