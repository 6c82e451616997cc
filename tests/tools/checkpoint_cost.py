"""What a checkpoint costs: python -m tests.tools.checkpoint_cost

Runs with the MNIST CNN's 21,840 parameters in which nobody trains, a checkpoint every few rounds.
By scheme: bytes and processor time of the first checkpoint, which is a whole one, and of a later
one (the median); and what is on disk at the end.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdfeel.core import graphs
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.gossip_weights import metropolis, weights_of
from sdfeel.core.network import clustered
from sdfeel.engine.base import Scores, Task
from sdfeel.run.checkpoint import Checkpoints
from sdfeel.schemes import SCHEMES
from sdfeel.sim.simulate import Simulation

PARAMETERS = 21_840


@dataclass(frozen=True)
class Job:
    """A network, the rounds before the first checkpoint, and those between two."""

    scheme: str
    clients: int
    servers: int
    before: int
    between: int
    options: dict[str, Any]


JOBS = (
    Job("fedasync", 1000, 1, 1000, 10, {"tau1": 1}),
    Job("fedasync", 10_000, 1, 10_000, 10, {"tau1": 1}),
    Job("async-sd-feel", 10_000, 1000, 1000, 10, {"theta_min": 1}),
    Job("scaffold", 10_000, 1, 200, 1, {"tau1": 1, "participants": 100}),
    Job("sd-feel", 50, 10, 5, 1, {"tau1": 1}),
)
TIMES = 20  # checkpoints after the first


class Idle:
    """An engine whose clients only leave a mark."""

    name = "idle"

    def initial(self) -> Tensor:
        return torch.linspace(-1, 1, PARAMETERS)

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        return (task.start + 0.001 * (task.client + 1) for task in tasks)

    def evaluate(self, model: Tensor) -> Scores:
        return Scores(0.0, 0.0, None)


def simulation(job: Job) -> Simulation:
    home = np.arange(job.clients) % job.servers
    net = clustered(np.full(job.clients, 10.0), home, graphs.linked("ring", job.servers))
    net = replace(net, weights=weights_of(metropolis, net.linked, net.mass))
    kinds = ("client-server", "server-server", "server-cloud", "client-cloud")
    speeds = 0.01 * (1 + np.arange(job.clients) % 7)
    cost = Cost(speeds, 32.0 * PARAMETERS, dict.fromkeys(kinds, 1e6))  # type: ignore[arg-type]
    return Simulation(Decisions.of(SCHEMES[job.scheme](**job.options), net, cost), Idle())


def sizes(directory: Path) -> dict[int, int]:
    """Bytes of each file, by its inode: a file that is replaced is another one."""
    found = [path.stat() for path in directory.iterdir()]
    return {each.st_ino: each.st_size for each in found}


def checkpoint(writer: Checkpoints, run: Simulation, directory: Path) -> tuple[float, float]:
    """Megabytes that it writes, and milliseconds."""
    before, begin = sizes(directory), process_time()
    writer.save(run.state, {})
    ended, after = process_time(), sizes(directory)
    return sum(n - before.get(i, 0) for i, n in after.items()) / 1e6, 1000 * (ended - begin)


@dataclass(frozen=True)
class Row:
    """A job's first checkpoint, a later one, and what is on disk at the end."""

    scheme: str
    clients: int
    servers: int
    whole_megabytes: float
    whole_milliseconds: float
    later_megabytes: float
    later_milliseconds: float
    kept_megabytes: float


def measured(job: Job) -> Row:
    """What the checkpoints of a job cost."""
    run = simulation(job)
    for _ in islice(run, job.before):
        pass
    with TemporaryDirectory() as name:
        directory = Path(name)
        writer = Checkpoints(directory)
        whole, later = checkpoint(writer, run, directory), list[tuple[float, float]]()
        for _ in range(TIMES):
            for _ in islice(run, job.between):
                pass
            later.append(checkpoint(writer, run, directory))
        megabytes, milliseconds = (median(each) for each in zip(*later, strict=True))
        kept = sum(sizes(directory).values()) / 1e6
    return Row(job.scheme, job.clients, job.servers, *whole, megabytes, milliseconds, kept)


def main() -> None:
    parser = argparse.ArgumentParser(description="what a checkpoint costs")
    parser.add_argument("--json", action="store_true", help="print a document")
    if parser.parse_args().json:
        print(json.dumps([asdict(measured(job)) for job in JOBS]))
        return
    print("scheme           clients  whole, MB     ms   later, MB     ms   on disk, MB")
    for row in map(measured, JOBS):
        print(
            f"{row.scheme:15} {row.clients:8,} {row.whole_megabytes:10.2f} "
            f"{row.whole_milliseconds:6.0f} {row.later_megabytes:11.3f} "
            f"{row.later_milliseconds:6.1f} {row.kept_megabytes:13.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
