"""What held rounds up: who was away, and for whom each round waited.

Absences are read from the notes in a log. Simulated runs note when a server or the cloud goes down
and comes back; nodes of a deployment note when they go on without a client or another server. A
server counts as away while any node goes on without it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from sdfeel.core.events import Evaluated, Event, Round, Started, Warned
from sdfeel.report.timeline import Played

SIMULATED = re.compile(r"(?:(server \d+)|the (cloud)) (went down|is back)\b.* after round \d+")
MISSED = re.compile(r"round \d+: edge-(\d+) goes on without (client|edge)-(\d+)")
BACK = re.compile(r"round \d+: (client|edge)-(\d+) is back at edge-(\d+)")
NAMES = {"client": "client", "edge": "server"}
Interval = tuple[float, float | None]  # None: until now


@dataclass
class _Absent:
    """A node that others go on without, and when its absences began and ended."""

    missed_by: set[str] = field(default_factory=set)
    intervals: list[Interval] = field(default_factory=list)

    def go(self, observer: str, now: float) -> None:
        if not self.missed_by:
            self.intervals.append((now, None))
        self.missed_by.add(observer)

    def come(self, observer: str, now: float) -> None:
        if self.missed_by == {observer}:
            self.intervals[-1] = (self.intervals[-1][0], now)
        self.missed_by.discard(observer)


def absences(events: Iterable[Event]) -> dict[str, list[Interval]]:
    """Times of absence by name (`server 2`, `client 7`, `cloud`), in the order of the log.

    >>> absences([Warned("server 1 went down after round 2")])
    {'server 1': [(0.0, None)]}
    """
    found: dict[str, _Absent] = {}
    now = 0.0
    for event in events:
        if isinstance(event, Round | Evaluated):
            now = event.seconds
        elif isinstance(event, Started):  # a resumed run notes again what is away
            continue
        elif isinstance(event, Warned) and (told := _told(event.message)) is not None:
            who, observer, away = told
            absent = found.setdefault(who, _Absent())
            (absent.go if away else absent.come)(observer, now)
    return {who: each.intervals for who, each in found.items() if each.intervals}


def _told(message: str) -> tuple[str, str, bool] | None:
    """Who is meant, who noticed, and whether it is away now; None for notes about other things.

    >>> _told("round 3: edge-0 goes on without edge-1"), _told("the step size is large")
    (('server 1', '0', True), None)
    """
    if simulated := SIMULATED.fullmatch(message):
        return simulated[1] or simulated[2], "", simulated[3] == "went down"
    if missed := MISSED.fullmatch(message):
        return f"{NAMES[missed[2]]} {missed[3]}", missed[1], True
    if back := BACK.fullmatch(message):
        return f"{NAMES[back[1]]} {back[2]}", back[3], False
    return None


SERVERS = "mixing between servers"


@dataclass(frozen=True)
class Holdup:
    """Somebody for whom rounds waited."""

    who: str
    rounds: int  # in which all others were done earlier
    seconds: float  # by which these rounds would have been shorter without it
    computing: float  # seconds that it computed in them, on average
    sending: float


def holdups(rounds: Iterable[Played]) -> list[Holdup]:
    """Everyone for whom rounds waited, the costliest first.

    A round ends when its last client's model has arrived and servers have mixed. Without that
    client it would have ended with the last but one; a round of one client has nobody to wait for.
    """
    found: dict[int, list[tuple[float, float, float]]] = {}
    mixed: list[float] = []
    for each in rounds:
        if each.round.mixed and each.end > each.collected:
            mixed.append(each.end - each.collected)
        works = {client: work for client in each.crew or () if (work := each.work(client))}
        order = sorted(works, key=lambda client: works[client].sending[1])
        if len(order) < 2:
            continue
        last, before = works[order[-1]], works[order[-2]]
        gain = last.sending[1] - before.sending[1]
        if gain > 0:
            spent = last.computing[1] - last.computing[0], last.sending[1] - last.sending[0]
            found.setdefault(order[-1], []).append((gain, *spent))
    rows = [
        Holdup(f"client {client}", len(own), *(sum(part) for part in zip(*own, strict=True)))
        for client, own in found.items()
    ]
    rows = [
        Holdup(r.who, r.rounds, r.seconds, r.computing / r.rounds, r.sending / r.rounds)
        for r in rows
    ]
    if mixed:
        rows.append(Holdup(SERVERS, len(mixed), sum(mixed), 0.0, sum(mixed) / len(mixed)))
    return sorted(rows, key=lambda row: (-row.seconds, row.who))
