"""The planner on networks that exist: its choice against every other candidate.

The networks are those of the Topology Zoo with 6 to 14 servers, evenly spaced in their alphabetical
order. Kilometres are the network's own. What the Zoo does not know is drawn for each network, by
the rule in `experiment`. Times are virtual, so the figures do not depend on the machine.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path

import numpy as np

from sdfeel.core.errors import InputError, SdfeelError
from sdfeel.core.network import unreached
from sdfeel.core.run_files import write_atomic
from sdfeel.experiment.loading import load
from sdfeel.experiment.real_networks import catalogue, topohub
from sdfeel.experiment.schema import Experiment
from sdfeel.planning.candidates import SCHEMES
from sdfeel.planning.goal import Goal
from sdfeel.planning.pilots import Workshop
from sdfeel.planning.planner import Planner, Wishes
from sdfeel.run.many import on_one_core

SERVERS = range(6, 15)
TARGET = 0.8  # accuracy
NEAR, SHARE, CHEAP = 1.05, 0.9, 0.1  # the goals: how near, on which share, at which part of a grid


def networks(count: int) -> list[str]:
    """So many networks of the Topology Zoo, always the same."""
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

    @property
    def behind(self) -> float:
        """The choice's time over the best of the grid."""
        if self.best_seconds is None:
            return 1.0
        return inf if self.seconds is None else self.seconds / self.best_seconds


def compared(name: str, directory: Path) -> Found:
    """The planner's choice, and the best of all candidates; what is in `directory` is not redone.

    Candidates that are slower than the planner's choice are stopped at its time: only what is
    faster matters.
    """
    file = directory / f"{name.rpartition('/')[2]}.json"
    if file.is_file():
        try:
            return Found(**json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise InputError(f"{file} is damaged: remove it, and it is made again") from None
    asked = on_one_core(experiment(name))
    plan = Planner(asked, Wishes(Goal("accuracy", TARGET))).finished()
    winner = plan.winner
    best, seconds = (None, inf) if winner is None else (winner.label, winner.seconds or inf)
    chosen = None if winner is None else winner.seconds
    workshop = Workshop(asked)
    try:
        entries = workshop.entries(workshop.measured(), SCHEMES, choose_graph=False)
        goal = Goal("accuracy", TARGET)
        for entry in entries:
            if winner is not None and entry.candidate.label == winner.label:
                continue
            pilot = workshop.open(entry, goal)
            pilot.advance(seconds)
            there = goal.first(pilot.points, goal.level)
            pilot.close()
            if there is not None and there.seconds < seconds:
                best, seconds = entry.candidate.label, there.seconds
    finally:
        workshop.close()
    found = Found(
        network=name,
        servers=workshop.base.network.servers,
        choice=None if winner is None else winner.label,
        seconds=chosen,
        best=best,
        best_seconds=None if best is None else seconds,
        default_seconds=None if plan.given is None else plan.given.seconds,
        candidates=len(entries),
        steps=plan.steps,
        whole=len(entries) * plan.run_steps,
    )
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(file, (json.dumps(asdict(found)) + "\n").encode())
    return found


def all_compared(count: int, directory: Path) -> Iterator[Found]:
    """One network after another; a network that cannot be planned for is told, not passed over."""
    for name in networks(count):
        try:
            yield compared(name, directory)
        except SdfeelError as error:
            raise InputError(f"{name}: {error}") from None
