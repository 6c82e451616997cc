"""Trials of deployments: kill -9 at random moments, lying nodes, and a comparison of models."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from sdfeel.core.events import Evaluated, Event, Finished, Round
from sdfeel.deploy.local import LocalDeployment, NodeTrial
from sdfeel.deploy.replay import ARRIVALS, replay
from sdfeel.engine.attacks import SUCCESS
from sdfeel.experiment.build import prepare
from sdfeel.experiment.schema import Experiment
from sdfeel.experiment.sections import AttackSection
from sdfeel.run.drive import fingerprint
from sdfeel.run.session import drive_of

EVERY = 0.6  # seconds between two kills, on average


@dataclass(frozen=True)
class Outcome:
    """One deployed run and what was done to it."""

    label: str
    kills: dict[str, int]  # by role
    rounds: int
    seconds: float
    model_sha256: str
    replayed_sha256: str | None = None  # asynchronous: the model of the simulator's replay
    accuracy: float | None = None  # the last that was measured
    backdoor: float | None = None  # the success of the liars' backdoor, if they try one


@dataclass
class Killer:
    """Kills any process at any moment after the first round, and starts it again at once."""

    deployment: LocalDeployment
    kills: int
    draws: random.Random
    done: dict[str, int] = field(default_factory=lambda: {"edge": 0, "client": 0})
    begun: bool = False  # has a round ended? Before that, there is nothing to lose
    _next: float = 0.0

    def look(self) -> None:
        """Kill one process, if it is time."""
        spent = sum(self.done.values()) >= self.kills
        if not self.begun or spent or monotonic() < self._next:
            return
        processes = self.deployment.processes
        alive = [name for name in processes.names if processes.alive(name)]
        if alive:
            name = self.draws.choice(alive)
            processes.kill(name)
            processes.start(name)
            self.done[name.partition("-")[0]] += 1
        self._next = monotonic() + self.draws.uniform(0.2, 2 * EVERY - 0.2)


def disturbed(
    label: str,
    experiment: Experiment,
    directory: Path,
    kills: int = 0,
    seed: int = 0,
    forgetful: bool = False,
    seen: Callable[[Event], None] = lambda event: None,
) -> Outcome:
    """Deploy the experiment, kill processes while it runs, and report how it ended."""
    began = monotonic()
    deployment = LocalDeployment(experiment, directory)
    pause = kills * EVERY / max(deployment.total_rounds, 1)
    deployment.processes.trial = NodeTrial(forgetful, pause)
    killer = Killer(deployment, kills, random.Random(seed))
    deployment.every_tick(killer.look)
    last: Event | None = None
    measured: Evaluated | None = None
    for event in deployment:
        seen(event)
        measured = event if isinstance(event, Evaluated) else measured
        killer.begun = killer.begun or isinstance(event, Round)
        last = event
    assert isinstance(last, Finished), "a deployment that was not stopped ends with its model"
    seconds = monotonic() - began
    again = fingerprint(replay(directory)) if (directory / ARRIVALS).exists() else None
    assert measured is not None
    scores = measured.accuracy, measured.metrics.get(SUCCESS)
    return Outcome(label, killer.done, last.number, seconds, last.model_sha256, again, *scores)


def with_liars(experiment: Experiment, clients: int, servers: int, kind: str) -> Experiment:
    """The same experiment, in which this many clients and edge servers lie."""
    if not clients + servers:
        return experiment
    asked = experiment.attack.model_dump() | {"clients": clients, "servers": servers, "kind": kind}
    return experiment.model_copy(update={"attack": AttackSection.model_validate(asked)})


def simulated(experiment: Experiment) -> Outcome:
    """The same run in the simulator: the model that a deployment must end with."""
    began, ready = monotonic(), prepare(experiment)
    *_, measured, last = drive_of(ready, ready.simulation())
    ready.engine.close()
    assert isinstance(last, Finished)
    assert isinstance(measured, Evaluated)
    scores = measured.accuracy, measured.metrics.get(SUCCESS)
    seconds, kills = monotonic() - began, {"edge": 0, "client": 0}
    return Outcome("simulated", kills, last.number, seconds, last.model_sha256, None, *scores)


def equal(outcome: Outcome, undisturbed: Outcome) -> bool:
    """Did the kills change nothing? An asynchronous run is compared with its own replay."""
    expected = outcome.replayed_sha256 or undisturbed.model_sha256
    return outcome.model_sha256 == expected
