"""What Ray costs compared with native on one machine, and what a second node brings.

python -m tests.tools.ray_speed            processor time of Ray and of native
python -m tests.tools.ray_speed --nodes    examples a second with one node, and with two

50 clients of 10 servers take ten steps of batch 10 with the MNIST CNN; engines take turns, and end
with the same models, whose hash is printed. Processor time is that of this process and all below
it, Ray's included. The nodes have one CPU each, and talk by the loopback address.
"""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import torch

from sdfeel.core import graphs
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.gossip_weights import metropolis, weights_of
from sdfeel.core.network import clustered
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Training, Workload
from sdfeel.engine.ray import pool
from sdfeel.engine.select import Kind, choose
from sdfeel.models import zoo
from sdfeel.schemes import SDFeel
from sdfeel.sim.simulate import Simulation

CLIENTS, SERVERS, EACH, TURNS, ROUNDS = 50, 10, 100, 8, 6


def simulation(engine: Kind, workers: int | None = None) -> Simulation:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * EACH, 1, 28, 28, generator=draws)
    data = Examples(x, torch.randint(10, (len(x),), generator=draws))
    parts = list(np.arange(len(x)).reshape(CLIENTS, EACH))
    module, test = zoo.build("mnist-cnn", (1, 28, 28), 10, 0), Examples(data.x[:10], data.y[:10])
    own = Workload(module, data, parts, test, Training(0.01, 10), 0, measured=test)
    home, ring = (
        np.arange(CLIENTS) % SERVERS,
        graphs.linked("ring" if SERVERS > 2 else "complete", SERVERS),
    )
    net = clustered(np.full(CLIENTS, float(EACH)), home, ring)
    net = replace(net, weights=weights_of(metropolis, net.linked, net.mass))
    kinds = ("client-server", "server-server", "server-cloud", "client-cloud")
    cost = Cost(np.full(CLIENTS, 0.01), 1e6, dict.fromkeys(kinds, 1e6))  # type: ignore[arg-type]
    return Simulation(Decisions.of(SDFeel(tau1=10), net, cost), choose(engine, own, workers)[0])


def spent() -> float:
    """Processor seconds of this process and all below it."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        number = int(path.parent.name)
        parents[number], ticks[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = {os.getpid()}
    while more := {n for n, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks.get(n, 0) for n in ours) / os.sysconf("SC_CLK_TCK")


def cost(as_json: bool) -> None:
    runs = {"native": simulation("native"), "ray": simulation("ray")}
    found = in_turn(runs, spent)
    if as_json:
        print(json.dumps([{"way": name, "cpu": seconds} for name, seconds in found.items()]))
    else:
        for name, seconds in found.items():
            print(f"{name:8} {1000 * seconds:6.0f} ms a round, models {digest(runs[name])}")
        print(f"ray / native {found['ray'] / found['native']:.2f}")
    for run in runs.values():
        run.engine.close()  # type: ignore[attr-defined]


def scaling(as_json: bool) -> None:
    pool.load()
    from ray.cluster_utils import Cluster  # type: ignore[import-not-found,unused-ignore]

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    os.environ["RAY_ADDRESS"] = nodes.address
    runs = {
        "native, one thread": simulation("native", 1),
        "one node": simulation("ray", 1),
        "two nodes": simulation("ray", 2),
    }
    found = {name: CLIENTS * 10 * 10 / s for name, s in in_turn(runs, time.perf_counter).items()}
    if as_json:
        print(json.dumps([{"way": name, "speed": speed} for name, speed in found.items()]))
    else:
        for name, speed in found.items():
            print(f"{name:18} {speed:7.0f} examples a second, models {digest(runs[name])}")
        print(f"two nodes / one node {found['two nodes'] / found['one node']:.2f}")
    for run in runs.values():
        run.engine.close()  # type: ignore[attr-defined]
    nodes.shutdown()  # type: ignore[no-untyped-call,unused-ignore]


def in_turn(runs: dict[str, Simulation], clock: Callable[[], float]) -> dict[str, float]:
    """What a round takes, the median of several turns."""
    for run in runs.values():
        list(islice(run, 2))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            begin = clock()
            list(islice(run, ROUNDS))
            found[name].append((clock() - begin) / ROUNDS)
    return {name: median(each) for name, each in found.items()}


def digest(run: Simulation) -> str:
    return hashlib.sha256(run.state.models.numpy().tobytes()).hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", action="store_true", help="time one node and two")
    parser.add_argument("--json", action="store_true", help="print a document")
    options = parser.parse_args()
    scaling(options.json) if options.nodes else cost(options.json)


if __name__ == "__main__":
    main()
