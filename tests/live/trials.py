"""What happens when nodes die or links are cut, with real processes, timed by the event log.

`python -m tests.live.trials` runs all; `... partition --seconds 60` one of them. Each prints what
was seen and ends with 1 if it was not as promised in docs/deploy.md.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from sdfeel.core.events import Evaluated, Event, Finished, Round, Warned
from sdfeel.live.store import Store
from sdfeel.run.deploy.files import NODE, NODES, PolicySection
from sdfeel.run.deploy.local import LocalDeployment, Trial
from sdfeel.run.experiment import Experiment, load
from sdfeel.run.session import start
from tests.live.wires import Wires

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
    deployment.processes.trial = Trial(pause=pause)
    story = Story()
    for event in deployment:
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
    """How a trial went: as promised or not, and what was seen."""

    good: bool
    lines: list[str]


def undisturbed(rounds: int, directory: Path) -> str:
    """The hash of the simulator's model."""
    (*_, last) = start(experiment(rounds), directory / "simulated")
    assert isinstance(last, Finished)
    return last.model_sha256


def records(directory: Path, server: int) -> list[dict[str, Any]]:
    """What a server that has ended remembers of its rounds."""
    store = Store(directory / NODES / f"edge-{server}" / "state")
    try:
        return store.records()
    finally:
        store.close()


def dead_edge(directory: Path, rounds: int = 50) -> Report:
    """An edge server is killed for good: its neighbour takes its clients in, and the run ends."""
    policy = PolicySection(dead_edge="drop", edge_deadline=2.0)
    deployment = LocalDeployment(experiment(rounds), directory, policy)
    story = play(deployment, Once(3, lambda: deployment.processes.lose("edge-2")), pause=0.2)
    own = [n for n in range(6) if f"client-{n} works for edge-1" in " ".join(story.told)]
    last = records(directory, 1)[-1]
    lines = [*story.told, f"last round of edge-1: clients {', '.join(last['steps'])}"]
    lines += [f"accuracy of the mean of edge-0 and edge-1: {story.accuracy:.3f}"]
    moved = bool(own) and last["guests"] == own and last["away"] == [2]
    return Report(moved and story.accuracy > 0.5, lines)


def away_for(deployment: LocalDeployment, seconds: float) -> Once:
    """Kills edge-2 after three rounds, and starts it again so many seconds later."""
    processes = deployment.processes
    act = Once(3, lambda: processes.lose("edge-2"))

    def look() -> None:
        away = act.when is not None and not processes.alive("edge-2")
        if away and time.monotonic() > (act.when or 0) + seconds:
            processes.start("edge-2")

    deployment.every_tick(look)
    return act


def returning_edge(directory: Path, seconds: float = 10.0, rounds: int = 90) -> Report:
    """The dead server comes back: its clients go home, and all are together again."""
    policy = PolicySection(dead_edge="drop", edge_deadline=2.0)
    deployment = LocalDeployment(experiment(rounds), directory, policy)
    story = play(deployment, away_for(deployment, seconds), pause=0.2)
    told = " ".join(story.told)
    last = [records(directory, d)[-1] for d in range(3)]
    together = all(not record["away"] and not record["guests"] for record in last)
    lines = [*story.told, f"last rounds {[record['k'] + 1 for record in last]}"]
    lines += [f"accuracy {story.accuracy:.3f}"]
    moved = "works for edge-1" in told and "leaves edge-1" in told and "edge-2 is back" in told
    return Report(moved and together and story.accuracy > 0.5, lines)


def awaited_edge(directory: Path, seconds: float = 8.0, rounds: int = 15) -> Report:
    """The same where servers are waited for: clients ask in vain, and the model is as it was."""
    policy = PolicySection(dead_edge="drop")
    deployment = LocalDeployment(experiment(rounds), directory / "killed", policy)
    for d in range(3):
        path = directory / "killed" / NODES / f"edge-{d}" / NODE
        path.write_text(path.read_text().replace('dead_edge = "drop"', 'dead_edge = "wait"'))
    story = play(deployment, away_for(deployment, seconds))
    logs = "".join(path.read_text() for path in (directory / "killed").glob("nodes/*/log.txt"))
    refused = logs.count("edge-1 does not take us in")
    moved = sum(
        bool(record["guests"]) for d in range(3) for record in records(directory / "killed", d)
    )
    expected = undisturbed(rounds, directory)
    model = story.finished.model_sha256
    lines = [
        f"edge-2 was away for {seconds:g} s: {refused} clients were refused, {moved} moved",
        f"model {model[:12]}, undisturbed {expected[:12]}",
    ]
    return Report(refused > 0 and moved == 0 and model == expected, lines)


