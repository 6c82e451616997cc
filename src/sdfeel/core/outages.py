"""Server graphs that change: links and servers come and go, by a schedule or by chance.

The mixing matrix is made anew by the same rule on every part that is still connected, so the
mean of all servers' models, weighted by their clusters' sizes, survives whatever happens. A
server that is away keeps its model and comes back with it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Bools, Floats, Ints, floats
from sdfeel.core.cost import Bill, Cost
from sdfeel.core.errors import InputError
from sdfeel.core.mixing import Mixing, nothing, restricted
from sdfeel.core.network import Network, unreached
from sdfeel.core.scheme import Lane, Memory, Mix, Work
from sdfeel.core.seeds import rng
from sdfeel.core.staleness import Clocks

Rule = Callable[[Floats, Floats], Floats]  # (links, mass) -> weights: core.gossip.GOSSIP_RULES
Unit = Literal["round", "second"]
BATCH = 64  # of a server's times up and down that are drawn together


@dataclass(frozen=True)
class Change:
    """From then on, a link (two servers), a server (one) or the cloud (none) is up or down."""

    when: float
    unit: Unit
    who: tuple[int, ...]
    up: bool


@dataclass(frozen=True, eq=False)
class NetworkState:
    """What of a network is there."""

    net: Network
    cloud: bool = True
    central: bool = False  # is the only server the cloud?

    def across(self, mixing: Mixing | None) -> Mixing | None:
        """What is left of a scheme's mixing between servers."""
        if mixing is None or (mixing.via == "server-cloud" and not self.cloud):
            return None
        there = self.there
        if mixing.via == "server-server":
            _check_paths(mixing, self.net.links)
            return restricted(mixing, np.ones(len(there), dtype=bool), there)
        return restricted(mixing, there, there)

    @cached_property
    def there(self) -> Bools:
        """(D,) which servers are up: those that have clients."""
        there = np.zeros(len(self.net.links), dtype=bool)
        there[self.net.home[self.net.clients]] = True
        return there


@dataclass(frozen=True, eq=False)
class Outages:
    """What is there when a round begins: a pure function of its number and its time."""

    rule: Rule
    schedule: tuple[Change, ...] = ()  # in the order of time
    link_chance: float = 1.0  # that a link is up, anew in every round
    up_seconds: float | None = None  # mean time until a server fails; None: never
    down_seconds: float = 1.0  # mean time until it is back
    seed: int = 0
    central: bool = False  # is the only server the cloud?

    def at(self, net: Network, number: int, seconds: float) -> NetworkState:
        """The network of a round that begins when `number` rounds of all lanes are over."""
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
        own = _moment(net, self.rule, links.tobytes(), servers.tobytes())
        return NetworkState(own, cloud, self.central)

    def will_change(self, number: int, seconds: float) -> bool:
        """Is anything still to come that brings somebody back?"""
        now: dict[Unit, float] = {"round": number, "second": seconds}
        later = any(each.up and each.when > now[each.unit] for each in self.schedule)
        return later or self.up_seconds is not None

    def cut_off(self, net: Network) -> list[list[int]]:
        """The parts into which the schedule leaves the servers that are up at its end."""
        links, servers, _ = _scheduled(net.links, list(self.schedule))
        found = parts(links * np.outer(servers, servers))
        return [part.tolist() for part in found if servers[part[0]]]


def parts(links: Floats) -> Iterator[Ints]:
    """The servers of each connected part, in ascending order.

    >>> [part.tolist() for part in parts(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]]))]
    [[0, 2], [1]]
    """
    left = np.arange(len(links))
    while left.size:
        apart = unreached(links[np.ix_(left, left)])
        yield np.delete(left, apart)
        left = left[apart]


def piecewise(links: Floats, mass: Floats, rule: Rule) -> Floats:
    """(D, D) the rule's weights within each connected part.

    >>> from sdfeel.core.gossip_weights import metropolis
    >>> pair = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    >>> piecewise(pair, np.full(3, 1 / 3), metropolis)
    array([[0.5, 0.5, 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0. , 1. ]])
    """
    weights = np.eye(len(links))
    for part in parts(links):
        if len(part) > 1:
            inner, sizes = links[np.ix_(part, part)], mass[part]
            weights[np.ix_(part, part)] = rule(inner, sizes / sizes.sum())
    return floats(weights)


