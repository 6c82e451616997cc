"""Server graphs that change: links and servers come and go, by a schedule or by chance.

One rule says what becomes of an exchange when somebody is away (`among`), and a deployed server
applies it to what it observes itself. Whatever happens, mixing keeps the mean of the models of the
servers that are up, weighted by their clusters' sizes. A server that is away keeps its model and
comes back with it.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Bools, Floats, Ints, floats
from sdfeel.core.cost import Bill, Cost
from sdfeel.core.errors import InputError
from sdfeel.core.mixing import Mixing, of_rows
from sdfeel.core.network import Network, parts
from sdfeel.core.partial_mixing import nothing, restricted
from sdfeel.core.scheme import Lane, Memory, Mix, Work
from sdfeel.core.seeds import rng
from sdfeel.core.sparse import Sparse
from sdfeel.core.staleness import Clocks
from sdfeel.core.whereabouts import Whereabouts

Unit = Literal["round", "second"]
BATCH = 64  # how many of a server's up and down times are drawn together


@dataclass(frozen=True)
class Change:
    """From `when` on, a link (two servers), a server (one) or the cloud (none) is up or down."""

    when: float
    unit: Unit
    who: tuple[int, ...]
    up: bool


@dataclass(frozen=True, eq=False)
class NetworkState:
    """What is up in a network: a scheme decides on `net`, and `across` does what is possible."""

    net: Network  # links that are up, clients that reach a server, the weights of the whole network
    cloud: bool = True
    central: bool = False  # is the only server the cloud?
    servers: Bools | None = None  # (D,) which are up; None: those that have clients

    def across(self, mixing: Mixing | None) -> Mixing | None:
        """What is left of a scheme's mixing between servers."""
        if mixing is None or (mixing.via == "server-cloud" and not self.cloud):
            return None
        both = np.outer(self.there, self.there)
        if mixing.via == "server-cloud":
            return among(mixing, both, self.net)
        links = self.net.links
        reach = _joined(links) & both if mixing.relay is not None else links > 0
        return among(mixing, reach, self.net)

    @cached_property
    def there(self) -> Bools:
        """(D,) which servers take part: those that have clients."""
        there = np.zeros(len(self.net.linked), dtype=bool)
        there[self.net.home[self.net.clients]] = True
        return there

    @property
    def up(self) -> Bools:
        """(D,) which servers are up, with or without clients."""
        return self.there if self.servers is None else self.servers


def among(mixing: Mixing, reach: Bools, net: Network | None = None) -> Mixing:
    """A mixing between servers where `reach[dst, src]` says whose models arrive.

    With `net`, rows of shelves arrive where those of their holders do.

    Between neighbours, a share that does not arrive stays with the server that would have taken it.
    Where two servers weight each other in proportion to their data, as all built-in rules do, that
    keeps the weighted mean, and each server need only know which of its own neighbours are away. A
    mean that is computed in one place (a cloud, a relay) is the mean of the models that arrived; a
    server that does not reach even itself is away. A server left with only its own model keeps it,
    and has no row.

    >>> from sdfeel.core.mixing import of_rows
    >>> path = of_rows({0: {0: 0.5, 1: 0.25, 2: 0.25}, 1: {0: 0.25, 1: 0.75}})
    >>> among(path, np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]]) > 0).row(0)
    {0: 0.75, 1: 0.25}
    """
    if mixing.via == "server-cloud" or mixing.relay is not None:
        return _of_those_who_came(mixing, reach)
    if mixing.sent is not None and not len(mixing.sent):
        return mixing  # nothing travels
    arrives = reach | np.eye(len(reach), dtype=bool)
    if mixing.rule is not None and not mixing.rule.differences:
        # It counts votes, not shares; a server's difference from itself is nothing.
        return _of_those_who_came(mixing, arrives)
    rows, changed = {}, False
    for dst, sources, weights in mixing:
        row = dict(zip(sources.tolist(), weights.tolist(), strict=True))
        lost = [src for src in row if not _arrives(dst, src, arrives, net)]
        if lost:
            share = 0.0
            for src in lost:  # in the order of the row: sums have one order
                share += row.pop(src)
            row[dst] = row.get(dst, 0.0) + share
        changed = changed or bool(lost)
        if not lost or row.keys() != {dst}:
            rows[dst] = row
    return _with_rows(mixing, rows) if changed else mixing


def _arrives(dst: int, src: int, arrives: Bools, net: Network | None) -> bool:
    to, of = (dst, src) if net is None or not net.shelves else net.holder([dst, src]).tolist()
    return to < 0 or of < 0 or bool(arrives[to, of])


