"""The servers and their links over time, as numbers for the browser.

Up to `SINGLY` servers are drawn one by one. More are drawn in groups of near ones, so that a
thousand can still be read; servers far from the mean are named all the same.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from math import sqrt
from typing import Any

import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import SdfeelError
from sdfeel.core.events import Evaluated, Event, Round, Started
from sdfeel.core.network import clustered
from sdfeel.dashboard.views.curves import drawable, spaced
from sdfeel.report.topology import apart, layout, on_map

FRAMES = 240
SINGLY, MOST = 50, 20_000  # servers up to which each is drawn separately, and any are drawn at all
MOST_GROUPS = 32
NAMED = 10  # servers far from the mean that are named where they are not drawn
Link = tuple[int, int]


def graph(events: Sequence[Event], stride: int = 1) -> dict[str, Any]:
    """Places, links and frames, or `why`: the reason why there is nothing to draw.

    `stride` says that the events have one round of this many.
    """
    started = next((e for e in reversed(events) if isinstance(e, Started)), None)
    if started is None:
        return {"why": "The log does not yet say how the servers are connected."}
    if started.servers == 1:
        return {"why": "There is only one server, so its model is the mean."}
    links = [(a, b) for a, b in started.edges if 0 <= a < b < started.servers]
    if not links:
        return {"why": "The version that wrote this log did not record how servers are connected."}
    if started.servers > MOST:
        return {"why": f"A graph of {started.servers:,} servers is too large to draw."}
    seen = _Seen.of(started, links)
    measured = [e for e in events if isinstance(e, Evaluated)]
    shown = {id(measured[index]) for index in spaced(len(measured), FRAMES)}
    use, frames = _Use(links, started.servers), []
    for event in events:
        if isinstance(event, Round):
            use.meet(event)
        elif id(event) in shown and isinstance(event, Evaluated):
            frames.append(seen.frame(use.frame(event, stride), event))
    radius = float(np.clip(0.45 / sqrt(len(seen.members)), 0.045, 0.15))
    return {
        "places": seen.places(started, radius),
        "radius": radius,
        "groups": seen.members if seen.grouped else None,
        "links": seen.links,
        "zeta": drawable(started.zeta),
        "clients": seen.clients(started),
        "frames": frames,
        "sampled": stride > 1,
    }


@dataclass
class _Use:
    """When each link was last used, and how often since the last frame."""

    links: Sequence[Link]
    servers: int
    last: dict[Link, float] = field(default_factory=dict)
    times: dict[Link, int] = field(default_factory=dict)
    mixings: int = 0  # in rounds of all servers, since the last frame
    whole: int = 0  # of those, the ones that used every link
    met: float | None = None  # when every link was last used at once
    near: dict[int, list[Link]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for link in self.links:
            for server in link:
                self.near.setdefault(server, []).append(link)

    def meet(self, done: Round) -> None:
        """Servers mix with those of the lane that finished, over the links between them."""
        mixed, lane = set(done.mixed), set(done.lane)
        if len(mixed) < 2:
            return
        together = len(lane) == self.servers
        self.mixings += together
        if together and len(mixed) == self.servers:  # the usual case, of any size at once
            self.whole, self.met = self.whole + 1, done.seconds
            return
        for link in {link for server in lane for link in self.near.get(server, ())}:
            if link[0] in mixed and link[1] in mixed:
                self.last[link] = done.seconds
                self.times[link] = self.times.get(link, 0) + 1

    def frame(self, event: Evaluated, stride: int) -> dict[str, Any]:
        """How often each link was used since the last frame, and how long ago it was last used."""
        found = {
            "mixings": self.mixings * stride,
            "traffic": [(self.times.get(each, 0) + self.whole) * stride for each in self.links],
            "age": [self._age(each, event.seconds) for each in self.links],
        }
        self.times, self.mixings, self.whole = {}, 0, 0
        return found

    def _age(self, link: Link, now: float) -> float | None:
        used = [each for each in (self.last.get(link), self.met) if each is not None]
        return drawable(now - max(used)) if used else None


@dataclass(frozen=True)
class _Seen:
    """What is drawn: every server, or groups of them; and the links between those."""

    members: list[list[int]]
    links: list[Link]
    carried: list[list[int]]  # the places of the servers' own links in each
    grouped: bool

    @classmethod
    def of(cls, started: Started, links: Sequence[Link]) -> "_Seen":
        if started.servers <= SINGLY:
            each = [[server] for server in range(started.servers)]
            return cls(each, list(links), [[place] for place in range(len(links))], grouped=False)
        count = min(MOST_GROUPS, round(sqrt(started.servers)))
        members = grouped(started.servers, links, count, started.places)
        home = {server: group for group, inside in enumerate(members) for server in inside}
        carried: dict[Link, list[int]] = {}
        for place, (a, b) in enumerate(links):
            ends = home[a], home[b]
            if ends[0] != ends[1]:
                carried.setdefault((min(ends), max(ends)), []).append(place)
        return cls(members, list(carried), list(carried.values()), grouped=True)

    def frame(self, used: Mapping[str, Any], event: Evaluated) -> dict[str, Any]:
        """One moment. A group has its farthest member's distance, and its links add up; they are
        as old as the one that was used last."""
        far = [drawable(each) for each in event.distances]
        found = {
            "seconds": drawable(event.seconds),
            "iterations": event.iterations,
            "spread": drawable(event.spread),
            "mixings": used["mixings"],
            "distances": [_most(far, inside) for inside in self.members] if far else [],
            "traffic": [sum(used["traffic"][i] for i in carried) for carried in self.carried],
            "age": [_least(used["age"], carried) for carried in self.carried],
        }
        if self.grouped:
            known = [(value, server) for server, value in enumerate(far) if value is not None]
            found["farthest"] = [[server, value] for value, server in nlargest(NAMED, known)]
        return found

    def places(self, started: Started, radius: float) -> list[tuple[float, float]]:
        """On a map if the servers' places are known, otherwise so that links can be seen."""
        count = len(self.members)
        if len(started.places) == started.servers:
            there = on_map(started.places)
            points = np.array([_middle(there, inside) for inside in self.members])
        else:
            points = np.array(positions(count, self.links))
        moved = apart(points, np.full(count, 2 * radius))
        return [(float(x), float(y)) for x, y in moved]

    def clients(self, started: Started) -> list[int] | None:
        if not started.home:
            return None
        times = np.bincount(
            [home for home in started.home if 0 <= home < started.servers],
            minlength=started.servers,
        )
        return [int(times[inside].sum()) for inside in self.members]


