"""Does the planner earn its keep? Its choice against every candidate, run to the end.

Each situation is the embedded digits with other links, devices or data. Times are virtual and
seeds fixed, so the figures do not depend on the machine.
"""

import json
import multiprocessing as mp
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import inf
from pathlib import Path

from sdfeel.core.errors import InputError, unknown
from sdfeel.engine.base import cores
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.planning.candidates import of
from sdfeel.planning.goal import Goal
from sdfeel.planning.pilots import Pilot, Workshop
from sdfeel.planning.planner import Planner, Wishes
from sdfeel.planning.ranking import Entry
from sdfeel.planning.result import Plan
from sdfeel.run.many import on_one_core

BASE = (
    "network.clients=20",
    "network.servers=5",
    "training.iterations=500",
    "evaluation.train_examples=100",
)
SITUATIONS: dict[str, tuple[str, ...]] = {
    "slow backhaul": ("latency.server_server_mbps=0.5",),
    "fast backhaul": ("latency.server_server_mbps=500", "latency.server_cloud_mbps=1"),
    "slow clients": ("devices.gflops=0.0005", "devices.spread=4"),
    "strongly non-IID": ("data.classes_per_client=1", "network.assignment=by_label"),
    "imbalanced clusters": (
        "network.imbalance=3",
        "data.partition=dirichlet",
        "data.concentration=0.3",
    ),
    # A different kind of situation: no rule of the planner was chosen by looking at it.
    "far cells": (
        "network.clients=24",
        "network.servers=8",
        "network.graph=geometric",
        "radio.rates=distance",
        "devices.spread=2",
        "data.partition=dirichlet",
        "data.concentration=0.2",
        "model.name=logistic",
        "training.learning_rate=0.02",
    ),
}
SCHEMES = ("sd-feel", "hierfavg", "fedavg", "async-sd-feel")  # that only average
TARGET = 0.9  # accuracy
EFFORT = 8.0  # whole runs: less than planning may take by default, since the grids are small
NEAR, FASTER, CHEAP = 1.15, 1.5, 0.1  # the planner's goals


@dataclass(frozen=True)
class Tried:
    """One candidate of the grid, run until the target or all its iterations."""

    label: str
    seconds: float | None  # None: the target was not reached
    steps: int  # local steps of all clients that it cost


@dataclass(frozen=True)
class SituationResult:
    """One situation's line of the table."""

    situation: str
    choice: str
    seconds: float
    best: str
    best_seconds: float
    default_seconds: float | None  # of the paper's default setting; None: not reached
    ran: int
    candidates: int
    steps: int
    grid_steps: int

    @property
    def behind(self) -> float:
        """The choice's time over the best of the grid."""
        return self.seconds / self.best_seconds

    @property
    def speedup(self) -> float:
        """The default's time over the choice's."""
        return inf if self.default_seconds is None else self.default_seconds / self.seconds

    @property
    def compute(self) -> float:
        """What planning cost, over what the grid cost."""
        return self.steps / self.grid_steps


@dataclass(frozen=True)
class Online:
    """One line of the other table: periods chosen during training, at one learning rate."""

    situation: str
    rate: float
    seconds: float | None  # None: the target was not reached
    best: str  # of the fixed settings at this rate
    best_seconds: float
    default_seconds: float | None  # of the default periods at this rate

    @property
    def behind(self) -> float:
        """Its time over that of the best fixed setting."""
        return inf if self.seconds is None else self.seconds / self.best_seconds

    @property
    def speedup(self) -> float:
        """The default's time over its time."""
        if self.seconds is None:
            return 0.0
        return inf if self.default_seconds is None else self.default_seconds / self.seconds


def experiment(situation: str, seed: int = 0) -> Experiment:
    """The experiment of a situation; its scheme is the paper's default setting on a ring."""
    if situation not in SITUATIONS:
        raise unknown("situation", situation, SITUATIONS)
    return load(None, [*BASE, *SITUATIONS[situation], f"seed={seed}"])


def plan(situation: str, seed: int = 0) -> Plan:
    """The planner's answer, with the effort that it has by default."""
    wishes = Wishes(Goal("accuracy", TARGET), SCHEMES, effort=EFFORT)
    return Planner(experiment(situation, seed), wishes).finished()


