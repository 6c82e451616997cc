"""Curves, and the server graph over time, as numbers for the browser.

`report.curves` defines what curves mean.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, cos, pi, sin
from typing import Any

import numpy as np

from sdfeel.core.errors import SdfeelError
from sdfeel.core.events import Evaluated, Event, Round, Started
from sdfeel.core.network import clustered
from sdfeel.core.run_files import finite
from sdfeel.report.curves import (
    ACCURACY,
    ENERGY,
    EVERY_COST,
    HUGE,
    LOSS,
    SPREAD,
    TEST_LOSS,
    CostAxis,
    LearningAxis,
    measures_of,
    named,
    own_measure,
    own_names,
)
from sdfeel.report.history import History
from sdfeel.report.styles import styles_of
from sdfeel.report.topology import layout, on_map

ALWAYS = (ACCURACY, TEST_LOSS, LOSS, SPREAD)  # others may be measured more seldom
POINTS = 800  # on a line: more could not be distinguished
Numbers = list[float | None]


def charts(histories: Sequence[History], target: float | None = None) -> dict[str, Any]:
    """Every measure against every cost, a line per history, and the band of a mean's members."""
    costs = [c for c in EVERY_COST if c is not ENERGY or all(h.energy_known for h in histories)]
    measures = [*measures_of(histories), SPREAD, *map(own_measure, own_names(histories))]
    return {
        "costs": [_cost(cost, histories) for cost in costs],
        "measures": [{"name": m.name, "share": m.share, "own": m not in ALWAYS} for m in measures],
        "lines": [
            {**_line(history, costs, measures), "style": style}
            for history, style in zip(histories, styles_of(histories), strict=True)
        ],
        "target": target,
    }


def _cost(cost: CostAxis, histories: Sequence[History]) -> dict[str, Any]:
    return {"name": named(cost, histories), "units": [asdict(unit) for unit in cost.ladder]}


def _line(
    history: History, costs: Sequence[CostAxis], measures: Sequence[LearningAxis]
) -> dict[str, Any]:
    every = history.evaluations
    values = [[_learnt(measure, event) for event in every] for measure in measures]
    picked = telling(values, POINTS)
    line: dict[str, Any] = {
        "label": history.label,
        "x": [[drawable(cost.read(every[index])) for index in picked] for cost in costs],
        "y": [[column[index] for index in picked] for column in values],
        "measured": len(every),
    }
    if len(history.members) > 1:
        members = history.aligned
        bands = [[_band(measure, members, index) for index in picked] for measure in measures]
        line["low"] = [[low for low, _ in band] for band in bands]
        line["high"] = [[high for _, high in band] for band in bands]
    return line


def _band(
    measure: LearningAxis, members: Sequence[Sequence[Evaluated]], index: int
) -> tuple[float | None, float | None]:
    """The lowest and the highest of all members; none where one of them has no value."""
    values = [_learnt(measure, member[index]) for member in members]
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if len(known) == len(values) else (None, None)


def _learnt(measure: LearningAxis, event: Evaluated) -> float | None:
    return drawable(measure.read(event))


def drawable(value: float | None) -> float | None:
    """The value; None if there is none, or if the run has diverged."""
    return finite(value, below=HUGE)


