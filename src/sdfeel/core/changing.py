"""Server graphs that change: links and servers come and go, by a schedule or by chance.

The mixing matrix is made anew by the same rule on every part that is still connected, so the
mean of all servers' models, weighted by their clusters' sizes, survives whatever happens. A
server that is away keeps its model and comes back with it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Bools, Floats, Ints, floats
from sdfeel.core.errors import InputError
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network, unreached
from sdfeel.core.part import of_present
from sdfeel.core.seeds import rng

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
class Moment:
    """What of a network is there."""

    net: Network
    cloud: bool = True

    def across(self, mixing: Mixing | None) -> Mixing | None:
        """What is left of a scheme's mixing between servers."""
        if mixing is None or (mixing.via == "server-cloud" and not self.cloud):
            return None
        there = self.there
        if mixing.via == "server-server":
            _check_paths(mixing, self.net.links)
            return of_present(mixing, np.ones(len(there), dtype=bool), there)
        return of_present(mixing, there, there)

    @cached_property
    def there(self) -> Bools:
        """(D,) which servers are up: those that have clients."""
        there = np.zeros(len(self.net.links), dtype=bool)
        there[self.net.home[self.net.clients]] = True
        return there


@dataclass(frozen=True, eq=False)
class Changing:
    """What is there when a round begins: a pure function of its number and its time."""

    rule: Rule
    schedule: tuple[Change, ...] = ()  # in the order of time
    link_chance: float = 1.0  # that a link is up, anew in every round
    up_seconds: float | None = None  # mean time until a server fails; None: never
    down_seconds: float = 1.0  # mean time until it is back
    seed: int = 0

    def at(self, net: Network, number: int, seconds: float) -> Moment:
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
        links = links * np.outer(servers, servers)
        return Moment(_moment(net, self.rule, links.tobytes(), servers.tobytes()), cloud)

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

    >>> from sdfeel.core.gossip import metropolis
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
