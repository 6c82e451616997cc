"""How time and memory grow with clients, servers and rounds: each point in a process of its own."""

import json
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from time import process_time

import numpy as np
import torch

from sdfeel.core import graphs
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import SdfeelError
from sdfeel.core.gossip_weights import metropolis, weights_of
from sdfeel.core.network import clustered
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Training, Workload
from sdfeel.engine.select import choose
from sdfeel.models import zoo
from sdfeel.schemes import SCHEMES
from sdfeel.schemes.sampling import Sampling, sampled
from sdfeel.sim.simulate import Simulation

FEATURES, CLASSES, EXAMPLES = 64, 10, 10  # a small logistic model, and the examples of a client
POOL = 1_000_000  # examples in all, at most; where clients have more, they share them
PATIENCE = 900.0  # seconds of one point
# Rounds that are as short as the scheme can make them; where it draws clients, 100 of them.
DRAWN = {"tau1": 1, "participants": 100}
SHORTEST = {
    "sd-feel": {"tau1": 1},
    "async-sd-feel": {"theta_min": 1},
    "fedasync": {"tau1": 1},
    "fedavg": DRAWN,
    "scaffold": DRAWN,
    "feddyn": DRAWN,
}


@dataclass(frozen=True)
class Point:
    """A network, and how long it is run: one pass over every client's examples a round."""

    clients: int
    servers: int
    rounds: int
    scheme: str = "sd-feel"
    graph: str = "ring"
    share: float = 1.0  # of each cluster that is drawn for a round


@dataclass(frozen=True)
class Grown:
    """What a point took, in processor seconds of all cores."""

    clients: int
    servers: int
    rounds: int
    scheme: str
    prepare: float  # seconds until the first round
    round: float  # seconds of one round of all lanes, or of one asynchronous event
    megabytes: float  # at most, of the whole process
    graph: str = "ring"
    share: float = 1.0


def measured(point: Point) -> Grown:
    """A point in a new process: only there, the memory is its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sdfeel.bench.scale", json.dumps(asdict(point))],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise SdfeelError(f"{point} took more than {PATIENCE:.0f} seconds: leave it out") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SdfeelError(f"{point} failed: {last}")
    return Grown(**json.loads(done.stdout))


def grown(point: Point) -> Grown:
    """What a point takes, in this process."""
    begin = process_time()
    simulation = prepared(point)
    ready = process_time()
    for _ in range(point.rounds):
        next(simulation)
    ended = process_time()
    return Grown(
        point.clients,
        point.servers,
        point.rounds,
        point.scheme,
        ready - begin,
        (ended - ready) / point.rounds,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        point.graph,
        point.share,
    )


def prepared(point: Point) -> Simulation:
    """The simulation of a point, before its first round."""
    draws = torch.Generator().manual_seed(0)
    count = point.clients * EXAMPLES
    x = torch.randn(min(count, POOL), FEATURES, generator=draws)
    data = Examples(x, torch.randint(CLASSES, (len(x),), generator=draws))
    parts = list((np.arange(count) % len(x)).reshape(point.clients, EXAMPLES))
    test = Examples(data.x[:10], data.y[:10])
    module = zoo.build("logistic", (FEATURES,), CLASSES, 0)
    training = Training(0.01, EXAMPLES)
    engine, _ = choose("auto", Workload(module, data, parts, test, training, 0, measured=test))
    home = np.arange(point.clients) % point.servers
    net = clustered(
        np.full(point.clients, float(EXAMPLES)), home, graphs.linked(point.graph, point.servers)
    )
    net = replace(net, weights=weights_of(metropolis, net.linked, net.mass))
    kinds = ("client-server", "server-server", "server-cloud", "client-cloud")
    speeds = 0.01 * (1 + np.arange(point.clients) % 7)
    cost = Cost(speeds, 32.0 * module_size(), dict.fromkeys(kinds, 1e6))  # type: ignore[arg-type]
    scheme = SCHEMES[point.scheme](**SHORTEST[point.scheme])
    scheme = sampled(scheme, Sampling(share=point.share))
    return Simulation(Decisions.of(scheme, net, cost), engine)


def module_size() -> int:
    """Numbers of the model."""
    return (FEATURES + 1) * CLASSES


if __name__ == "__main__":
    print(json.dumps(asdict(grown(Point(**json.loads(sys.argv[1]))))))
