"""Bring your own: any scheme on your own model, data, loss, network and metrics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from sdfeel.core import graphs
from sdfeel.core.arrays import Floats
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError, at_least, unknown
from sdfeel.core.events import Event
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Scheme
from sdfeel.core.seeds import rng
from sdfeel.data.clusters import assign
from sdfeel.data.federated import Federated
from sdfeel.engine.base import Training, Workload
from sdfeel.engine.evaluate import Loss, Metric
from sdfeel.engine.optimizers import local_step
from sdfeel.engine.select import Kind, choose
from sdfeel.models.zoo import operations
from sdfeel.radio import latency
from sdfeel.run.drive import Drive, Goals
from sdfeel.sim.simulate import Simulation


def network(
    data: Federated,
    servers: int | None = None,
    graph: str | Floats | Any = "ring",
    home: Sequence[int] | None = None,
    mixing: str | Floats = "paper",
    seed: int = 0,
) -> Network:
    """A network around `data`: `graph` is a name, a matrix of links or a networkx graph.

    `home` says which server each client belongs to (default: at random, equal clusters).
    """
    if isinstance(graph, str):
        if servers is None:
            raise InputError(f"how many servers has the {graph}? say servers=...")
        links = graphs.links(graph, servers, rng(seed, "graph"))
    else:
        links = np.asarray(graph, float) if hasattr(graph, "shape") else graphs.adjacency(graph)
    if servers is not None and servers != len(links):
        raise InputError(f"the graph joins {len(links)} servers, but servers={servers}")
    clients = len(data.parts)
    own = assign(clients, len(links), rng(seed, "clusters")) if home is None else home
    net = clustered(data.samples, own, links)
    if not isinstance(mixing, str):
        return replace(net, weights=mixing)
    if mixing not in GOSSIP_RULES:
        raise unknown("mixing rule", mixing, GOSSIP_RULES)
    return replace(net, weights=GOSSIP_RULES[mixing](net.links, net.mass))


class Run:
    """An iterator of events; afterwards, or after stopping early, `module` is the trained one.

    >>> import sdfeel, torch
    >>> x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> data = sdfeel.federate((x, (x.sum(1) > 0).long()), (x, (x.sum(1) > 0).long()), clients=8)
    >>> net = sdfeel.network(data, servers=4, graph="ring")
    >>> run = sdfeel.Run(sdfeel.SDFeel(), net, torch.nn.Linear(3, 2), data, iterations=20)
    >>> [type(event).__name__ for event in run][-2:]
    ['Evaluated', 'Finished']
    """

    def __init__(
        self,
        scheme: Scheme,
        net: Network,
        model: nn.Module,
        data: Federated,
        *,
        iterations: int,
        learning_rate: float = 0.05,
        batch_size: int = 10,
        optimizer: str = "sgd",
        optimizer_options: Mapping[str, Any] | None = None,
        proximal: float = 0.0,
        loss: Loss = nn.functional.cross_entropy,
        metrics: Mapping[str, Metric] | None = None,
        cost: Cost | None = None,
        evaluate_every: int = 1,
        target_accuracy: float | None = None,
        max_seconds: float | None = None,
        seed: int = 0,
        engine: Kind = "auto",
        workers: int | None = None,
    ) -> None:
        _check(net, data, iterations, learning_rate, batch_size, evaluate_every)
        options = dict(optimizer_options or {})
        training = Training(
            learning_rate, batch_size, optimizer, options, loss=loss, proximal=proximal
        )
        workload = Workload(
            model, data.train, data.parts, data.test, training, seed, dict(metrics or {})
        )
        self._engine, why = choose(engine, workload, workers)
        price = cost if cost is not None else default_cost(model, data, batch_size)
        local = local_step(training)
        self.simulation = Simulation(Decisions.of(scheme, net, price, seed, local), self._engine)
        goals = Goals(iterations, evaluate_every, target_accuracy, max_seconds)
        self._drive = Drive(type(scheme).__name__, self.simulation, goals, why)
        self.module = model

    def __iter__(self) -> Iterator[Event]:
        try:
            yield from self._drive
        finally:  # also when the caller stops early
            self._engine.close()
            self.module.load_state_dict(self._engine.state_dict(self.model))

    @property
    def model(self) -> Tensor:
        """(P,) the mean of the servers' models as one row."""
        return self.simulation.model()


def _check(
    net: Network,
    data: Federated,
    iterations: int,
    learning_rate: float,
    batch_size: int,
    evaluate_every: int,
) -> None:
    if len(net.samples) != len(data.parts):
        raise InputError(
            f"the network has {len(net.samples)} clients, but the data is split over "
            f"{len(data.parts)}: build the network from this data with sdfeel.network"
        )
    at_least("iterations", iterations, 1)
    at_least("batch_size", batch_size, 1)
    at_least("evaluate_every", evaluate_every, 1)
    if not learning_rate > 0:
        raise InputError(f"learning_rate must be above 0, got {learning_rate:g}")


def default_cost(model: nn.Module, data: Federated, batch_size: int) -> Cost:
    """The paper's links and 10 GFLOPS at every client."""
    steps = latency.step_seconds(
        np.full(len(data.parts), 10e9),
        data.samples,
        operations(model, data.train.x[0]),
        batch_size,
        latency.PRESETS["paper-literal"],
    )
    bits = 32.0 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    return latency.cost(steps, bits, latency.Rates())
