"""Asynchronous and synchronous rounds, in turns: python -m tests.tools.async_speed

The same clients train the MNIST CNN, five steps of ten examples (asynchronous clusters: until a
deadline). Samples are counted by the second and by the processor second of all threads, and the
ratios are those within each turn: the machine may be busy.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, process_time

import numpy as np

from sdfeel.bench.engines import drawn
from sdfeel.core import graphs
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.network import clustered
from sdfeel.core.scheme import Scheme
from sdfeel.engine.base import Training, Workload, cores
from sdfeel.engine.select import choose
from sdfeel.models import zoo
from sdfeel.schemes import AsyncSDFeel, FedAsync, FedBuff, FedSA, Safa, SDFeel
from sdfeel.sim.simulate import Simulation

CLIENTS, SERVERS, EACH, BATCH = 50, 10, 300, 10
SHAPE = (1, 28, 28)
SCHEMES: dict[str, Scheme] = {
    "sd-feel": SDFeel(tau1=5, tau2=1, alpha=1),
    "async-sd-feel": AsyncSDFeel(theta_min=3),
    "fedasync": FedAsync(tau1=5),
    "fedbuff": FedBuff(tau1=5),
    "fedsa": FedSA(tau1=5),
    "safa": Safa(tau1=5),
}


@dataclass(frozen=True)
class Turn:
    """Samples by the second, by the processor second, and rounds by the second."""

    samples: float
    per_cpu: float
    rounds: float


@dataclass(frozen=True)
class Row:
    """A scheme's medians, and its ratios to sd-feel by the second and by the processor second."""

    scheme: str
    samples: float
    per_cpu: float
    rounds: float
    of_sd_feel: float
    by_cpu: float


def simulations(threads: int) -> dict[str, Simulation]:
    """One of each scheme, by one engine."""
    data = drawn(CLIENTS * EACH, SHAPE)
    parts = np.array_split(np.arange(len(data)), CLIENTS)
    module = zoo.build("mnist-cnn", SHAPE, 10, 0)
    engine, _ = choose(
        "native", Workload(module, data, parts, data, Training(0.01, BATCH), 0), threads
    )
    home = np.repeat(np.arange(SERVERS), CLIENTS // SERVERS)
    net = clustered(np.full(CLIENTS, float(EACH)), home, graphs.links("ring", SERVERS))
    speeds = 0.01 * np.random.default_rng(0).uniform(1, 4, CLIENTS)
    kinds = ("client-server", "server-server", "server-cloud", "client-cloud")
    cost = Cost(speeds, 7e5, dict.fromkeys(kinds, 1e6))  # type: ignore[arg-type]
    return {
        name: Simulation(Decisions.of(scheme, net, cost), engine)
        for name, scheme in SCHEMES.items()
    }


def turn(run: Simulation, seconds: float) -> Turn:
    """How fast a simulation goes for a while."""
    before, wall, cpu, rounds = int(run.state.taken.sum()), perf_counter(), process_time(), 0
    while perf_counter() - wall < seconds:
        next(run)
        rounds += 1
    passed, samples = perf_counter() - wall, (int(run.state.taken.sum()) - before) * BATCH
    return Turn(samples / passed, samples / (process_time() - cpu), rounds / passed)


def main() -> None:
    parser = argparse.ArgumentParser(description="asynchronous rounds beside synchronous ones")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--json", action="store_true", help="print a document")
    options = parser.parse_args()
    runs = simulations(options.threads)
    found: dict[str, list[Turn]] = {name: [] for name in runs}
    for run in runs.values():
        next(run)
    for _ in range(options.turns):
        for name, run in runs.items():
            found[name].append(turn(run, options.seconds))
    rows = [summed(name, turns, found["sd-feel"]) for name, turns in found.items()]
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(f"{'':14} samples/s  per CPU s  rounds/s  of sd-feel  by CPU")
    for row in rows:
        print(
            f"{row.scheme:14} {row.samples:9,.0f}  {row.per_cpu:9,.0f}  {row.rounds:8,.0f}  "
            f"{row.of_sd_feel:10.2f}  {row.by_cpu:6.2f}"
        )


def summed(name: str, turns: list[Turn], reference: list[Turn]) -> Row:
    """Medians, and those of the ratios within each turn."""
    pairs = list(zip(turns, reference, strict=True))
    return Row(
        name,
        median(t.samples for t in turns),
        median(t.per_cpu for t in turns),
        median(t.rounds for t in turns),
        median(a.samples / b.samples for a, b in pairs),
        median(a.per_cpu / b.per_cpu for a, b in pairs),
    )


if __name__ == "__main__":
    main()
