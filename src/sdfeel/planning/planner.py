"""Chooses how to train: ranks every candidate by bound and latency, then lets the best race."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, isinf
from typing import Any

import numpy as np

from sdfeel.core.errors import InputError
from sdfeel.experiment import build_network
from sdfeel.experiment.loading import checked
from sdfeel.experiment.schema import Experiment
from sdfeel.experiment.sections import SamplingSection
from sdfeel.planning import candidates as space
from sdfeel.planning.goal import Goal
from sdfeel.planning.improvements import improvements
from sdfeel.planning.pilots import Workshop
from sdfeel.planning.race import News, Race, Racer
from sdfeel.planning.ranking import Entry, Law, proven
from sdfeel.planning.result import Plan, PlanRow, Site, TaskProfile

EFFORT = 16.0  # what planning may cost, in whole runs of the experiment
MOST = 1.3  # times the effort: never exceeded, so that a run that is about to win can end
AIMING = 0.5  # share of the effort that may go into finding out what to aim at
SHOWN = 60  # candidates that did not run, kept for the picture


@dataclass(frozen=True)
class Wishes:
    """What the planner may choose from, and what it may cost."""

    goal: Goal | None = None  # None: to be as good as the given experiment, but sooner
    schemes: tuple[str, ...] = space.SCHEMES
    choose_graph: bool = False
    effort: float = EFFORT  # 0: rank only


class Planner:
    """Iterate over it; `plan()` returns what is known so far, even after `stop()`."""

    def __init__(self, experiment: Experiment, wishes: Wishes) -> None:
        if not 0 <= wishes.effort < inf:
            raise InputError(f"--effort must be at least 0 runs, got {wishes.effort:g}")
        self._check(experiment, wishes)
        self.wishes, self._asked = wishes, experiment
        self.workshop = Workshop(experiment)
        self.measured = self.workshop.measured()
        self.bound = proven(self.measured)
        self.entries = self.workshop.entries(self.measured, wishes.schemes, wishes.choose_graph)
        self.given = self._given()
        self.goal = wishes.goal
        self.race: Race | None = None
        self._as_given: Racer | None = None
        self._through = False
        self._short: list[str] = []  # what the effort did not allow

    @staticmethod
    def _check(experiment: Experiment, wishes: Wishes) -> None:
        training = experiment.training
        if training.optimizer != "sgd" or training.momentum:
            raise InputError(
                f"plans are made for plain SGD, got training.optimizer={training.optimizer} with "
                f"momentum {training.momentum:g}: plan with sgd and momentum 0, then change it"
            )
        if wishes.choose_graph and experiment.network.changes is not None:
            raise InputError(
                f"--choose-graph cannot be used with network.changes: {experiment.network.changes} "
                f"names the links of one particular graph; leave one of them out"
            )

    def _given(self) -> Entry | None:
        candidate = space.of(self.workshop.prepared.experiment)
        if candidate.scheme not in space.SCHEMES:
            return None  # the law may not describe what another scheme does
        return self.workshop.entry(candidate, self.measured)

    @property
    def run_steps(self) -> int:
        """Local steps of all clients in a whole run."""
        return self.workshop.base.training.iterations * self.workshop.clients

    @property
    def allowance(self) -> int:
        return round(self.wishes.effort * self.run_steps)

    def stop(self) -> None:
        """Stop after the current round; what was found is kept."""
        self.workshop.stop()

    def close(self) -> None:
        self.workshop.close()

    def __iter__(self) -> Iterator[News]:
        if self.wishes.effort == 0:
            self._through = True
            return
        if self.goal is None:
            yield from self._aim()
        if self.goal is None or self.workshop.stopped:
            return
        used = self._used
        self.race = Race(
            entries=self.entries,
            goal=self.goal,
            law=self.bound,
            tracks=self.workshop,
            clients=self.workshop.clients,
            allowance=max(self.allowance - used, 1),
            most=MOST * self.allowance - used,
            whole=self.run_steps,
            drawn=self.workshop.base.sampling != SamplingSection(),
        )
        yield from self.race
        yield from self._compare(self.race)
        self._through = not self.workshop.stopped
        if self.race.leader is None and any(track.short for track in self.race.runs.values()):
            self._short.append(
                f"no candidate reached the goal before the effort ({self.wishes.effort:g} runs) "
                f"was used up: raise --effort, or aim lower"
            )

    @property
    def _used(self) -> int:
        """Steps that went into measuring the task and into the experiment as given."""
        given = 0 if self._as_given is None else self._as_given.steps
        return self.measured.steps + given

    def _aim(self) -> Iterator[News]:
        """Without a goal, aim at the accuracy that the given experiment reaches."""
        if self.given is None:
            raise InputError(
                "a plan needs a goal: give a target accuracy, a target loss or a budget"
            )
        endless = Goal("budget", 1e300)
        self._as_given = self.workshop.open(self.given, endless)
        self._as_given.advance(inf, AIMING * self.allowance)
        if self._as_given.short:
            self._short.append(
                f"the goal is what the experiment as given reaches with half of the effort "
                f"({self.wishes.effort:g} runs), not in the end: raise --effort, or give a goal"
            )
        yield News("as given", self.given, self._as_given, inf, 0.0)
        best = endless.best(self._as_given.points)
        if isinf(best) and self._as_given.short:
            raise InputError(
                f"--effort {self.wishes.effort:g} does not suffice to find out what the experiment "
                f"as given reaches: raise it, or give a target"
            )
        if isinf(best):
            raise InputError(
                "the experiment as given never reached a finite measurement: lower "
                "training.learning_rate, or give a target"
            )
        # Whole percents: the goal should not depend on one lucky test example.
        self.goal = (
            Goal("accuracy", np.floor(best * 100) / 100) if best > 0.01 else Goal("loss", -best)
        )

    def _compare(self, race: Race) -> Iterator[News]:
        """Also run the given experiment, so that people see what the plan gains."""
        known = {entry.candidate.label for entry in race.runs}
        if self.given is None or self._as_given is not None or race.leader is None:
            return
        if self.given.candidate.label in known:
            same = next(e for e in race.runs if e.candidate.label == self.given.candidate.label)
            if race.runs[same].ended:
                self._as_given = race.runs[same]
                return
        self._as_given = self.workshop.open(self.given, race.goal)
        self._as_given.advance(race.goal.horizon, race.most - race.steps)
        yield News("as given", self.given, self._as_given, race.limit, race.steps / race.allowance)

    def finished(self) -> Plan:
        """The plan once everything has been tried, without events on the way; closes it."""
        try:
            for _ in self:
                pass
            return self.plan()
        finally:
            self.close()

    def plan(self) -> Plan:
        """The plan as far as it is known now."""
        problem = self.measured.problem
        runs = self.race.runs if self.race is not None else {}
        ran = [self._row(entry, runs[entry]) for entry in runs]
        ran.sort(key=self._order)
        rest = [entry for entry in self.entries if entry not in runs]
        rest.sort(key=self._law.seconds)
        given = self._row(self.given, self._as_given) if self.given is not None else None
        tracks = {*runs.values(), *([self._as_given] if self._as_given is not None else [])}
        return Plan(
            goal=self.goal if self.goal is not None else Goal("budget", 1e300),
            task=TaskProfile(
                problem.smoothness,
                problem.noise,
                problem.divergence,
                self.measured.between,
                problem.gap,
            ),
            rows=tuple(ran + [self._row(entry, None) for entry in rest[:SHOWN]]),
            given=given,
            candidates=len(self.entries),
            steps=sum(track.steps for track in tracks) + self.measured.steps,
            run_steps=self.run_steps,
            finished=self._through,
            seed=self.workshop.base.seed,
            assumed=self._assumed(runs),
            short=tuple(self._short),
            **self._improved(ran),
        )

    def _improved(self, ran: list[PlanRow]) -> dict[str, Any]:
        """What to improve first where the best row's choice is used, and a map of it."""
        if not ran:
            return {}
        best = space.Candidate(ran[0].scheme, tuple(ran[0].options.items()), *_where(ran[0]))
        net, base = self.workshop.net(best), self.workshop.base
        real = build_network.server_graph(best.applied(base))
        names = () if real is None else real.names
        site = Site(tuple(net.edges), len(net.servers), net.places, names)
        decisions = self.workshop.decisions(best)
        return {
            "improvements": improvements(decisions, best.option("tau2"), site),
            "site": site,
        }

    def _assumed(self, runs: Mapping[Entry, Racer]) -> tuple[str, ...]:
        """The rates of links that the best candidate uses and that nobody has given."""
        if not runs:
            return ()
        best = min(runs, key=lambda entry: self._order(self._row(entry, runs[entry])))
        decisions = self.workshop.decisions(best.candidate)
        vias: set[str] = set()
        for k in range(int(best.candidate.option("tau2"))):
            view = decisions.view(0, k)
            mix = decisions.mix(view, decisions.cost.done(decisions.work(view)))
            vias |= {each.via for each in (mix.up, *mix.stages)}
        section = self._asked.latency
        keys = [f"{via.replace('-', '_')}_mbps" for via in sorted(vias)]
        return tuple(
            f"latency.{key} = {getattr(section, key):g}"
            for key in keys
            if hasattr(section, key) and key not in section.model_fields_set
        )

    @property
    def _law(self) -> Law:
        return self.race.law if self.race is not None else self.bound

    def _scale(self) -> float | None:
        """The factor that takes the law from the level it was fitted at to the goal."""
        if self.race is None or self.race.leader is None or self.race.goal.kind == "budget":
            return None
        ratios = [
            self.race.time(entry) / self.race.law.seconds(entry)
            for entry in self.race.runs
            if not isinf(self.race.time(entry))
        ]
        return float(np.median(ratios))

    def _order(self, row: PlanRow) -> tuple[float, float]:
        late = inf if row.seconds is None else row.seconds
        return late, -(row.score if row.score is not None else -inf)

    def _row(self, entry: Entry, track: Racer | None) -> PlanRow:
        candidate, scale = entry.candidate, self._scale()
        row = PlanRow(
            label=candidate.label,
            scheme=candidate.scheme,
            options=dict(candidate.options),
            learning_rate=candidate.learning_rate,
            graph=candidate.graph,
            mixing=candidate.mixing,
            iteration_seconds=entry.pace.seconds,
            shares=entry.pace.shares,
            proven_rate=entry.largest,
            bound_seconds=self.bound.seconds(entry),
            predicted_seconds=None if scale is None else scale * self._law.seconds(entry),
            predicted_iterations=None if scale is None else scale * self._law.iterations(entry),
        )
        if track is None or self.goal is None:
            return row
        there = self.goal.first(track.points, self.goal.level)
        best = self.goal.best(track.points)
        return replace(
            row,
            seconds=None if there is None else there.seconds,
            iterations=None if there is None else there.iterations,
            score=None if isinf(best) else best,
            pilot_seconds=track.points[-1].seconds if track.points else 0.0,
            steps=track.steps,
            points=tuple(track.points),
        )


def _where(row: PlanRow) -> tuple[float, str, str]:
    return row.learning_rate, row.graph, row.mixing


def experiment_of(base: Experiment, plan: Plan) -> Experiment | None:
    """The winner as an experiment that `sdfeel run` takes; None without one."""
    row = plan.winner
    if row is None:
        return None
    candidate = space.Candidate(row.scheme, tuple(row.options.items()), *_where(row))
    values = candidate.applied(base).model_dump()
    if plan.goal.kind == "accuracy":
        values["training"]["target_accuracy"] = plan.goal.value
    elif plan.goal.kind == "budget":
        values["training"]["max_seconds"] = plan.goal.value
    return checked(values)
