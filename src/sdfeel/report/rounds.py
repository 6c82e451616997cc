"""Rounds with their beginnings and their clients, which a log states only once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sdfeel.core.events import Round

Crew = Mapping[int, tuple[float, float]]  # each client's seconds of computing and of sending

ROUNDING = 1e-12  # sums of seconds within this share of each other count as equal


@dataclass(frozen=True)
class ClientWork:
    """What one client did in a round: from when until when, in virtual seconds."""

    computing: tuple[float, float]
    sending: tuple[float, float]


@dataclass(frozen=True)
class Played:
    """A finished round of a lane."""

    round: Round
    begin: float
    crew: Crew | None  # None: not listed
    prompt: bool  # do clients send as soon as they are done, or all at a deadline?
    early: Mapping[int, float]  # when clients began whose work takes longer than the round

    @property
    def end(self) -> float:
        return self.round.seconds

    @property
    def computed(self) -> float:
        """When computing ends."""
        return min(self.begin + self.round.phases.get("compute", 0.0), self.end)

    @property
    def collected(self) -> float:
        """When the last upload has arrived: from here on servers mix."""
        last = min(self.computed + self.round.phases.get("upload", 0.0), self.end)
        return self._snapped(last, self.end)

    def mixes(self, server: int) -> bool:
        """Does the server mix its model with others' in this round?"""
        return server in self.round.mixed and self.round.phases.get("mix", 0.0) > 0

    def work(self, client: int) -> ClientWork | None:
        """What a client did; None if it took no part.

        A client that was given more than fits (by chance, or because it is too late to count) stops
        in time to send.
        """
        if self.crew is None or client not in self.crew:
            return None
        busy, sending = self.crew[client]
        begin = self.early.get(client, self.begin)
        ready = begin + max(min(busy, self.collected - sending - begin), 0.0)
        ready = self._snapped(ready, begin + busy)
        sent = ready if self.prompt else max(ready, self._snapped(self.computed, ready))
        arrived = min(self._snapped(sent + sending, self.collected), self.collected)
        return ClientWork((begin, ready), (sent, arrived))

    def touches(self, moment: float) -> bool:
        """Did anybody's work for this round begin before it?"""
        return min([self.begin, *self.early.values()]) < moment

    def _snapped(self, moment: float, to: float) -> float:
        """Sums in another order differ in their last digits, which must not become spans."""
        return to if abs(moment - to) <= ROUNDING * self.end else moment


def played(rounds: Iterable[Round], servers: int) -> tuple[Played, ...]:
    """Rounds in the order of the log; each begins where its lane's previous round ended.

    Lanes that share a server have the same name; a round's own length shows which it continues.
    """
    found: list[Played] = []
    open_ends: dict[tuple[int, ...], list[Played]] = {}  # each lane's last round, oldest first
    free: dict[int, float] = {}  # when each client could begin something new
    for each in rounds:
        start = each.seconds - sum(each.phases.values())
        before = _before(open_ends.setdefault(each.lane, []), start, ROUNDING * each.seconds)
        begin = 0.0 if before is None else before.end
        crew = None if before is None else before.crew
        if each.crew is not None:
            crew = {client: (busy, sending) for client, busy, sending in each.crew} or None
        early = _early(crew or {}, free, begin, each)
        prompt = len(each.lane) == servers and not _waited(each, crew)
        now = Played(each, begin, crew, prompt, early)
        open_ends[each.lane].append(now)
        found.append(now)
        free |= dict.fromkeys(crew or (), now.end)
    return tuple(found)


def _early(crew: Crew, free: Mapping[int, float], begin: float, each: Round) -> dict[int, float]:
    """Who must have begun before the round, and when that was possible."""
    length = each.seconds - begin + ROUNDING * each.seconds
    long = (client for client, seconds in crew.items() if sum(seconds) > length)
    return {client: free.get(client, 0.0) for client in long if free.get(client, 0.0) < begin}


def _before(ends: list[Played], begin: float, tolerance: float) -> Played | None:
    """Take the round that ended when another began; None if that was the start of the run."""

    def gap(moment: float) -> float:
        return max(abs(moment - begin) - tolerance, 0.0)

    nearest = min(ends, key=lambda each: gap(each.end), default=None)
    if nearest is None or gap(nearest.end) > gap(0.0):
        return None
    ends.remove(nearest)
    return nearest


def _waited(each: Round, crew: Crew | None) -> bool:
    """Did computing last longer than the busiest client needed, as only a deadline can cause?"""
    busiest = max((busy for busy, _ in (crew or {}).values()), default=0.0)
    return busiest < each.phases.get("compute", 0.0) * (1 - ROUNDING)