def _of_those_who_came(mixing: Mixing, reach: Bools) -> Mixing:
    """Each row over the sources that arrive there, scaled to the total that it had."""
    if reach.all():
        return mixing
    groups = [who for who in np.unique(reach, axis=0) if who.any()]
    found = [restricted(mixing, who, (reach == who).all(axis=1)) for who in groups]
    return reduce(_both, found) if found else nothing(mixing)


def _both(one: Mixing, other: Mixing) -> Mixing:
    """The rows of two mixings, in ascending order."""
    rows = {dst: dict(zip(s.tolist(), w.tolist(), strict=True)) for dst, s, w in (*one, *other)}
    relay = one.relay
    if relay is not None and other.relay is not None:
        relay = replace(relay, crossings=relay.crossings + other.relay.crossings)
    return replace(_with_rows(one, dict(sorted(rows.items()))), relay=relay)


def _with_rows(like: Mixing, rows: dict[int, dict[int, float]]) -> Mixing:
    found = of_rows(rows, like.via)
    return replace(found, hops=like.hops, relay=like.relay, rule=like.rule)


def _joined(links: Floats) -> Bools:
    """(D, D) which servers are joined by some path."""
    joined = np.zeros(links.shape, dtype=bool)
    for part in parts(links):
        joined[np.ix_(part, part)] = True
    return joined


@dataclass(frozen=True, eq=False)
class Outages:
    """What is up when a round begins, and where clients are: a pure function of its number and its
    time."""

    schedule: tuple[Change, ...] = ()  # in chronological order
    link_chance: float = 1.0  # that a link is up, drawn afresh in every round
    up_seconds: float | None = None  # mean time until a server fails; None: never
    down_seconds: float = 1.0  # mean time until it is back
    seed: int = 0
    central: bool = False  # is the only server the cloud?
    clients: Whereabouts | None = None  # None: they stay where they are, and are always there

    @property
    def moves(self) -> bool:
        """Do clients change their servers?"""
        return self.clients is not None and self.clients.moves

    def at(self, net: Network, number: int, seconds: float, moving: bool = True) -> NetworkState:
        """The network of a round that begins when `number` rounds of all lanes are over.

        `moving`: clients of several cells continue with another server while their own is away.
        """
        if self.clients is not None:
            net = self.clients.at(net, number, seconds)
        now: dict[Unit, float] = {"round": number, "second": seconds}
        links, servers, cloud = _scheduled(
            net.links, [each for each in self.schedule if each.when <= now[each.unit]]
        )
        if self.link_chance < 1:
            drawn = rng(self.seed, "links", number).random(links.shape)
            links = links * (np.triu(drawn) + np.triu(drawn, 1).T < self.link_chance)
        if self.up_seconds is not None:
            lasts = (self.up_seconds, self.down_seconds)
            servers = servers & [_is_up(self.seed, d, lasts, seconds) for d in net.servers]
        if self.central:
            servers = servers & cloud
        links = links * np.outer(servers, servers)
        own = _up_now(net, links.tobytes(), servers.tobytes(), moving)
        alone = self.clients is None  # then servers that are up have clients
        return NetworkState(own, cloud, self.central, None if alone else servers)

    def will_change(self, number: int, seconds: float) -> bool:
        """Can anybody who is away still come back?"""
        now: dict[Unit, float] = {"round": number, "second": seconds}
        later = any(each.up and each.when > now[each.unit] for each in self.schedule)
        back = self.clients is not None and self.clients.will_change(number, seconds)
        return later or back or self.up_seconds is not None

    def cut_off(self, net: Network) -> list[list[int]]:
        """The parts into which the servers that are up at the schedule's end are divided."""
        links, servers, _ = _scheduled(net.links, list(self.schedule))
        found = parts(links * np.outer(servers, servers))
        return [part.tolist() for part in found if servers[part[0]]]


@lru_cache(maxsize=256)  # mixings are remembered by network: the same state is the same object
def _up_now(net: Network, up_links: bytes, up_servers: bytes, moving: bool) -> Network:
    """The network as it is now, with the mixing weights of the network with everything up."""
    links = np.frombuffer(up_links).reshape(net.links.shape)
    servers = np.frombuffer(up_servers, dtype=bool)
    if servers.all() and np.array_equal(links, net.links):
        return net
    reach = net.reach
    if not servers.all():
        reach = tuple(
            tuple(d for d in own if servers[d] and (moving or servers[own[0]])) for own in reach
        )
    own = net.shares
    return replace(
        net, reach=reach, linked=Sparse.of(links), sizes=net.mass, graph=net.linked, weights=own
    )


def _scheduled(links: Floats, changes: list[Change]) -> tuple[Floats, Bools, bool]:
    """Links, servers and cloud after these changes."""
    links, servers, cloud = links.copy(), np.ones(len(links), dtype=bool), True
    for each in changes:
        if len(each.who) == 2:
            a, b = each.who
            links[a, b] = links[b, a] = each.up
        elif each.who:
            servers[each.who[0]] = each.up
        else:
            cloud = each.up
    return links, servers, cloud


