"""The planner on networks that exist: its choice against every other candidate.

The networks are those of the Topology Zoo with 6 to 14 servers, evenly spaced in their alphabetical
order. Kilometres are the network's own. What the Zoo does not know is drawn for each network, by
the rule in `experiment`. Times are virtual, so the figures do not depend on the machine.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path

import numpy as np

from sdfeel.bench.planning import Online
from sdfeel.core.errors import InputError, SdfeelError
from sdfeel.core.network import unreached
from sdfeel.core.run_files import write_atomic
from sdfeel.experiment.loading import load
from sdfeel.experiment.real_networks import catalogue, topohub
from sdfeel.experiment.schema import Experiment
from sdfeel.planning.candidates import SCHEMES, of
from sdfeel.planning.goal import Goal
from sdfeel.planning.pilots import Pilot, Workshop
from sdfeel.planning.planner import EFFORT, Planner, Wishes
from sdfeel.planning.result import PlanRow
from sdfeel.run.many import on_one_core

SERVERS = range(6, 15)
TARGET = 0.8  # accuracy
NEAR, SHARE, CHEAP = 1.05, 0.9, 0.1  # the goals: how near, on which share, at which part of a grid


def networks(count: int) -> list[str]:
    """This many networks of the Topology Zoo, always the same."""
    fitting = [name for name in catalogue("topozoo/") if _fits(name)]
    if not 1 <= count <= len(fitting):
        raise InputError(f"the Topology Zoo has {len(fitting)} such networks, not {count}")
    return [fitting[n * len(fitting) // count] for n in range(count)]


def _fits(name: str) -> bool:
    graph = topohub(name)
    return graph.servers in SERVERS and not len(unreached(graph.links))


def experiment(name: str) -> Experiment:
    """A network with two clients a server, and links, devices and data drawn by its name."""
    draws = np.random.default_rng(list(name.encode()))
    servers = topohub(name).servers

    def one_of(*values: float) -> float:
        return float(draws.choice(values))

    return load(
        None,
        [
            f"network.graph={name}",
            f"network.servers={servers}",
            f"network.clients={2 * servers}",
            "model.name=logistic",
            "training.iterations=150",
            "evaluation.train_examples=100",
            f"latency.client_server_mbps={one_of(1, 5, 20):g}",
            f"latency.server_server_mbps={one_of(1, 10, 100):g}",
            f"latency.server_cloud_mbps={one_of(1, 5, 50):g}",
            f"latency.client_cloud_mbps={one_of(0.5, 2.5, 10):g}",
            f"latency.client_server_ms={one_of(1, 5, 20):g}",
            f"latency.server_cloud_ms={one_of(5, 20, 80):g}",
            f"latency.client_cloud_ms={one_of(10, 40, 100):g}",
            f"latency.message_ms={one_of(0, 0.5):g}",
            f"devices.gflops={one_of(0.0005, 0.01, 1):g}",
            f"devices.spread={one_of(1, 3, 10):g}",
            f"data.classes_per_client={one_of(2, 4):g}",
        ],
    )


@dataclass(frozen=True)
class Found:
    """One network's line of the table."""

    network: str
    servers: int
    choice: str | None  # None: the planner found none
    seconds: float | None
    best: str | None  # of the whole grid
    best_seconds: float | None
    default_seconds: float | None  # of the paper's default setting; None: not reached
    candidates: int
    steps: int  # that planning cost
    whole: int  # that all candidates cost if each does all its iterations
    effort: float = 8.0  # whole runs that planning might cost; older files do not say

    @property
    def behind(self) -> float:
        """The choice's time over the best of the grid."""
        if self.best_seconds is None:
            return 1.0
        return inf if self.seconds is None else self.seconds / self.best_seconds


def compared(name: str, directory: Path, effort: float = EFFORT) -> Found:
    """The planner's choice, and the best of all candidates; what is in `directory` is not redone.

    With another effort, only the planning is done again: the best of the grid is still the best.
    """
    file = directory / f"{name.rpartition('/')[2]}.json"
    known = _kept(file)
    if known is not None and known.effort == effort:
        return known
    asked, goal = on_one_core(experiment(name)), Goal("accuracy", TARGET)
    plan = Planner(asked, Wishes(goal, effort=effort)).finished()
    best = (None, None) if known is None else (known.best, known.best_seconds)
    if known is None:
        best = _best(asked, goal, plan.winner)
    found = Found(
        network=name,
        servers=asked.network.servers,
        choice=None if plan.winner is None else plan.winner.label,
        seconds=None if plan.winner is None else plan.winner.seconds,
        best=best[0],
        best_seconds=best[1],
        default_seconds=None if plan.given is None else plan.given.seconds,
        candidates=plan.candidates,
        steps=plan.steps,
        whole=plan.candidates * plan.run_steps,
        effort=effort,
    )
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(file, (json.dumps(asdict(found)) + "\n").encode())
    return found


def _kept(file: Path) -> Found | None:
    if not file.is_file():
        return None
    try:
        return Found(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise InputError(f"{file} is damaged: remove it, and it is made again") from None


def _best(asked: Experiment, goal: Goal, winner: PlanRow | None) -> tuple[str | None, float | None]:
    """The best of all candidates, and its time. Runs end at the time when the planner's choice
    reached the goal: only faster ones matter."""
    best, seconds = (None, inf) if winner is None else (winner.label, winner.seconds or inf)
    workshop = Workshop(asked)
    try:
        for entry in workshop.entries(workshop.measured(), SCHEMES, choose_graph=False):
            if entry.candidate.label == best:
                continue
            there = _reached(workshop.open(entry, goal), goal, seconds)
            if there is not None and there < seconds:
                best, seconds = entry.candidate.label, there
    finally:
        workshop.close()
    return best, None if best is None else seconds


def _reached(pilot: Pilot, goal: Goal, until: float = inf) -> float | None:
    """When a run reaches the goal, if it does so by then."""
    pilot.advance(until)
    there = goal.first(pilot.points, goal.level)
    pilot.close()
    return None if there is None else there.seconds


def online(name: str) -> Online:
    """The scheme `adaptive` against sd-feel with each fixed period, at the given learning rate.

    Its budget is the time that the default periods take.
    """
    asked, goal = on_one_core(experiment(name)), Goal("accuracy", TARGET)
    workshop = Workshop(asked)
    try:
        given, best, label = of(workshop.prepared.experiment), inf, ""
        usual = _reached(Pilot(workshop, given, goal, every=1), goal)
        for entry in workshop.entries(workshop.measured(), ("sd-feel",), choose_graph=False):
            own = entry.candidate
            if own.learning_rate != given.learning_rate:
                continue
            there = _reached(Pilot(workshop, own, goal, every=1), goal, best)
            if there is not None and there < best:
                best, label = there, own.label
        options = () if usual is None else (("budget", usual),)
        chosen = replace(given, scheme="adaptive", options=options)
        seconds = _reached(Pilot(workshop, chosen, goal, every=1), goal)
    finally:
        workshop.close()
    if not label:
        raise InputError(f"no fixed period reached {TARGET:g} on {name}")
    return Online(name.rpartition("/")[2], given.learning_rate, seconds, label, best, usual)


def all_compared(count: int, directory: Path, effort: float = EFFORT) -> Iterator[Found]:
    """One network after another; one that cannot be planned for is reported, not passed over."""
    for name in networks(count):
        try:
            yield compared(name, directory, effort)
        except SdfeelError as error:
            raise InputError(f"{name}: {error}") from None
