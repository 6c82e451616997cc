"""How long rounds of deployed runs took, and how long the simulator expects them to take.

The deployment's log is read, and the simulator computes the times of the same rounds. Nothing is
trained, as a round's time does not depend on its models.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, median

import torch
from torch import Tensor

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.events import Round, Started
from sdfeel.core.run_files import EXPERIMENT, NETWORK, NODE, NODES
from sdfeel.deploy.files import digest_of, read_network, read_node
from sdfeel.deploy.node import decisions_of
from sdfeel.engine.base import Scores, Task
from sdfeel.experiment.build_network import with_peers
from sdfeel.experiment.loading import load
from sdfeel.run import store
from sdfeel.sim.simulate import Simulation

PHASES = ("compute", "upload", "mix")
FEWEST = 4  # rounds that are needed besides each lane's first


class Idle:
    """An engine that trains nothing, for the clock alone: each client returns its start."""

    name = "idle"

    def __init__(self, model: Tensor) -> None:
        self._model = model

    def initial(self) -> Tensor:
        return self._model

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        return (task.start for task in tasks)

    def evaluate(self, model: Tensor) -> Scores:
        return Scores(0.0, 0.0, None)


@dataclass(frozen=True)
class RoundTimes:
    """The seconds of a steady round and its phases, and the extra seconds of the first round."""

    seconds: float
    phases: Mapping[str, float]
    first: float
    bytes: int  # of all rounds


@dataclass(frozen=True, eq=False)
class DeployedRun:
    """One deployed run, from its log."""

    directory: Path
    scheme: str
    digest: str  # of what nodes agree on: runs with the same are repetitions of one another
    rounds: tuple[Round, ...]
    decisions: Decisions
    nodes: int
    local: bool  # did all nodes run on one machine?

    @cached_property
    def steady(self) -> RoundTimes:
        return pace(self.rounds, len(self.decisions.lanes), simulated(self.decisions, self.count))

    @property
    def count(self) -> int:
        return len(self.rounds)


def read(directory: Path) -> DeployedRun:
    """Read a deployed run; InputError if the directory is something else."""
    missing = [name for name in (NETWORK, EXPERIMENT) if not (directory / name).is_file()]
    if missing:
        raise InputError(
            f"{directory} has no {' and no '.join(missing)}, so it is not a deployed run: give "
            f"directories of `sdfeel deploy local` or `sdfeel deploy follow`"
        )
    events = list(store.read_events(directory))
    started = next((each for each in events if isinstance(each, Started)), None)
    if started is None or started.clock != "real":
        raise InputError(f"{directory} has no log of a deployment: follow it while it runs")
    rounds = tuple(each for each in events if isinstance(each, Round))
    decisions = deployed_decisions(directory)
    if len(rounds) < len(decisions.lanes) + FEWEST:
        raise InputError(
            f"{directory} has {len(rounds)} rounds, too few to compare: at least "
            f"{len(decisions.lanes) + FEWEST} are needed"
        )
    digest = digest_of(directory / EXPERIMENT, directory / NETWORK)
    count = len(decisions.net.servers) + len(decisions.net.clients)
    return DeployedRun(
        directory, started.scheme, digest, rounds, decisions, count, _on_one_machine(directory)
    )


def deployed_decisions(directory: Path) -> Decisions:
    """The experiment's decisions as every node makes them."""
    experiment = load(directory / EXPERIMENT)
    net, cost, _, _ = read_network(directory / NETWORK)
    return decisions_of(experiment, with_peers(experiment, net), cost)


def _on_one_machine(directory: Path) -> bool:
    homes = sorted((directory / NODES).glob("*"))
    peers = [peer for home in homes for peer in read_node(home / NODE).peers.values()]
    return bool(peers) and all(peer.startswith(("127.", "localhost", "[::1]")) for peer in peers)