def spaced(count: int, limit: int) -> list[int]:
    """At most about `limit` indices below `count`, evenly spaced, the last among them.

    >>> spaced(10, 4), spaced(3, 4)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    step = max(1, ceil(count / limit))
    found = list(range(0, count, step))
    return found if not found or found[-1] == count - 1 else [*found, count - 1]


def telling(columns: Sequence[Numbers], limit: int) -> list[int]:
    """At most about `limit` indices, with which no column loses a low, a high or a gap.

    Of every bucket of neighbours stay the first, each column's lowest and highest, and its first
    gap.

    >>> telling([[1.0, 9.0, 1.0, 1.0, None, 1.0, 0.0, 1.0]], 4)
    [0, 1, 4, 6, 7]
    >>> len(telling([[float(i % 7) for i in range(10_000)]], 100)) <= 110
    True
    """
    count = len(columns[0]) if columns else 0
    if count <= limit:
        return list(range(count))
    size = ceil(count * (3 * len(columns) + 1) / limit)
    kept = {*range(0, count, size), count - 1}
    for begin in range(0, count, size):
        bucket = range(begin, min(begin + size, count))
        for column in columns:
            known = [(value, index) for index in bucket if (value := column[index]) is not None]
            gaps = [index for index in bucket if column[index] is None]
            kept.update(gaps[:1])
            if known:
                kept |= {min(known)[1], max(known)[1]}
    return sorted(kept)


FRAMES = 240
MOST, LAID_OUT = 400, 150  # servers up to which a graph is drawn, and up to which it is laid out
Link = tuple[int, int]


@dataclass
class _Use:
    """When each link was last used, and how often since the last frame."""

    links: Sequence[Link]
    last: dict[Link, float] = field(default_factory=dict)
    times: dict[Link, int] = field(default_factory=dict)
    servers: int = 0
    mixings: int = 0  # of all servers together, since the last frame

    def meet(self, done: Round) -> None:
        """Servers mix with those of the lane that finished, over the links between them."""
        mixed, lane = set(done.mixed), set(done.lane)
        self.mixings += len(mixed) > 1 and len(lane) == self.servers
        for a, b in self.links if len(mixed) > 1 else ():
            if a in mixed and b in mixed and (a in lane or b in lane):
                self.last[a, b] = done.seconds
                self.times[a, b] = self.times.get((a, b), 0) + 1

    def frame(self, event: Evaluated, stride: int) -> dict[str, Any]:
        times, self.times = self.times, {}
        mixings, self.mixings = self.mixings, 0
        return {
            "seconds": drawable(event.seconds),
            "iterations": event.iterations,
            "spread": drawable(event.spread),
            "mixings": mixings * stride,
            "distances": [drawable(each) for each in event.distances],
            "traffic": [times.get(link, 0) * stride for link in self.links],
            "age": [
                drawable(event.seconds - self.last[link]) if link in self.last else None
                for link in self.links
            ],
        }


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
        return {"why": "This log's version did not record how the servers are connected."}
    if started.servers > MOST:
        return {"why": f"A graph of {started.servers:,} servers is too large to draw."}
    measured = [e for e in events if isinstance(e, Evaluated)]
    shown = {id(measured[index]) for index in spaced(len(measured), FRAMES)}
    use, frames = _Use(links, servers=started.servers), []
    for event in events:
        if isinstance(event, Round):
            use.meet(event)
        elif id(event) in shown and isinstance(event, Evaluated):
            frames.append(use.frame(event, stride))
    clients = [0] * started.servers
    for home in started.home:
        if 0 <= home < started.servers:
            clients[home] += 1
    return {
        "places": _places(started, links),
        "links": links,
        "zeta": drawable(started.zeta),
        "clients": clients if started.home else None,
        "frames": frames,
        "sampled": stride > 1,
    }


def _places(started: Started, links: Sequence[Link]) -> list[tuple[float, float]]:
    """On a map where it is known where servers are, otherwise so that links can be seen."""
    if len(started.places) == started.servers > 1:
        found = on_map(started.places)
        return [(float(found[s][0]), float(found[s][1])) for s in range(started.servers)]
    return positions(started.servers, links)


def positions(servers: int, links: Sequence[Link]) -> list[tuple[float, float]]:
    """Where each server is drawn, within -1 to 1; as `sdfeel topology` draws it where it can."""
    if servers <= LAID_OUT:
        matrix = np.zeros((servers, servers))
        for a, b in links:
            matrix[a, b] = matrix[b, a] = 1
        try:
            found = layout(clustered(np.ones(servers), np.arange(servers), matrix))
            return [(float(found[s][0]), float(found[s][1])) for s in range(servers)]
        except (SdfeelError, ValueError):  # a disconnected graph, for example
            pass
    turns = (2 * pi * server / servers for server in range(servers))
    return [(sin(turn), cos(turn)) for turn in turns]
