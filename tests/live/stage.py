"""A small deployment of real processes for trials, and what was seen of it."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdfeel.core.events import Evaluated, Event, Finished, Round, Warned
from sdfeel.core.run_files import NODES
from sdfeel.deploy.local import LocalDeployment, NodeTrial
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.live.store import Store
from sdfeel.run.session import start

SETTINGS = [
    "network.clients=6",
    "network.servers=3",
    "network.graph=path",
    "data.classes_per_client=5",
    "model.name=logistic",
    "training.engine=loop",
    "evaluation.every=10",
]
PAUSE = 0.05  # seconds that clients wait in every round, so that rounds can be told apart


def experiment(rounds: int, *more: str) -> Experiment:
    return load(None, [*SETTINGS, f"training.iterations={5 * rounds}", *more])


@dataclass
class Story:
    """The events of a deployment, each with the second at which it was seen."""

    events: list[tuple[float, Event]] = field(default_factory=list)

    def of(self, kind: type[Event]) -> list[tuple[float, Event]]:
        return [(when, event) for when, event in self.events if isinstance(event, kind)]

    @property
    def told(self) -> list[str]:
        return [event.message for _, event in self.events if isinstance(event, Warned)]

    @property
    def finished(self) -> Finished:
        last = self.events[-1][1]
        assert isinstance(last, Finished)
        return last

    @property
    def accuracy(self) -> float:
        (*_, last) = [event for _, event in self.events if isinstance(event, Evaluated)]
        assert last.accuracy is not None
        return last.accuracy


def play(
    deployment: LocalDeployment,
    act: Callable[[Event], None],
    pause: float = PAUSE,
) -> Story:
    """Run to the end; `act` sees every event as it happens."""
    deployment.processes.trial = NodeTrial(pause=pause)
    story = Story()
    with closing(iter(deployment)) as events:  # the processes end, whatever `act` does
        for event in events:
            story.events.append((time.monotonic(), event))
            act(event)
    return story


@dataclass
class Once:
    """Does something when a round is reached, and remembers when."""

    number: int
    deed: Callable[[], None]
    when: float | None = None

    def __call__(self, event: Event) -> None:
        if self.when is None and isinstance(event, Round) and event.number >= self.number:
            self.when = time.monotonic()
            self.deed()


@dataclass(frozen=True)
class Report:
    """The outcome of a trial: whether it went as promised, and what was seen."""

    good: bool
    lines: list[str]


def undisturbed(rounds: int, directory: Path) -> str:
    """The hash of the simulator's model."""
    (*_, last) = start(experiment(rounds), directory / "simulated")
    assert isinstance(last, Finished)
    return last.model_sha256


def records(directory: Path, server: int) -> list[dict[str, Any]]:
    """The records of a server that has ended."""
    store = Store(directory / NODES / f"edge-{server}" / "state")
    try:
        return store.records()
    finally:
        store.close()
