"""What Ray costs beside native on one machine: python -m tests.tools.ray_speed

50 clients of 10 servers take ten steps of batch 10 with the MNIST CNN; both engines take turns.
Processor time of this process and all below it (Ray's too), by engine, and a hash of the models. On
a busy machine, say RAY_worker_niceness=0, or Ray's actors wait for everybody else.
"""

import hashlib
import os
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
from sdfeel.engine.select import Kind, choose
from sdfeel.models import zoo
from sdfeel.schemes import SDFeel
from sdfeel.sim.simulate import Simulation

CLIENTS, SERVERS, EACH, TURNS, ROUNDS = 50, 10, 100, 8, 6


def simulation(engine: Kind) -> Simulation:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * EACH, 1, 28, 28, generator=draws)
    data = Examples(x, torch.randint(10, (len(x),), generator=draws))
    parts = list(np.arange(len(x)).reshape(CLIENTS, EACH))
    module, test = zoo.build("mnist-cnn", (1, 28, 28), 10, 0), Examples(data.x[:10], data.y[:10])
    own = Workload(module, data, parts, test, Training(0.01, 10), 0, measured=test)
    home, ring = np.arange(CLIENTS) % SERVERS, graphs.linked("ring", SERVERS)
    net = clustered(np.full(CLIENTS, float(EACH)), home, ring)
    net = replace(net, weights=weights_of(metropolis, net.linked, net.mass))
    kinds = ("client-server", "server-server", "server-cloud", "client-cloud")
    cost = Cost(np.full(CLIENTS, 0.01), 1e6, dict.fromkeys(kinds, 1e6))  # type: ignore[arg-type]
    return Simulation(Decisions.of(SDFeel(tau1=10), net, cost), choose(engine, own)[0])


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


def main() -> None:
    runs = {"native": simulation("native"), "ray": simulation("ray")}
    for run in runs.values():
        list(islice(run, 2))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            begin = spent()
            list(islice(run, ROUNDS))
            found[name].append((spent() - begin) / ROUNDS)
    for name, run in runs.items():
        digest = hashlib.sha256(run.state.models.numpy().tobytes()).hexdigest()[:12]
        print(f"{name:8} {1000 * median(found[name]):6.0f} ms a round, models {digest}")
        run.engine.close()  # type: ignore[attr-defined]
    print(f"ray / native {median(found['ray']) / median(found['native']):.2f}")


if __name__ == "__main__":
    main()
