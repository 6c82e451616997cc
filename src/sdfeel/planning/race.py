"""Stage 2: pilot runs that are stopped as soon as they fall behind.

First comes successive halving over a mixed shortlist: all run for the same virtual time, the worse
half stops, and the rest get twice the time. When one has reached the goal, the law of stage 1 is
fitted to what was measured, and the candidates that it finds most promising run against the
leader's clock.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, permutations
from math import ceil, inf, isinf
from typing import Protocol

from sdfeel.planning.candidates import Candidate, neighbours
from sdfeel.planning.goal import Goal, PilotPoint
from sdfeel.planning.ranking import Entry, Law, distinct, fitted, shortlist

RUNG = 0.12  # part of the allowance that each rung of the halving may cost
LEAST = 3  # survivors of the halving
FIELD = 6  # candidates that begin, for each whole run that may be spent
BATCH = 3  # challengers between two fits of the law, each chosen for another reason
LOOKS = (0.3, 0.6)  # shares of the leader's time at which a challenger is compared with it
SLACK = 0.6  # it must be as far as the leader was at this share of that time
CHEAP = 0.01  # share of the allowance: no run is stopped to save less than this
TIED = 1.05  # runs that reach the goal by this multiple of the leader's time are as good
HOPELESS = 2.5  # the search is over when all are predicted to take this much longer than the leader
FITTED, QUORUM = 5, 3  # the law is fitted to at least this many runs, or to one in this many


class Racer(Protocol):
    """One candidate's pilot run, which can be continued."""

    @property
    def points(self) -> Sequence[PilotPoint]: ...

    @property
    def steps(self) -> int:
        """Local steps of all clients so far."""
        ...

    @property
    def ended(self) -> bool:
        """Has it reached its goal, done all iterations, or diverged?"""
        ...

    @property
    def short(self) -> bool:
        """Did it stop because another round would have cost too much?"""
        ...

    def advance(self, until: float, most: float = inf) -> None:
        """Continue until this virtual moment, or the end, in at most this many steps in all."""
        ...

    def close(self) -> None:
        """Free its memory: this run will not be continued."""
        ...


class Tracks(Protocol):
    """What opens pilot runs."""

    @property
    def stopped(self) -> bool: ...

    def open(self, entry: Entry, goal: Goal) -> Racer: ...


@dataclass(frozen=True, eq=False)
class News:
    """A pilot run has advanced."""

    phase: str
    entry: Entry
    track: Racer
    leader: float  # seconds of the leader; infinite while there is none
    spent: float  # part of the allowance


