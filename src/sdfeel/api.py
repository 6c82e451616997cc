"""The Python interface: one run of any scheme on your own model, data, loss and network."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any, get_args

import numpy as np
from torch import Tensor, nn

from sdfeel.commands import experiment_of, report
from sdfeel.core import graphs, tolerance
from sdfeel.core.arrays import Floats
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError, at_least, unknown
from sdfeel.core.events import Event, Warned
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.network import Network, clustered
from sdfeel.core.run_files import EVENTS
from sdfeel.core.scheme import Scheme
from sdfeel.core.seeds import rng
from sdfeel.data.clusters import assign
from sdfeel.data.federated import Federated
from sdfeel.engine.base import Penalty, Training, Workload
from sdfeel.engine.base import penalties as known_penalties
from sdfeel.engine.evaluate import METRICS, Groups, Loss, Metric, chosen
from sdfeel.engine.optimizers import local_step
from sdfeel.engine.parts import Personal
from sdfeel.engine.personal import PersonalEngine
from sdfeel.engine.select import Kind, ModuleEngine, choose
from sdfeel.experiment.build import build_model, prepare
from sdfeel.experiment.schema import Experiment
from sdfeel.models.zoo import operations
from sdfeel.radio import latency
from sdfeel.run import store
from sdfeel.run.drive import Drive, Goals
from sdfeel.run.session import Session, drive_of, start_or_resume
from sdfeel.schemes import SCHEMES, lacking, name_of
from sdfeel.schemes import tolerance as tolerance_of
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
            raise InputError(f"how many servers does the {graph} have? give servers=...")
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

    _session: Session | None
    _events: Generator[Event]

    def __init__(
        self,
        scheme: Scheme | Experiment | Mapping[str, Any],
        net: Network | None = None,
        model: nn.Module | None = None,
        data: Federated | None = None,
        *,
        out: str | Path | None = None,
        iterations: int | None = None,
        learning_rate: float = 0.05,
        batch_size: int = 10,
        optimizer: str = "sgd",
        optimizer_options: Mapping[str, Any] | None = None,
        proximal: float = 0.0,
        penalties: Mapping[str, float | Penalty] | None = None,
        loss: Loss = nn.functional.cross_entropy,
        metrics: Mapping[str, Metric] | None = None,
        per_client: Sequence[str] = (),
        per_cluster: Sequence[str] = (),
        per_client_every: int = 1,
        cost: Cost | None = None,
        evaluate_every: int = 1,
        target_accuracy: float | None = None,
        max_seconds: float | None = None,
        seed: int = 0,
        engine: Kind = "auto",
        workers: int | None = None,
        personal: Personal | None = None,
    ) -> None:
        """A run of an `Experiment` (or a mapping with the keys of a file), or of these parts.

        With `out`, it is written there as by `sdfeel run`: its log, checkpoints, model, report and
        page. A program that was stopped or killed continues it when it is run again.
        """
        if isinstance(scheme, Experiment | Mapping):
            self._carry_out(experiment_of(scheme), out)
            return
        if iterations is None:
            raise InputError("how long to train? give iterations=...")
        _check_parts(scheme, net, model, data, loss)
        assert net is not None
        assert model is not None
        assert data is not None
        if out is not None:
            raise InputError(
                "to keep a run in a directory, give out= beside an experiment: "
                "sdfeel.Run({'scheme': ..., 'model': ..., 'data': ..., 'training': "
                "{'iterations': ...}}, out=...)"
            )
        _check_numbers(
            {
                "iterations": iterations,
                "batch_size": batch_size,
                "evaluate_every": evaluate_every,
                "per_client_every": per_client_every,
            },
            {"learning_rate": learning_rate, "max_seconds": max_seconds},
            target_accuracy,
        )
        _check_names(engine, optimizer)
        options = dict(optimizer_options or {})
        training = Training(
            learning_rate,
            batch_size,
            optimizer,
            options,
            loss=loss,
            proximal=proximal,
            penalties=known_penalties(penalties or {}),
        )
        workload = Workload(
            model, data.train, data.parts, data.test, training, seed, dict(metrics or {})
        )
        self._engine: ModuleEngine
        stays, own = None, None
        price = cost if cost is not None else default_cost(model, data, batch_size)
        if personal is None:
            self._engine, why = choose(engine, workload, workers)
        else:
            self._engine = own = PersonalEngine(personal, workload, engine, workers)
            why, stays = own.why, own.stays
            if cost is None:
                bits, step = 32.0 * sum(own.layout.priced), personal.gradients * price.step_seconds
                price = replace(price, model_bits=bits, step_seconds=step)
        local = local_step(training)
        decisions = Decisions.of(scheme, net, price, seed, local)
        self.simulation = Simulation(decisions, self._engine, stays=stays)
        goals = Goals(iterations, evaluate_every, target_accuracy, max_seconds)
        known = {**METRICS, "loss": loss, **(metrics or {})}
        clients = chosen(per_client, known, data.classes > 0)
        clusters = chosen(per_cluster, known, data.classes > 0)
        outputs, every = self._engine.outputs, per_client_every
        drive = Drive(
            name_of(scheme),
            self.simulation,
            goals,
            why,
            groups=Groups(outputs, data.parts, net.home, clients, clusters, every),
            personal=own,
        )
        self._events = _told(drive, _unused(scheme, net, price, personal))
        self.module, self._session = model, None

    def _carry_out(self, experiment: Experiment, out: str | Path | None) -> None:
        if out is None:
            ready = prepare(experiment)
            self._session, self._engine = None, ready.engine
            self.simulation = ready.simulation()
            drive = drive_of(ready, self.simulation)
            self._events = _told(drive, (*ready.foreign, *ready.notes))
        else:
            self._session = start_or_resume(experiment, Path(out))
            ready = self._session.prepared
            self._engine = ready.engine
            self._events = _kept(self._session)
        given = experiment.model.name
        own = build_model(ready.experiment, ready.data)
        self.module = given if isinstance(given, nn.Module) else own

    def __iter__(self) -> Iterator[Event]:
        try:
            yield from self._events
        finally:  # also when the caller stops early
            self.close()

    def __next__(self) -> Event:
        """The next event, to take a run step by step. `close` it if you stop early."""
        try:
            return next(self._events)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the engine; `module` is then the model as trained so far."""
        if self._session is not None:
            self._session.stop()
            self._events.close()
            self.module.load_state_dict(self._session.weights())
            return
        self._engine.close()
        self.module.load_state_dict(self._engine.state_dict(self.model))

    @property
    def model(self) -> Tensor:
        """(P,) what the run returns, as one row: most often the mean of the servers' models."""
        return self.simulation.model()

    def model_of(self, client: int) -> dict[str, Tensor]:
        """A client's own model as a state_dict; that of everyone if models are not personal."""
        return self._engine.state_dict(self.simulation.models()(client))


