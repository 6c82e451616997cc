"""A server is cut off from the others for some time, while all processes keep running."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import dropwhile
from math import inf
from pathlib import Path

from sdfeel.core.events import Event, Round, Warned
from sdfeel.core.run_files import NODES
from sdfeel.deploy.files import PolicySection
from sdfeel.deploy.local import LocalDeployment
from sdfeel.run.store import read_events
from tests.live.stage import Report, Story, experiment, play, records, undisturbed
from tests.live.wires import Wires


@dataclass
class Scissors:
    """Cuts a server off in some round, for some seconds, and until the cut has had an effect."""

    wires: Wires
    server: int
    seconds: float
    shown: Callable[[], bool]
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
        elif (
            self.cut is not None
            and self.mended is None
            and now >= self.cut + self.seconds
            and self.shown()
        ):
            self.wires.mend()
            self.mended = time.time()


def partition(
    directory: Path,
    seconds: float,
    policy: PolicySection,
    rounds: int,
    shown: Callable[[], bool] = lambda: True,
) -> tuple[Story, Scissors]:
    """One server is cut off from the others for some time, while all keep running."""
    deployment = LocalDeployment(experiment(rounds), directory, policy)
    wires = Wires(directory, 3)
    scissors = Scissors(wires, 2, seconds, shown)
    deployment.every_tick(scissors.look)
    try:
        return play(deployment, scissors.act, pause=0.1), scissors
    finally:
        wires.close()


def healed(directory: Path, mended: float) -> float:
    """Seconds from the mending of the links until every server has had a round with all others.

    A server that is given up again much later, because a busy machine let a deadline pass, is
    another story.
    """
    latest = 0.0
    for server in range(3):
        found = records(directory, server)
        assert [r["k"] for r in found] == sorted({r["k"] for r in found}), "split round numbers"
        together = [r["ended"] for r in found if r["ended"] > mended and not r["away"]]
        latest = max(latest, together[0] - mended if together else inf)
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
    return Report(model == expected and held <= 3 and after < 60, lines)


def _rounds_alone(directory: Path, server: int) -> int:
    """The rounds in a running server's journal since it first gave another one up."""
    events = read_events(directory / NODES / f"edge-{server}")
    alone = dropwhile(
        lambda e: not isinstance(e, Warned) or "without edge-" not in e.message, events
    )
    return sum(isinstance(event, Round) for event in alone)


def dropping_partition(directory: Path, seconds: float, rounds: int) -> Report:
    """Both sides continue without each other, and join again.

    The deadline is one that a busy machine keeps; the cut lasts until both sides have gone on.
    """
    policy = PolicySection(dead_edge="drop", edge_deadline=5.0)

    def apart() -> bool:
        return min(_rounds_alone(directory, server) for server in (1, 2)) > 1

    story, scissors = partition(directory, seconds, policy, rounds, apart)
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
    return Report(together and after < 60 and story.accuracy > 0.5, lines)