@lru_cache(maxsize=256)  # mixings are remembered by network: the same state is the same object
def _moment(net: Network, rule: Rule, up_links: bytes, up_servers: bytes) -> Network:
    links = np.frombuffer(up_links).reshape(net.links.shape)
    servers = np.frombuffer(up_servers, dtype=bool)
    if servers.all() and np.array_equal(links, net.links):
        return net
    reach = net.reach
    if not servers.all():
        reach = tuple(tuple(d for d in own if servers[d]) for own in reach)
    weights = piecewise(links, net.mass, rule)
    return Network(net.samples, reach, links, weights, net.shelves, sizes=net.mass)


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
    """Is a server up that fails and is mended after times drawn for it?"""
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


def _check_paths(mixing: Mixing, links: Floats) -> None:
    """Models cannot travel between parts that no link joins."""
    part = np.zeros(len(links), dtype=np.int64)
    for n, members in enumerate(parts(links)):
        part[members] = n
    rows = np.repeat(mixing.rows, np.diff(mixing.starts))
    real = (rows >= 0) & (mixing.sources >= 0)
    if (part[rows[real]] != part[mixing.sources[real]]).any():
        raise InputError(
            "the server graph has come apart, and this scheme needs all servers connected at all "
            "times: take out network.changes and the chances of failure, or use sd-feel"
        )


NUMBERS = {"link": 2, "server": 1, "cloud": 0}
UNITS: dict[str, Unit] = {"round": "round", "second": "second"}
EXAMPLE = "'round 50 server 3 down' or 'second 12.5 link 0 1 up'"


def schedule(text: str, name: str) -> tuple[Change, ...]:
    """The changes of a file called `name`, in the order of time.

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
                    f"line {number} of {name} is '{line.strip()}', which is no change: write "
                    f"lines like {EXAMPLE}"
                ) from None
    if len({change.unit for change in changes}) > 1:
        raise InputError(f"{name} counts in rounds and in seconds: use one of them in all lines")
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
        raise InputError(f"{name} leaves no server up at its end: nobody would train any more")


def idle(cost: Cost, work: Work, mix: Mix, done: Ints, memory: Memory) -> tuple[Work, Mix, Bill]:
    """A round of nobody, which lasts as long as one of somebody would; time always passes."""
    seconds = cost.bill(work, mix, done).seconds
    if not seconds:  # whoever had begun before was ready
        seconds = cost.bill(replace(work, ends=None, lasts=None), mix, done).seconds
    none, energy = floats([]), dict.fromkeys(("computing", "sending", "backhaul"), 0.0)
    bill = Bill(seconds, 0.0, 0.0, bytes=0, energy=energy, busy=none, sending=none)
    return Work(nothing(mix.up), 0), Mix(nothing(mix.up), memory=memory), bill


def after(clocks: Clocks, lane: Lane, there: Bools, mixed: tuple[int, ...]) -> Clocks:
    """The clocks when a lane has finished a round; who was away has done nothing."""
    up = np.array([d for d in lane if there[d]], dtype=np.int64)
    if not up.size:
        return replace(clocks, number=clocks.number + 1)
    return clocks.after(up, np.array(mixed, dtype=int))


def changes(before: NetworkState, now: NetworkState, number: int) -> list[str]:
    """What a person should know has changed, one sentence each."""
    if before is now:
        return []
    news = []
    moved = np.flatnonzero(before.there != now.there).tolist()
    for d in moved if not now.central else ():
        back = "is back with the model it had" if now.there[d] else "went down"
        news.append(f"server {d} {back} after round {number}")
    if before.cloud != now.cloud:
        back = "is back" if now.cloud else "went down"
        news.append(f"the cloud {back} after round {number}")
    return news
