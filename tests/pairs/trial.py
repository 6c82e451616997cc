"""One combination of options is tried: what must hold, whatever the options."""

import shutil
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from math import inf, isfinite
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import SdfeelError
from sdfeel.core.events import Evaluated, Event, Finished, Round, Started
from sdfeel.core.mixing import Mixing
from sdfeel.experiment.build import prepare
from sdfeel.run import store
from sdfeel.run.session import Session, resume, start
from sdfeel.sim.simulate import Simulation
from sdfeel.sim.state import LaneState
from tests.pairs.options import Choice, Place

ENDLESS = 20  # times the expected rounds
CLOSE = 1e-9


@dataclass(frozen=True)
class Violation:
    """What does not hold, in one word and in a sentence."""

    kind: str
    sentence: str

    def __str__(self) -> str:
        return f"[{self.kind}] {self.sentence}"


class Violated(Exception):
    """Carries a violation out of a run that cannot continue."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.violation = Violation(kind, sentence)


class Refused(Exception):
    """The sentence with which a combination was refused before anything was written."""


@dataclass
class Tally:
    """What is watched while a simulation runs."""

    busy: Floats  # (C,) seconds that each client has computed and sent
    keeps: bool  # must mixing keep the weighted mean?
    overtime: bool = False  # may clients still be busy when their next round begins?
    found: list[Violation] = field(default_factory=list)

    def add(self, kind: str, sentence: str) -> None:
        if all(known.kind != kind for known in self.found):  # the first of a kind is enough
            self.found.append(Violation(kind, sentence))


# What became of combinations that were prepared: many refused pairs share one of their options.
PREPARED: dict[tuple[Place, frozenset[tuple[str, str]]], str | None] = {}


def prepared_or_refused(place: Place, choice: Choice) -> str | None:
    """None if a combination can be prepared, otherwise the sentence that refuses it."""
    key = place, frozenset(choice.items())
    if key not in PREPARED:
        try:
            prepare(place.experiment(choice)).engine.close()
            PREPARED[key] = None
        except SdfeelError as error:
            PREPARED[key] = str(error)
        except Exception as error:
            raise Violated("crash", f"in prepare, {type(error).__name__}: {error}") from error
    return PREPARED[key]


# In so few rounds noise may win, above all where a server's Adam scales it up to full steps.
NOISY = 0.1


def check(
    place: Place, choice: Choice, directory: Path, stop_at: float | None = 0.5, slack: float = 0.0
) -> list[Violation]:
    """Everything that is wrong with an accepted combination: run it, and continue a part of it.

    The part is what a kill after `stop_at` of the run leaves behind, if there is one; the loss may
    rise by `slack` at most.
    """
    whole, cut = directory / "whole", directory / "cut"
    try:
        found, events = _whole(place, choice, whole, cut, stop_at, slack)
        if not found and cut.exists():
            found += _as_killed(cut, events)
    except Violated as error:
        found = [error.violation]
    except Refused as refused:
        PREPARED[place, frozenset(choice.items())] = str(refused)
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return found


def events_of(place: Place, choice: Choice, directory: Path) -> list[Event]:
    """The story of a run: what it did, what it said, which engine it had."""
    return list(_story(place, choice, directory))


def tells_the_same(place: Place, choice: Choice, directory: Path, known: list[Event]) -> bool:
    """Is this the story of a run? It goes no further than to the first difference."""
    with closing(_story(place, choice, directory)) as events:
        return all(told == event for told, event in zip_longest(events, known))


def _story(place: Place, choice: Choice, directory: Path) -> Generator[Event, None, None]:
    try:
        with _nothing_raised():
            for event in _bounded(_started(place, choice, directory)):
                yield _outcome(event)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _started(place: Place, choice: Choice, directory: Path) -> Session:
    """A run that is ready to begin; Refused if it cannot."""
    try:
        return start(place.experiment(choice), directory)
    except SdfeelError as error:
        if directory.exists():
            raise Violated("refused late", f"{directory.name} was made first: {error}") from error
        raise Refused(str(error)) from error


def _outcome(event: Event) -> Event:
    """Without what merely describes the setting."""
    if isinstance(event, Started):
        return replace(event, zeta=0.0, edges=(), home=(), engine_reason="", servers=0)
    return event


def _whole(
    place: Place, choice: Choice, directory: Path, cut: Path, stop_at: float | None, slack: float
) -> tuple[list[Violation], list[Event]]:
    seconds = 0 if stop_at is not None else 3600
    place = replace(place, base=(*place.base, f"checkpoint.every_seconds={seconds}"))
    clients = place.experiment(choice).network.clients
    tally = Tally(np.zeros(clients), keeps_mean(choice), works_overtime(choice))
    events = []
    with watched(tally), _nothing_raised():
        session = _started(place, choice, directory)
        # A run may end before it is expected to: then it is as it was after its first round.
        moments = {2, 1 + round(stop_at * session.total_rounds)} if stop_at is not None else ()
        for event in _bounded(session):
            events.append(event)
            if isinstance(event, Round) and event.number in moments:  # saved is the one before
                shutil.rmtree(cut, ignore_errors=True)
                shutil.copytree(directory, cut)
    if choice.get("privacy", "nothing") != "nothing":
        slack += NOISY
    if choice.get("optimizer") == "nesterov" and choice.get("server") == "momentum":
        slack += NOISY  # two momenta, one around the other, swing at this learning rate
    if choice.get("optimizer") == "newton" and choice.get("late") == "drop-unbiased":
        slack = inf  # the few that arrive stand for all, and Newton's long steps overshoot
    if choice.get("scheme") == "fedcs-strict" and choice.get("privacy") == "masks":
        slack = inf  # masked messages are long: one client alone, with its few classes, is in time
    if choice.get("attack", "none") != "none":
        slack = inf  # liars may well win
    return [*tally.found, *story_violations(events, slack)], events


@contextmanager
def _nothing_raised() -> Iterator[None]:
    """A run that was accepted must reach its end."""
    try:
        yield
    except (Refused, Violated):
        raise
    except SdfeelError as error:
        raise Violated("refused late", f"{type(error).__name__} in mid-run: {error}") from error
    except Exception as error:
        raise Violated("crash", f"{type(error).__name__}: {error}") from error


def keeps_mean(choice: Choice) -> bool:
    """As the paper prints it, asynchronous SD-FEEL keeps the plain mean."""
    return choice.get("scheme") != "async-sd-feel"


def works_overtime(choice: Choice) -> bool:
    """In SAFA as its authors simulate it, clients that are not waited for finish all the same."""
    return choice.get("scheme", "").startswith("safa")


def _bounded(session: Session) -> Iterator[Event]:
    """The events of a run, unless it never ends."""
    most = ENDLESS * session.total_rounds + 50
    for event in session:
        if isinstance(event, Round) and event.number > most:
            raise Violated(
                "endless",
                f"{event.iterations} iterations in {most} rounds; {session.total_rounds} expected",
            )
        yield event


@contextmanager
def watched(tally: Tally) -> Iterator[None]:
    """Every round of every simulation is looked at."""
    plain = Simulation.__next__

    def watching(simulation: Simulation) -> Round:
        each = min(simulation.state.lanes, key=lambda lane: (lane.ends, lane.number))
        _look(simulation, each, tally)
        done = plain(simulation)
        if not bool(torch.isfinite(simulation.state.models).all()):
            tally.add("not finite", f"a model is not finite after round {done.number}")
        return done

    with patch.object(Simulation, "__next__", watching):
        yield


def _look(simulation: Simulation, each: LaneState, tally: Tally) -> None:
    decisions = simulation.decisions.at(each.k)  # those of its epoch
    plan = decisions.round(
        each.number,
        each.k,
        simulation.state.clocks,
        began=each.began,
        seconds=each.since,
        memory=each.memory,
        measured=each.measured,
    )
    bill, net = plan.bill, plan.state.net  # as it is in this round: clients may have moved
    waited = each.ends - each.since - bill.seconds
    if abs(waited) > CLOSE and not (waited > 0 and decisions.cost.holds):
        tally.add("time", f"a round of {bill.seconds} s takes {each.ends - each.since} s")
    np.add.at(tally.busy, plan.work.down.rows, bill.busy + bill.sending)
    longest = int(tally.busy.argmax())
    if tally.busy[longest] > each.ends * (1 + CLOSE) and not tally.overtime:
        tally.add(
            "time",
            f"client {longest} has been busy for {tally.busy[longest]:.6g} s of {each.ends:.6g} s",
        )
    drift = mean_drift(*plan.mix.stages, mass=net.mass) if tally.keeps else 0.0
    if drift > CLOSE:
        tally.add("mean", f"mixing between servers moves the weighted mean by {drift:.2g}")


def mean_drift(*stages: Mixing, mass: Floats) -> float:
    """How far `mass @ weights` is from `mass` when all is done; shelves have no mass.

    On its way, a sequence of exchanges that agrees exactly may weight servers otherwise.
    """
    matrix = np.eye(len(mass))
    for mixing in stages:
        if (mixing.sources >= 0).all() and (mixing.rows >= 0).all():
            matrix[mixing.rows] = mixing.dense(len(mass)) @ matrix
    return float(np.abs(mass @ matrix - mass).max())


def story_violations(events: list[Event], slack: float = 0.0) -> list[Violation]:
    """What a run's events must say."""
    rounds = [event for event in events if isinstance(event, Round)]
    measured = [event for event in events if isinstance(event, Evaluated)]
    last = events[-1]
    if not isinstance(last, Finished) or not rounds:
        return [Violation("endless", f"the last event is {last}")]
    found = []
    steps: list[Round | Finished] = [*rounds, last]
    for a, b in pairwise(steps):
        for name in ("number", "seconds", "bytes", "joules", "iterations"):
            if getattr(b, name) < getattr(a, name):
                found.append(Violation("story", f"{name} falls after round {a.number}"))
    joules = 0.0
    for each in rounds:
        joules += sum(each.energy.values())
        if abs(joules - each.joules) > CLOSE * max(joules, 1):
            found.append(Violation("energy", f"{joules} J by phases, {each.joules} J in all"))
        if min([*each.energy.values(), *each.phases.values()]) < 0:
            found.append(Violation("energy", f"a phase of round {each.number} is negative"))
    for look in measured:
        values = (look.loss, look.test_loss, look.spread, look.accuracy, *look.distances)
        if not all(value is not None and isfinite(value) for value in values):
            found.append(Violation("not finite", f"measured after round {look.number}: {look}"))
    if not measured[-1].loss < measured[0].loss + slack:
        found.append(
            Violation("no progress", f"the loss was {measured[0].loss}, is {measured[-1].loss}")
        )
    if measured[-1].number != last.number:
        found.append(Violation("story", "the end was not measured"))
    return found[:3]


def _as_killed(directory: Path, whole: list[Event]) -> list[Violation]:
    """A run that is killed and resumed must tell the same story."""
    with _nothing_raised():
        list(resume(directory))
    log = list(store.read_events(directory))
    again = [log[0], *(event for event in log[1:] if not isinstance(event, Started))]
    if isinstance(log[0], Started) and isinstance(whole[0], Started):
        # A run that begins again asks for the engine that was chosen, so the reason is another.
        again[0] = replace(log[0], engine_reason=whole[0].engine_reason)
    if again == whole:
        return []
    first = next((pair for pair in zip(whole, again, strict=False) if pair[0] != pair[1]), None)
    return [Violation("resume", f"killed and resumed, it differs: {first}")]