def grid(
    situation: str, directory: Path, seed: int = 0, jobs: int | None = None
) -> Iterator[Tried]:
    """Every candidate, as it finishes; those already in `directory` are not run again."""
    file = directory / f"{situation.replace(' ', '-')}-{seed}.jsonl"
    done = _read(file)
    yield from done.values()
    _, entries = _field(situation, seed)
    missing = [(situation, seed, n) for n, e in enumerate(entries) if e.candidate.label not in done]
    if not missing:
        return
    directory.mkdir(parents=True, exist_ok=True)
    # New processes, not forks: torch's threads do not survive a fork.
    workers = min(jobs or cores(), len(missing))
    with mp.get_context("spawn").Pool(workers) as pool, file.open("a") as log:
        for tried in pool.imap_unordered(_whole, missing):
            log.write(json.dumps(asdict(tried)) + "\n")
            log.flush()
            yield tried


@cache
def _field(situation: str, seed: int) -> tuple[Workshop, list[Entry]]:
    """All candidates of a situation, made ready once in each process."""
    workshop = Workshop(on_one_core(experiment(situation, seed)))
    return workshop, workshop.entries(workshop.measured(), SCHEMES, choose_graph=False)


def _whole(one: tuple[str, int, int]) -> Tried:
    """One candidate from the beginning to the target, or to the end of its iterations."""
    situation, seed, number = one
    workshop, entries = _field(situation, seed)
    goal, entry = Goal("accuracy", TARGET), entries[number]
    pilot = workshop.open(entry, goal)
    pilot.advance(inf)
    there = goal.first(pilot.points, goal.level)
    return Tried(entry.candidate.label, there.seconds if there else None, pilot.steps)


def online(situation: str, tried: list[Tried], seed: int = 0) -> list[Online]:
    """The scheme `adaptive` against SD-FEEL with each of the grid's fixed periods.

    It does not choose the learning rate, so it runs with the given one, and then with that of the
    best fixed setting. Its budget is the time that the default periods take.
    """
    base = experiment(situation, seed)
    times = {t.label: t.seconds for t in tried if t.seconds and t.label.startswith("sd-feel ")}
    if not times:
        raise InputError(f"nothing reached {TARGET:g} in the situation '{situation}'")
    overall = min(times, key=lambda label: times[label])
    rates = dict.fromkeys([f"{base.training.learning_rate:g}", overall.rpartition("=")[2]])
    return [_online(situation, times, float(rate), seed) for rate in rates]


def _online(situation: str, times: dict[str, float], rate: float, seed: int) -> Online:
    workshop, _ = _field(situation, seed)
    fixed = {label: t for label, t in times.items() if label.endswith(f" rate={rate:g}")}
    best = min(fixed, key=lambda label: fixed[label])
    default = replace(of(workshop.prepared.experiment), learning_rate=rate)
    usual = times.get(default.label)
    options = () if usual is None else (("budget", usual),)
    goal = Goal("accuracy", TARGET)
    pilot = Pilot(workshop, replace(default, scheme="adaptive", options=options), goal, every=1)
    pilot.advance(inf)
    there = goal.first(pilot.points, goal.level)
    return Online(situation, rate, there.seconds if there else None, best, fixed[best], usual)


def _read(file: Path) -> dict[str, Tried]:
    if not file.is_file():
        return {}
    try:
        found = [Tried(**json.loads(line)) for line in file.read_text().splitlines()]
    except (ValueError, TypeError):
        raise InputError(f"{file} is damaged: remove it, and the grid runs again") from None
    return {tried.label: tried for tried in found}


def verdict(situation: str, found: Plan, tried: list[Tried]) -> SituationResult:
    """How the plan compares with the grid."""
    times = {each.label: each.seconds for each in tried if each.seconds is not None}
    if not times or found.winner is None or found.winner.seconds is None:
        raise InputError(f"nothing reached {TARGET:g} in the situation '{situation}'")
    best = min(times, key=lambda label: times[label])
    assert found.given is not None
    return SituationResult(
        situation=situation,
        choice=found.winner.label,
        seconds=found.winner.seconds,
        best=best,
        best_seconds=times[best],
        default_seconds=times.get(found.given.label),
        ran=sum(row.ran for row in found.rows),
        candidates=found.candidates,
        steps=found.steps,
        grid_steps=sum(each.steps for each in tried),
    )