@dataclass(eq=False)
class Race:
    """Iterate over it; ask for what is known so far at any time."""

    entries: Sequence[Entry]
    goal: Goal
    law: Law  # with the bound's constants; then fitted
    tracks: Tracks
    clients: int
    allowance: int  # local steps of all clients after which nothing new is tried
    most: float = inf  # steps that are never exceeded
    drawn: bool = False  # do only some clients take part in a round?
    whole: int = 0  # steps of a run that does all its iterations
    runs: dict[Entry, Racer] = field(default_factory=dict)
    level: float = inf  # the score for which `law` predicts

    @property
    def steps(self) -> int:
        return sum(track.steps for track in self.runs.values())

    @property
    def leader(self) -> Entry | None:
        """The candidate that reached the goal first; with a budget, the one that got furthest."""
        if self.goal.kind == "budget":
            ranked = [(-self.goal.best(t.points), n) for n, t in enumerate(self.runs.values())]
            ready = [each for each in ranked if not isinf(each[0])]
            return list(self.runs)[min(ready)[1]] if ready else None
        times = [(self.time(entry), n) for n, entry in enumerate(self.runs)]
        best = min(times, default=(inf, 0))
        return list(self.runs)[best[1]] if best[0] < inf else None

    def time(self, entry: Entry) -> float:
        """Virtual seconds in which a pilot run reached the goal; infinite if it did not."""
        point = self.goal.first(self.runs[entry].points, self.goal.level)
        return point.seconds if point is not None else inf

    @property
    def limit(self) -> float:
        """Virtual seconds after which a run cannot win any more."""
        if self.goal.kind == "budget":
            return self.goal.horizon
        return min((self.time(entry) for entry in self.runs), default=inf)

    def __iter__(self) -> Iterator[News]:
        if not self.drawn:  # else a cloud draws among all, and edge servers among their own
            self.entries = distinct(self.entries)
        field = shortlist(self.entries, self.law)
        # With little to spend, a few runs that get far tell more than many that do not.
        room = ceil(FIELD * self.allowance / self.whole) if self.whole else len(field)
        yield from self._halve(field[: max(LEAST, room)])
        yield from self._challenge()

    @property
    def _over(self) -> bool:
        return self.tracks.stopped or self.steps >= self.allowance

    def _halve(self, field: Sequence[Entry]) -> Iterator[News]:
        alive = list(field)
        horizon = self._first_horizon(alive)
        while alive and horizon > 0:
            until = min(horizon, self.limit)
            for entry in alive:
                yield self._go(entry, until, "shortlist")
            if self.tracks.stopped or until >= self.limit:
                break
            going = [entry for entry in alive if not self.runs[entry].ended]
            alive = [entry for entry in going if not self.runs[entry].short]
            alive.sort(key=lambda entry: -self.goal.best(self.runs[entry].points, until))
            # One should reach the goal: without a leader there is no plan.
            only = self._over or not self._room_for_others(alive)
            keep = 1 if only else max(LEAST, ceil(len(alive) / 2))
            # A run without its first averaging has shown nothing yet, and has cost little.
            spared = [
                e
                for e in alive[keep:]
                if not only and (e.pace.period > until or self._cheap(e, 2 * until))
            ]
            kept = alive[:keep] + spared
            for entry in set(alive) - set(kept):
                self.runs[entry].close()
            alive = kept
            horizon *= 2
        for entry in alive:
            self.runs[entry].close()

    def _room_for_others(self, alive: Sequence[Entry]) -> bool:
        """Would enough steps be left for the best run to end, if all continued for another rung?"""
        if not alive or not self.whole:
            return True
        left = self.most - self.steps - RUNG * self.allowance
        return left >= self.whole - self.runs[alive[0]].steps

    def _first_horizon(self, field: Sequence[Entry]) -> float:
        """The time in which all of them together cost one rung's share of the allowance."""
        speed = sum(self.clients / entry.pace.seconds for entry in field)
        return RUNG * self.allowance / speed

    def _challenge(self) -> Iterator[News]:
        while self.leader is not None and not self._over:
            self._fit()
            limit = self.limit
            fresh = self._promising(limit)
            if not fresh:
                return
            for entry in fresh[:BATCH]:
                if entry in self._past_peak():  # by what others of this batch have shown
                    continue
                yield from self._against_leader(entry, limit)
                self.runs[entry].close()
                if self._over:
                    return

    def _promising(self, limit: float) -> list[Entry]:
        """Candidates that have not run yet: a neighbour of the leaders, then one of the scheme that
        has shown least, then all others that are not hopeless, best first.

        The law is off by a quarter or so, and a closer look around the leaders makes up for that.
        It knows little about a scheme that has not run yet. Of two candidates that promise the
        same, the one that is cheaper to simulate is better.
        """
        known = self._past_peak().union(self.runs)
        fresh = [entry for entry in self.entries if entry not in known]
        needs = {entry: self.law.seconds(entry) for entry in fresh}
        fresh.sort(key=lambda entry: needs[entry] * (1 + self._price(entry, limit)))
        able = [entry for entry in fresh if entry.pace.steps * entry.pace.seconds < limit]
        hopeless = HOPELESS * self._expected()
        waiting = [entry for entry in fresh if needs[entry] < hopeless]
        return list(dict.fromkeys([*self._near(able), *self._turn(able), *waiting]))

    def _near(self, able: Sequence[Entry]) -> list[Entry]:
        """The best candidate that differs from a leader in one choice; runs that are as good as the
        leader's count as leaders."""
        assert self.leader is not None
        tied = [entry for entry in self.runs if self.time(entry) <= TIED * self.limit]
        leaders = {entry.candidate for entry in (self.leader, *tied)}
        near = (e for e in able if any(neighbours(e.candidate, each) for each in leaders))
        return list(islice(near, 1))

    def _turn(self, able: Sequence[Entry]) -> list[Entry]:
        """The best candidate of the least tried scheme: the one with the fewest runs to look at."""
        shown = Counter(e.candidate.scheme for e, run in self.runs.items() if run.points)
        return sorted(able, key=lambda entry: shown[entry.candidate.scheme])[:1]

    def _past_peak(self) -> set[Entry]:
        """Candidates whose learning rate is even further off than one that fell behind.

        With everything else equal, runs get further as the rate rises, up to a peak, and then less
        far.
        """
        same: dict[Candidate, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            same[replace(entry.candidate, learning_rate=0.0)].append(entry)
        return {entry for entries in same.values() for entry in self._beyond(entries)}

    def _beyond(self, entries: Sequence[Entry]) -> Iterator[Entry]:
        """Of candidates that differ only in their rates, those even further off than one behind."""
        tried = [entry for entry in entries if entry in self.runs and self.runs[entry].points]
        for one, other in permutations(tried, 2):
            mine, theirs = self.runs[one].points, self.runs[other].points
            common = min(mine[-1].seconds, theirs[-1].seconds)
            if self.goal.best(mine, common) >= self.goal.best(theirs, common):
                continue
            worse, better = one.candidate.learning_rate, other.candidate.learning_rate
            for entry in entries:
                if (entry.candidate.learning_rate - worse) * (worse - better) > 0:
                    yield entry

    def _price(self, entry: Entry, limit: float) -> float:
        """What running it to the limit would cost, as a multiple of a third of the allowance."""
        return 3 * limit / entry.pace.seconds * self.clients / self.allowance

    def _against_leader(self, entry: Entry, limit: float) -> Iterator[News]:
        assert self.leader is not None
        ahead = self.runs[self.leader].points
        for look in (*LOOKS, 1.0):
            yield self._go(entry, min(look * limit, self.limit), "challengers")
            mine = self.goal.best(self.runs[entry].points)
            behind = mine < self.goal.best(ahead, SLACK * look * limit)
            if self.runs[entry].ended or (behind and not self._cheap(entry, limit)):
                return

    def _cheap(self, entry: Entry, until: float) -> bool:
        """Would continuing until then cost next to nothing? Curves mislead, so a small saving is
        not worth a mistake."""
        points = self.runs[entry].points
        left = until - (points[-1].seconds if points else 0.0)
        return left / entry.pace.seconds * self.clients <= CHEAP * self.allowance

    def _go(self, entry: Entry, until: float, phase: str) -> News:
        if entry not in self.runs:
            self.runs[entry] = self.tracks.open(entry, self.goal)
        others = self.steps - self.runs[entry].steps
        self.runs[entry].advance(until, self.most - others)
        return News(phase, entry, self.runs[entry], self.limit, self.steps / self.allowance)

    def _expected(self) -> float:
        """What the law predicts for the leader, so that like is compared with like."""
        assert self.leader is not None
        return min(self.law.seconds(self.leader), min(map(self.law.seconds, self.runs)) * 1.2)

    def _fit(self) -> None:
        """Fit the law at the highest score that enough runs have reached."""
        tops = sorted((self.goal.best(track.points) for track in self.runs.values()), reverse=True)
        enough = tops[min(max(FITTED, len(tops) // QUORUM), len(tops)) - 1]
        self.level = min(self.goal.level, enough)
        entries, needed = [], []
        for entry, track in self.runs.items():
            point = self.goal.first(track.points, self.level)
            if point is not None and point.iterations > 0:
                entries.append(entry)
                needed.append(float(point.iterations))
        if len(entries) >= 2:
            self.law = fitted(entries, needed, self.law)