def _kept(session: Session) -> Generator[Event]:
    """A run's events, those of an earlier program included; at the end, its report is written."""
    directory = session.directory
    if (directory / EVENTS).is_file() and session.finished:
        yield from store.read_events(directory)
        return
    yield from session
    if session.finished:
        report(directory)


def _unused(
    scheme: Scheme, net: Network, cost: Cost, personal: Personal | None = None
) -> tuple[str, ...]:
    """What makes no difference to the scheme; InputError for what it refuses."""
    asked = {
        "overlap": ("clients that reach several servers", any(len(own) > 1 for own in net.reach)),
        "server_rates": ("cost.server_rates", cost.server_rates is not None),
        "cloud_rates": ("cost.cloud_rates", cost.cloud_rates is not None),
        "personal": ("personal", personal is not None),
        "fedrep": ("personal", personal is not None and personal.method == "fedrep"),
    }
    wanted = [(option, words) for option, (words, there) in asked.items() if there]
    own, name = tolerance_of(scheme), name_of(scheme)
    tolerance.check(name, own, wanted, {other: kind.tolerates for other, kind in SCHEMES.items()})
    unused = tolerance.ignored(own, wanted)
    return (f"{name} does not use {', '.join(unused)}",) if unused else ()


def _told(drive: Drive, notes: Sequence[str]) -> Generator[Event]:
    """All events, with notes after the first."""
    events = iter(drive)
    yield next(events)
    yield from map(Warned, notes)
    yield from events


def _check_parts(
    scheme: Scheme,
    net: Network | None,
    model: nn.Module | None,
    data: Federated | None,
    loss: Loss,
) -> None:
    """Check that every part is of the right kind, and that they fit together."""
    wanted = {"net": (net, Network), "model": (model, nn.Module), "data": (data, Federated)}
    for name, (given, kind) in wanted.items():
        if not isinstance(given, kind):
            raise InputError(f"{name} must be a {kind.__name__}, got {type(given).__name__}")
    assert isinstance(net, Network)
    assert isinstance(data, Federated)
    if isinstance(scheme, type):
        raise InputError(
            f"scheme is the class {scheme.__name__}: give an instance, {scheme.__name__}()"
        )
    missing = lacking(scheme)
    if missing:
        raise InputError(
            f"scheme must have the methods adapt, lanes, work and mix, but "
            f"{type(scheme).__name__} lacks {', '.join(missing)}"
        )
    if len(net.samples) != len(data.parts):
        raise InputError(
            f"the network has {len(net.samples)} clients, but the data is split over "
            f"{len(data.parts)}: build the network from this data with sdfeel.network"
        )
    if len(data.test) == 0:
        raise InputError("there are no test examples to measure with: give at least one")
    if data.classes == 0 and loss is nn.functional.cross_entropy:
        raise InputError(
            "the targets are not class numbers, and the default loss needs them: give your own "
            "loss, such as loss=torch.nn.functional.mse_loss"
        )


def _check_numbers(
    counts: Mapping[str, Any], sizes: Mapping[str, Any], target_accuracy: Any
) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InputError(f"{name} must be a whole number, got {value!r}")
        at_least(name, int(value), 1)
    for name, value in sizes.items():
        if value is not None and not (isinstance(value, Real) and 0 < float(value) < inf):
            raise InputError(f"{name} must be a number above 0, got {value!r}")
    if target_accuracy is not None and not (
        isinstance(target_accuracy, Real) and 0 < float(target_accuracy) <= 1
    ):
        raise InputError(
            f"target_accuracy must be above 0 and at most 1 (0.9 is 90 %), got {target_accuracy!r}"
        )


def _check_names(engine: Any, optimizer: Any) -> None:
    if engine not in get_args(Kind):
        raise unknown("engine", str(engine), get_args(Kind))
    if not isinstance(optimizer, str):
        told = getattr(optimizer, "__name__", type(optimizer).__name__)
        raise InputError(
            f"optimizer must be the name of one of torch's optimisers, such as 'adam', got {told}"
        )


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