def deployed_prices(cost: Cost) -> Cost:
    """The costs with what every deployment does: clients download models over their own links,
    nodes ask for models, and asynchronous servers wait for one another."""
    return replace(cost, downlink=True, calls=True, holds=True)


def simulated(decisions: Decisions, count: int) -> list[Round]:
    """The first rounds on the simulator's clock."""
    return list(islice(Simulation(decisions, Idle(torch.zeros(1))), count))


def pace(rounds: Sequence[Round], lanes: int, expected: Sequence[Round]) -> RoundTimes:
    """The times of steady rounds, without each lane's first, in which nodes connect.

    Rounds that should take equally long, by the simulator, are represented by their median, which
    a busy moment of the machine does not change.
    """
    laps = [after.seconds - before.seconds for before, after in pairwise(rounds)]
    alike = [round(after.seconds - before.seconds, 6) for before, after in pairwise(expected)]
    steady = range(lanes, len(rounds))
    groups: dict[float, list[float]] = {}
    for n in steady:
        groups.setdefault(alike[n - 1] if lanes == 1 else n, []).append(laps[n - 1])
    seconds = sum(len(each) * median(each) for each in groups.values()) / len(steady)
    phases = {
        name: fmean(rounds[n].phases[name] for n in steady)
        if lanes > 1
        else _typical([rounds[n].phases[name] for n in steady], [alike[n - 1] for n in steady])
        for name in PHASES
    }
    first = rounds[0].seconds - seconds if lanes == 1 else 0.0
    return RoundTimes(seconds, phases, first, rounds[-1].bytes)


def _typical(values: Sequence[float], kinds: Sequence[float]) -> float:
    """The mean of the kinds' medians, each as often as it occurs."""
    groups: dict[float, list[float]] = {}
    for value, kind in zip(values, kinds, strict=True):
        groups.setdefault(kind, []).append(value)
    return sum(len(each) * median(each) for each in groups.values()) / len(values)


@dataclass(frozen=True, eq=False)
class Configuration:
    """One experiment, deployed once or several times."""

    name: str
    runs: tuple[DeployedRun, ...]

    @property
    def scheme(self) -> str:
        return self.runs[0].scheme

    @cached_property
    def decisions(self) -> Decisions:
        found = self.runs[0].decisions
        return replace(found, cost=deployed_prices(found.cost))

    @cached_property
    def measured(self) -> RoundTimes:
        paces = [run.steady for run in self.runs]
        phases = {name: median(each.phases[name] for each in paces) for name in PHASES}
        first, sent = median(each.first for each in paces), int(median(p.bytes for p in paces))
        return RoundTimes(median(each.seconds for each in paces), phases, first, sent)

    @cached_property
    def spread(self) -> float:
        """The range of the repetitions' times, relative to their median."""
        found = [run.steady.seconds for run in self.runs]
        return (max(found) - min(found)) / self.measured.seconds

    def predicted(self, cost: Cost | None = None) -> RoundTimes:
        """The same rounds on the simulator's clock."""
        decisions = self.decisions
        decisions = decisions if cost is None else replace(decisions, cost=cost)
        rounds = simulated(decisions, min(run.count for run in self.runs))
        return pace(rounds, len(decisions.lanes), rounds)


def configurations(runs: Sequence[DeployedRun]) -> list[Configuration]:
    """Configurations: runs of the same experiment, grouped."""
    groups: dict[str, list[DeployedRun]] = {}
    for run in runs:
        groups.setdefault(run.digest, []).append(run)
    names = [_name(group[0].directory.resolve()) for group in groups.values()]
    unique = len(set(names)) == len(names)
    return [
        Configuration(name if unique else str(group[0].directory), tuple(group))
        for name, group in zip(names, groups.values(), strict=True)
    ]


def _name(directory: Path) -> str:
    """A directory's name; where that is only a number, that of the directory it is in."""
    return directory.parent.name if directory.name.isdecimal() else directory.name