def _middle(there: Mapping[int, Floats], inside: Sequence[int]) -> Floats:
    found: Floats = np.mean([there[server] for server in inside], axis=0)
    return found


def _most(values: Sequence[float | None], places: Sequence[int]) -> float | None:
    known = [v for i in places if i < len(values) and (v := values[i]) is not None]
    return max(known, default=None)


def _least(values: Sequence[float | None], places: Sequence[int]) -> float | None:
    return min((v for i in places if (v := values[i]) is not None), default=None)


def grouped(
    servers: int,
    links: Sequence[Link],
    count: int,
    places: Sequence[tuple[float, float]] = (),
) -> list[list[int]]:
    """About `count` groups of servers that are near one another: on the map, or by links.

    Each next group begins with the server that is farthest from all beginnings so far, and every
    server belongs to the nearest.

    >>> grouped(6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], 2)
    [[0, 1, 2], [3, 4, 5]]
    """
    if len(places) == servers:
        points = np.array([on_map(places)[server] for server in range(servers)])
    near: list[list[int]] = [[] for _ in range(servers)]
    for a, b in links:
        near[a].append(b)
        near[b].append(a)
    best, home = np.full(servers, np.inf), np.zeros(servers, int)
    first = 0
    for group in range(min(count, servers)):
        if len(places) == servers:
            far = np.hypot(*(points - points[first]).T)
        else:
            far = _hops(near, first)
        closer = far < best
        best, home = np.where(closer, far, best), np.where(closer, group, home)
        first = int(np.argmax(np.where(np.isinf(best), 1e18, best)))
    found = [np.flatnonzero(home == group).tolist() for group in range(count)]
    return sorted(inside for inside in found if inside)


def _hops(near: Sequence[Sequence[int]], start: int) -> Floats:
    """The number of links from one server to every server."""
    far = np.full(len(near), np.inf)
    far[start] = 0
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        for other in near[here]:
            if np.isinf(far[other]):
                far[other] = far[here] + 1
                waiting.append(other)
    return far


def positions(count: int, links: Sequence[Link]) -> list[tuple[float, float]]:
    """Places within -1 to 1, where possible those of `sdfeel topology`."""
    matrix = np.zeros((count, count))
    for a, b in links:
        matrix[a, b] = matrix[b, a] = 1
    try:
        found = layout(clustered(np.ones(count), np.arange(count), matrix))
    except (SdfeelError, ValueError):  # a disconnected graph, for example
        turns = 2 * np.pi * np.arange(count) / count
        found = dict(enumerate(np.stack([np.sin(turns), np.cos(turns)], axis=1)))
    return [(float(found[each][0]), float(found[each][1])) for each in range(count)]