def dead_client(directory: Path, deadline: float = 2.0) -> Report:
    """A client is killed for good: one round closes at the deadline, later ones do not wait."""
    policy = PolicySection(dead_client="drop", client_deadline=deadline)
    deployment = LocalDeployment(experiment(20), directory, policy)
    play(deployment, Once(3, lambda: deployment.processes.lose("client-0")))
    server = next(d for d in range(3) if any(r["missing"] for r in records(directory, d)))
    found = records(directory, server)
    first = next(n for n, record in enumerate(found) if record["missing"])
    closing = [record["compute"] + record["upload"] for record in found]
    lines = [
        f"edge-{server} went on without client-{found[first]['missing'][0]} from round {first + 1}",
        f"that round was closed after {closing[first]:.2f} s, the deadline was {deadline:g} s",
        f"the slowest one after it took {max(closing[first + 1 :]):.2f} s",
    ]
    good = closing[first] < deadline + 1 and max(closing[first + 1 :]) < deadline
    return Report(good, lines)


@dataclass
class Scissors:
    """Cuts a server off from the others in some round, for some seconds."""

    wires: Wires
    server: int
    seconds: float
    begun: bool = False
    cut: float | None = None  # when, by the clock of the records
    mended: float | None = None

    def act(self, event: Event) -> None:
        self.begun = self.begun or (isinstance(event, Round) and event.number >= 4)

    def look(self) -> None:
        now = time.time()
        if self.begun and self.cut is None:
            self.wires.isolate(self.server)
            self.cut = now
        elif self.cut is not None and self.mended is None and now >= self.cut + self.seconds:
            self.wires.mend()
            self.mended = now


def partition(
    directory: Path, seconds: float, policy: PolicySection, rounds: int
) -> tuple[Story, Scissors]:
    """One server is cut off from the others for some time, while all go on running."""
    deployment = LocalDeployment(experiment(rounds), directory, policy)
    wires = Wires(directory, 3)
    scissors = Scissors(wires, 2, seconds)
    deployment.every_tick(scissors.look)
    try:
        return play(deployment, scissors.act, pause=0.1), scissors
    finally:
        wires.close()


def healed(directory: Path, mended: float) -> float:
    """Seconds from the mending of the links until every server has all others again."""
    latest = 0.0
    for server in range(3):
        found = records(directory, server)
        assert [r["k"] for r in found] == sorted({r["k"] for r in found}), "split round numbers"
        alone = [n for n, record in enumerate(found) if record["away"] or record["ended"] < mended]
        together = found[alone[-1] + 1 :]
        latest = max(latest, together[0]["ended"] - mended if together else inf)
    return latest


def waiting_partition(directory: Path, seconds: float, rounds: int = 20) -> Report:
    """Both sides wait, and the model is the undisturbed one."""
    story, scissors = partition(directory / "cut", seconds, PolicySection(), rounds)
    assert scissors.mended is not None
    assert scissors.cut is not None
    expected = undisturbed(rounds, directory)
    ends = sorted(r["ended"] for d in range(3) for r in records(directory / "cut", d))
    held = sum(scissors.cut + 1 < end < scissors.mended for end in ends)
    after = next(end for end in ends if end > scissors.mended) - scissors.mended
    model = story.finished.model_sha256
    lines = [
        f"cut for {seconds:g} s: {held} rounds ended meanwhile, the next {after:.2f} s after",
        f"model {model[:12]}, undisturbed {expected[:12]}",
    ]
    return Report(model == expected and held <= 3 and after < 10, lines)


def dropping_partition(directory: Path, seconds: float, rounds: int) -> Report:
    """Both sides go on without each other, and join again."""
    policy = PolicySection(dead_edge="drop", edge_deadline=1.0)
    story, scissors = partition(directory, seconds, policy, rounds)
    assert scissors.mended is not None
    alone = [sum(bool(r["away"]) for r in records(directory, d)) for d in range(3)]
    last = [records(directory, d)[-1]["k"] for d in range(3)]
    after = healed(directory, scissors.mended)
    lines = [
        f"cut for {seconds:g} s: rounds without a neighbour at each server: {alone}",
        f"all together again {after:.2f} s after the links were mended, last rounds {last}",
        f"accuracy {story.accuracy:.3f}",
    ]
    together = len(set(last)) == 1 and min(alone[1:]) > 1
    return Report(together and after < 10 and story.accuracy > 0.5, lines)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("which", nargs="*", help="names of trials (default: all)")
    options.add_argument("--seconds", type=float, default=60.0, help="of the partition")
    chosen = options.parse_args()
    trials: dict[str, Callable[[Path], Report]] = {
        "dead-client": dead_client,
        "dead-edge": dead_edge,
        "returning-edge": returning_edge,
        "awaited-edge": awaited_edge,
        "partition": lambda path: waiting_partition(path, chosen.seconds),
        "partition-drop": lambda path: dropping_partition(
            path, chosen.seconds, int(10 * (chosen.seconds + 10))
        ),
    }
    good = True
    for name in chosen.which or trials:
        directory = Path(tempfile.mkdtemp(prefix="trial-"))
        try:
            report = trials[name](directory / "run")
        finally:
            shutil.rmtree(directory)
        good = good and report.good
        print(f"{name}: {'as promised' if report.good else 'NOT AS PROMISED'}")
        print("".join(f"  {line}\n" for line in report.lines), end="", flush=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
