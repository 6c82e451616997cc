"""Who computed, waited, uploaded and gossiped when, from a run's events."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sdfeel.core.errors import InputError
from sdfeel.core.events import Event, Round
from sdfeel.report.history import History

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
        """Did anybody's work for this round begin before this moment?"""
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


Kind = Literal["compute", "wait", "upload", "gossip"]

GOSSIPS = 4  # gossips of every lane in the default window


@dataclass(frozen=True)
class Span:
    """Somebody did one thing from `begin` to `end`, in virtual seconds, for the round `round`."""

    who: str  # "client 3" or "server 1"
    kind: Kind  # a server's upload is what it receives from its last client
    begin: float
    end: float
    round: int


@dataclass(frozen=True)
class Timeline:
    """All rounds of a run, and the clients of each server."""

    scheme: str
    clusters: Mapping[int, tuple[int, ...]]  # each server's clients; none if they are not listed
    rounds: tuple[Played, ...]

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Timeline":
        """Read a run's events; raise an error if they do not say who did what."""
        history = History.of("", events)
        started, rounds = history.started, history.rounds
        if started is None or not (started.home or any(each.mixed for each in rounds)):
            raise InputError(
                "the log does not say who worked when: it is empty or from an earlier version of "
                "sdfeel; run the experiment again"
            )
        found = played(rounds, started.servers)
        listed = {server for each in found if each.crew for server in each.round.lane}
        clusters: dict[int, list[int]] = {server: [] for server in range(started.servers)}
        for client, server in enumerate(started.home):
            if server in listed:
                clusters[server].append(client)
        return cls(started.scheme, {s: tuple(c) for s, c in clusters.items()}, found)

    @property
    def end(self) -> float:
        """When the last finished round ended."""
        return max((each.end for each in self.rounds), default=0.0)

    def spans(self, begin: float, end: float, servers: Collection[int] | None) -> list[Span]:
        """What everybody did between two moments, row by row: each server, then its clients.

        The spans of a row follow one another without a gap, as far as rounds are finished.
        """
        seen = [each for each in self.rounds if each.end > begin and each.touches(end)]
        found: list[Span] = []
        for server in self.chosen(servers):
            own = [each for each in seen if server in each.round.lane]
            row = _painted(_waits(f"server {server}", own), self._received(server, own))
            found += _within(_painted(row, _gossips(server, seen)), begin, end)
            for client in self.clusters[server]:
                row = _painted(_waits(f"client {client}", own), _worked(client, own))
                found += _within(row, begin, end)
        return found

    def window(
        self, begin: float | None, end: float | None, servers: Collection[int] | None = None
    ) -> tuple[float, float]:
        """The wanted window, as far as the run goes; by default the run's first few gossips."""
        if not self.rounds:
            raise InputError("the run has no finished round yet: try again later")
        first = 0.0 if begin is None else begin
        last = first + self._first_gossips(servers) if end is None else end
        if not 0 <= first < min(last, self.end):
            raise InputError(
                f"nothing happens from {first:g} to {last:g} s: choose a window within the run's "
                f"0 to {self.end:g} s"
            )
        return first, min(last, self.end)

    def chosen(self, servers: Collection[int] | None) -> list[int]:
        """The servers to show, ascending; an error names one that the run does not have."""
        for server in servers or ():
            if server not in self.clusters:
                last = len(self.clusters) - 1
                raise InputError(f"the run has no server {server}: its servers are 0 to {last}")
        return sorted(self.clusters if servers is None else set(servers))

    def _first_gossips(self, servers: Collection[int] | None) -> float:
        """When the lanes of these servers have mixed a few times (or just ended some rounds)."""
        latest = 0.0
        for server in self.chosen(servers):
            own = [each for each in self.rounds if server in each.round.lane]
            lanes = sum(each.begin == 0 for each in own)
            ends = [each.end for each in own if each.mixes(server)] or [each.end for each in own]
            latest = max([latest, *ends[: GOSSIPS * lanes]])
        return latest or self.end

    def _received(self, server: int, own: Iterable[Played]) -> Iterator[Span]:
        """The upload of a server's last client, round by round."""
        for each in own:
            arrivals = [
                work.sending for client in self.clusters[server] if (work := each.work(client))
            ]
            if not each.crew:
                arrivals = [(each.computed, each.collected)]
            if arrivals:
                first, last = max(arrivals, key=lambda times: (times[1], times[0]))
                yield Span(f"server {server}", "upload", first, last, each.round.number)


def spans(
    events: Iterable[Event], begin: float, end: float, servers: Collection[int] | None = None
) -> list[Span]:
    """What everybody did between two moments of a run, row by row; see `Timeline.spans`."""
    return Timeline.of(events).spans(begin, end, servers)


def waiting(spans: Iterable[Span], who: Literal["client", "server"]) -> float | None:
    """The share of their time that clients (or servers) wait; None where there are none."""
    rows = [span for span in spans if span.who.startswith(who)]
    total = sum(span.end - span.begin for span in rows)
    idle = sum(span.end - span.begin for span in rows if span.kind == "wait")
    return idle / total if total > 0 else None


def _waits(who: str, own: Iterable[Played]) -> list[Span]:
    """A row in which nothing happens, cut where rounds end."""
    row: list[Span] = []
    for each in sorted(own, key=lambda each: (each.end, each.round.number)):
        begin = row[-1].end if row else each.begin
        if begin < each.end:
            row.append(Span(who, "wait", begin, each.end, each.round.number))
    return row


def _worked(client: int, own: Iterable[Played]) -> Iterator[Span]:
    """What a client did in the rounds that it took part in, except for waiting."""
    who = f"client {client}"
    for each in own:
        work = each.work(client)
        if work is not None:
            yield Span(who, "compute", *work.computing, each.round.number)
            yield Span(who, "upload", *work.sending, each.round.number)


def _gossips(server: int, seen: Iterable[Played]) -> Iterator[Span]:
    """When a server mixed with others, in its own rounds or in theirs."""
    for each in seen:
        if each.mixes(server):
            yield Span(f"server {server}", "gossip", each.collected, each.end, each.round.number)


def _painted(row: Iterable[Span], over: Iterable[Span]) -> list[Span]:
    """A row in which the spans `over` replace what was there; of two at once, the earlier stays."""
    guests = sorted(over, key=lambda span: (span.begin, span.end))
    painted: list[Span] = []
    done = 0  # guests that ended before the present span
    for span in row:
        while done < len(guests) and guests[done].end <= span.begin:
            done += 1
        now = span.begin
        for guest in guests[done:]:
            if guest.begin >= span.end:
                break
            begin, end = max(guest.begin, now), min(guest.end, span.end)
            if begin < end:
                painted += [replace(span, begin=now, end=begin)] if now < begin else []
                painted.append(replace(guest, begin=begin, end=end))
                now = end
        painted += [replace(span, begin=now)] if now < span.end else []
    return painted


def _within(row: Iterable[Span], begin: float, end: float) -> list[Span]:
    """The part of a row inside a window; spans of one kind and round are joined."""
    found: list[Span] = []
    for span in row:
        if max(span.begin, begin) < min(span.end, end):
            first = max(span.begin, begin)
            if found and (found[-1].kind, found[-1].round) == (span.kind, span.round):
                first = found.pop().begin
            found.append(replace(span, begin=first, end=min(span.end, end)))
    return found