def _is_up(seed: int, server: int, lasts: tuple[float, float], seconds: float) -> bool:
    """Is a server up that fails and recovers at times drawn for it?"""
    batch, begin = 0, 0.0
    while True:
        ends = _toggles(seed, server, batch, lasts)
        if seconds < begin + ends[-1]:
            return int(np.searchsorted(ends, seconds - begin, side="right")) % 2 == 0
        begin += float(ends[-1])
        batch += 1


@lru_cache(maxsize=4096)
def _toggles(seed: int, server: int, batch: int, lasts: tuple[float, float]) -> Floats:
    """(BATCH,) when the server changes its state, from the beginning of the batch on."""
    drawn = rng(seed, "failures", server, batch).exponential(size=BATCH)
    return floats(np.cumsum(drawn * np.tile(lasts, BATCH // 2)))


NUMBERS = {"link": 2, "server": 1, "cloud": 0}  # of servers, in a line about each
UNITS: dict[str, Unit] = {"round": "round", "second": "second"}
EXAMPLE = "'round 50 server 3 down' or 'second 12.5 link 0 1 up'"


def schedule(text: str, name: str) -> tuple[Change, ...]:
    """The changes in a file called `name`, in chronological order.

    >>> schedule("round 5 link 0 1 down  # a storm", "storm.txt")
    (Change(when=5.0, unit='round', who=(0, 1), up=False),)
    """
    changes = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if words:
            try:
                changes.append(_change(words))
            except (ValueError, KeyError, IndexError):
                raise InputError(
                    f"line {number} of {name} is '{line.strip()}', which is not a change: write "
                    f"lines like {EXAMPLE}"
                ) from None
    if len({change.unit for change in changes}) > 1:
        raise InputError(f"{name} mixes rounds and seconds: use one of them in all lines")
    return tuple(sorted(changes, key=lambda change: change.when))


def _change(words: list[str]) -> Change:
    unit, when, what, *who, state = words
    if len(who) != NUMBERS[what] or not float(when) >= 0:
        raise ValueError
    numbers = tuple(int(server) for server in who)
    return Change(float(when), UNITS[unit], numbers, {"up": True, "down": False}[state])


def check(changes: tuple[Change, ...], net: Network, name: str) -> None:
    """Refuse servers and links that the network does not have, and an end without servers."""
    count = len(net.servers)
    for change in changes:
        strange = [d for d in change.who if not 0 <= d < count]
        if strange:
            raise InputError(
                f"{name} changes server {strange[0]}, but servers are numbered 0 to {count - 1}"
            )
        if len(change.who) == 2 and not net.links[change.who]:
            a, b = change.who
            raise InputError(
                f"{name} changes the link between servers {a} and {b}, but network.graph has none: "
                f"take the line out, or add the link to the graph"
            )
    last = {change.who: change.up for change in changes if len(change.who) == 1}
    if len(last) == count and not any(last.values()):
        raise InputError(
            f"{name} leaves no server up at its end, so nobody would train: bring one back up"
        )


def idle(cost: Cost, work: Work, mix: Mix, done: Ints, memory: Memory) -> tuple[Work, Mix, Bill]:
    """A round in which nobody trains; it lasts as long as usual, so that time passes."""
    seconds = cost.bill(work, mix, done).seconds
    if not seconds:  # clients that began earlier were ready
        seconds = cost.bill(replace(work, ends=None, lasts=None), mix, done).seconds
    none, energy = floats([]), dict.fromkeys(("computing", "sending", "backhaul"), 0.0)
    bill = Bill(seconds, 0.0, 0.0, bytes=0, energy=energy, busy=none, sending=none)
    return Work(nothing(mix.up), 0), Mix(nothing(mix.up), memory=memory), bill


def after(clocks: Clocks, lane: Lane, there: Bools, mixed: tuple[int, ...]) -> Clocks:
    """The clocks when a lane has finished a round; servers that were away have done nothing."""
    up = [d for d in lane if there[d]]
    return clocks.after(up, mixed) if up else replace(clocks, number=clocks.number + 1)


def changes(before: NetworkState, now: NetworkState, number: int) -> list[str]:
    """Changes that the user should know about, one sentence each."""
    if before is now:
        return []
    news = []
    moved = np.flatnonzero(before.up != now.up).tolist()
    for d in moved if not now.central else ():
        back = "is back with the model it had" if now.up[d] else "went down"
        news.append(f"server {d} {back} after round {number}")
    if before.cloud != now.cloud:
        back = "is back" if now.cloud else "went down"
        news.append(f"the cloud {back} after round {number}")
    return news
