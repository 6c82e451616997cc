"""Stage 2 on curves whose end is known: little is run, and the best is found."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import exp, inf

import numpy as np
import pytest

from sdfeel.planning.candidates import Candidate
from sdfeel.planning.goal import Goal, PilotPoint
from sdfeel.planning.race import Race
from sdfeel.planning.ranking import Entry, Law, Pace, distinct, drift, shortlist

TRUTH = Law(4.0, 5.0)  # iterations until a score of 0.9
BOUND = Law(200.0, 60_000.0)  # far too high, and drift above all
CLIENTS, ITERATIONS = 10, 400


def field_of(upload: float, mix: float, cloud: float) -> list[Entry]:
    """All candidates where computing takes 1 ms and the links what is said."""
    found = []
    for tau1 in (1, 2, 5, 10, 20, 50):
        for rate in (0.05, 0.1, 0.2, 0.4):
            for scheme, price, contraction in (("sd-feel", mix, 0.6), ("hierfavg", cloud, 0.0)):
                pace = Pace(0.001, upload / tau1, price / tau1, 0.001 * tau1 + upload + price, tau1)
                candidate = Candidate(scheme, (("tau1", tau1),), rate, "ring", "paper")
                found.append(
                    Entry(candidate, pace, 2.5 * rate, drift(tau1, 1, contraction, 0.3), 0.01)
                )
    return found


@dataclass
class Recorded:
    """A run that follows the true law: its score approaches 1."""

    entry: Entry
    goal: Goal
    points: list[PilotPoint] = field(default_factory=list)
    ended: bool = False
    closed: bool = False
    short: bool = False

    @property
    def steps(self) -> int:
        return self.points[-1].steps if self.points else 0

    def advance(self, until: float, most: float = inf) -> None:
        assert not self.closed or self.ended
        tau1 = self.entry.candidate.tau1
        while not self.ended:
            done = (self.points[-1].iterations if self.points else 0) + tau1
            seconds = done * self.entry.pace.seconds
            self.short = done * CLIENTS > most
            if seconds > until or self.short:
                return
            score = 1 - exp(-2.3026 * done / TRUTH.iterations(self.entry))
            self.points.append(PilotPoint(seconds, done, score, 1 - score, done * CLIENTS))
            self.ended = done >= ITERATIONS or self.goal.score(self.points[-1]) >= self.goal.level

    def close(self) -> None:
        self.closed = True


@dataclass
class Recordings:
    stopped: bool = False
    opened: list[Recorded] = field(default_factory=list)

    def open(self, entry: Entry, goal: Goal) -> Recorded:
        self.opened.append(Recorded(entry, goal))
        return self.opened[-1]


def race(entries: list[Entry], goal: Goal, tracks: Recordings) -> Race:
    return Race(entries, goal, BOUND, tracks, CLIENTS, 8 * ITERATIONS * CLIENTS)


LINKS = [(0.05, 0.005, 0.05), (0.05, 0.5, 0.05), (0.0001, 0.0001, 0.0001), (0.001, 0.01, 1.0)]


@pytest.mark.parametrize("prices", LINKS)
def test_the_choice_is_near_the_best_at_a_fraction_of_the_price(
    prices: tuple[float, float, float],
) -> None:
    entries, goal = field_of(*prices), Goal("accuracy", 0.9)
    whole = []
    for entry in entries:
        track = Recorded(entry, goal)
        track.advance(inf)
        point = goal.first(track.points, 0.9)
        whole.append((point.seconds if point else inf, track.steps))
    running = race(entries, goal, Recordings())
    for _ in running:
        pass
    assert running.leader is not None
    assert running.time(running.leader) <= 1.1 * min(seconds for seconds, _ in whole)
    assert running.steps <= running.allowance + ITERATIONS * CLIENTS
    assert running.steps < 0.6 * sum(steps for _, steps in whole)


@pytest.mark.parametrize("prices", LINKS)
def test_no_rate_beyond_a_worse_one_is_tried_and_every_scheme_has_its_turn(
    prices: tuple[float, float, float],
) -> None:
    running = race(field_of(*prices), Goal("accuracy", 0.9), Recordings())
    begun: dict[Entry, list[PilotPoint]] = {}  # as far as each was when the next began
    for news in running:
        if news.phase == "challengers" and news.entry not in begun:
            assert not beyond(news.entry.candidate, begun)
        begun = {entry: list(track.points) for entry, track in running.runs.items()}
    shown = {entry.candidate.scheme for entry, points in begun.items() if points}
    able = (e for e in running.entries if e.pace.period < running.limit)
    assert shown >= {entry.candidate.scheme for entry in able}


def beyond(candidate: Candidate, begun: dict[Entry, list[PilotPoint]]) -> bool:
    """Did a rate between this one and a better one do worse, in the time that both ran?"""
    same = [
        (entry.candidate.learning_rate, points)
        for entry, points in begun.items()
        if points and replace(entry.candidate, learning_rate=candidate.learning_rate) == candidate
    ]
    for (worse, low), (better, high) in permutations(same, 2):
        until = min(low[-1].seconds, high[-1].seconds)
        reached = [
            -min((point.loss for point in points if point.seconds <= until), default=inf)
            for points in (low, high)
        ]
        between = (
            min(candidate.learning_rate, better) < worse < max(candidate.learning_rate, better)
        )
        if between and reached[0] < reached[1]:
            return True
    return False


def test_a_budget_is_made_the_most_of() -> None:
    entries, goal = field_of(0.05, 0.005, 0.05), Goal("budget", 0.4)
    running = race(entries, goal, Recordings())
    for _ in running:
        pass
    assert running.leader is not None
    best = max(goal.best(track.points) for track in (_ran(entry, goal, 0.4) for entry in entries))
    assert goal.best(running.runs[running.leader].points) >= best - 0.02
    assert all(track.points[-1].seconds <= 0.4 for track in running.runs.values() if track.points)


def _ran(entry: Entry, goal: Goal, until: float) -> Recorded:
    track = Recorded(entry, goal)
    track.advance(until)
    return track


def test_a_race_can_be_stopped_and_returns_what_it_knows() -> None:
    tracks = Recordings()
    running = race(field_of(0.05, 0.005, 0.05), Goal("accuracy", 0.9), tracks)
    news: Iterator[object] = iter(running)
    for _ in range(20):
        next(news)
    tracks.stopped = True
    left = list(news)
    assert len(left) <= len(tracks.opened) + 1
    assert len(running.runs) == len(tracks.opened)


def test_an_unreachable_goal_has_no_leader_and_an_end() -> None:
    running = race(field_of(0.05, 0.005, 0.05), Goal("accuracy", 1.0), Recordings())
    assert sum(1 for _ in running) > 0
    assert running.leader is None


def test_the_same_race_twice_goes_the_same_way() -> None:
    ran = []
    for _ in range(2):
        running = race(field_of(0.05, 0.5, 0.05), Goal("accuracy", 0.9), Recordings())
        for _ in running:
            pass
        ran.append([entry.candidate.label for entry in running.runs])
    assert ran[0] == ran[1]


def test_the_shortlist_has_every_period_at_the_advised_rate_and_above_and_every_scheme() -> None:
    chosen = [entry.candidate for entry in shortlist(field_of(0.05, 0.5, 0.05), BOUND)]
    assert {candidate.tau1 for candidate in chosen} == {1, 2, 5, 10, 20, 50}
    assert {candidate.learning_rate for candidate in chosen} == {0.2, 0.4}  # L is 5
    assert {candidate.scheme for candidate in chosen} == {"sd-feel", "hierfavg"}
    assert len(chosen) < 16


@dataclass
class Hesitant(Recorded):
    """A run of tau1 = 1 that shows nothing for a while, and is then the fastest of all."""

    def advance(self, until: float, most: float = inf) -> None:
        while not self.ended and self.entry.candidate.tau1 == 1:
            done = (self.points[-1].iterations if self.points else 0) + 1
            if done * self.entry.pace.seconds > until:
                return
            score = 0.1 if done < 10 else 0.95
            self.points.append(
                PilotPoint(done * self.entry.pace.seconds, done, score, 1, 10 * done)
            )
            self.ended = self.goal.score(self.points[-1]) >= self.goal.level
        super().advance(until, most)


@dataclass
class Hesitants(Recordings):
    def open(self, entry: Entry, goal: Goal) -> Recorded:
        self.opened.append(Hesitant(entry, goal))
        return self.opened[-1]


def test_a_run_that_is_cheap_to_continue_is_not_stopped_for_a_late_start() -> None:
    entries = field_of(0.05, 0.005, 0.05)  # one iteration of tau1 = 1 costs 0.056 seconds
    running = race(entries, Goal("accuracy", 0.9), Hesitants())
    for _ in running:
        pass
    assert running.leader is not None
    assert running.leader.candidate.tau1 == 1
    plain = race(entries, Goal("accuracy", 0.9), Recordings())
    for _ in plain:
        pass
    assert plain.leader is not None
    assert plain.leader.candidate.tau1 > 1


def test_of_two_that_train_the_same_models_only_the_cheaper_runs() -> None:
    pace, dear = Pace(0.001, 0.01, 0.0, 0.01, 5), Pace(0.001, 0.02, 0.0, 0.02, 5)
    fedavg = Candidate("fedavg", (("tau1", 5),), 0.1, "ring", "paper")
    same = Candidate("hierfavg", (("tau1", 5), ("tau2", 1)), 0.1, "ring", "paper")
    other = Candidate("hierfavg", (("tau1", 5), ("tau2", 2)), 0.1, "ring", "paper")
    entries = [
        Entry(fedavg, dear, 0, 1, 1),
        Entry(same, pace, 0, 1, 1),
        Entry(other, dear, 0, 1, 1),
    ]
    assert [entry.candidate for entry in distinct(entries)] == [same, other]
    assert [
        e.candidate for e in distinct([Entry(same, dear, 0, 1, 1), Entry(fedavg, pace, 0, 1, 1)])
    ] == [fedavg]


def test_models_of_runs_that_lost_are_forgotten() -> None:
    tracks = Recordings()
    running = race(field_of(0.05, 0.005, 0.05), Goal("accuracy", 0.9), tracks)
    for _ in running:
        pass
    assert sum(track.closed or track.ended for track in tracks.opened) >= len(tracks.opened) - 3


@pytest.mark.parametrize("seed", range(40))
def test_a_race_never_costs_more_than_it_may(seed: int) -> None:
    """Whatever the links cost, and however little may be spent."""
    draws = np.random.default_rng(seed)
    prices = 10 ** draws.uniform(-4, 1, 3)
    goal = Goal("accuracy", 1.0) if seed % 5 == 0 else Goal("accuracy", draws.uniform(0.3, 0.95))
    effort = float(10 ** draws.uniform(-1.5, 1))
    whole = ITERATIONS * CLIENTS
    running = Race(
        field_of(*prices.tolist()),
        goal,
        BOUND,
        Recordings(),
        CLIENTS,
        allowance=round(effort * whole),
        most=1.3 * effort * whole,
        whole=whole,
    )
    assert sum(1 for _ in running) < 2000
    assert running.steps <= running.most
    if goal.value < 1 and effort >= 1:
        assert running.leader is not None
