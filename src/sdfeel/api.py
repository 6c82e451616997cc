"""The Python interface: one run of any scheme on your own model, data, loss and network."""

import atexit
import inspect
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from sdfeel.commands import experiment_of
from sdfeel.core import graphs, peers, tolerance
from sdfeel.core.arrays import Floats
from sdfeel.core.cost import Cost
from sdfeel.core.errors import InputError, of_kind, said, unknown, whole_number
from sdfeel.core.events import Event, Warned
from sdfeel.core.gossip_weights import GOSSIP_RULES, weights_of
from sdfeel.core.learning_rates import Curve
from sdfeel.core.network import Network, clustered, meeting_by
from sdfeel.core.run_files import EVENTS
from sdfeel.core.scheme import Scheme
from sdfeel.core.seeds import rng
from sdfeel.core.sparse import Sparse
from sdfeel.data.clusters import assign
from sdfeel.data.federated import Federated
from sdfeel.engine.base import Penalty
from sdfeel.engine.evaluate import Loss, Metric
from sdfeel.engine.parts import Personal
from sdfeel.engine.select import Kind
from sdfeel.experiment.build import Prepared, RunParts, build_model, prepare
from sdfeel.experiment.loading import checked
from sdfeel.experiment.schema import Experiment
from sdfeel.run import provenance, store
from sdfeel.run.drive import Drive
from sdfeel.run.provenance import Provenance
from sdfeel.run.session import Session, drive_of, recorded, start, start_or_resume
from sdfeel.run.session import resume as continue_run
from sdfeel.run.tracking import tracked, tracker
from sdfeel.schemes import SCHEMES, lacking, name_of
from sdfeel.schemes import tolerance as tolerance_of
from sdfeel.show_runs import show

_UNDER_WAY: WeakSet[Generator[Event]] = WeakSet()


@atexit.register
def _close_all() -> None:
    """If a program ends during a run, close the run while Python still has all its parts."""
    for events in list(_UNDER_WAY):
        events.close()


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
    if not isinstance(data, Federated):
        raise InputError(
            f"a network is built around data that are split among its clients (sdfeel.federate), "
            f"got {type(data).__name__}"
        )
    clients = len(data.parts)
    whole_number("seed", seed, 0)
    if servers is not None:
        whole_number("servers", servers, 1)
        if servers > clients:
            raise InputError(f"{clients} clients are too few for {servers} servers: each needs one")
    links: Floats | Sparse
    if isinstance(graph, str):
        if servers is None:
            raise InputError(f"how many servers does the {graph} have? give servers=...")
        links = graphs.linked(graph, servers, rng(seed, "graph"))
    else:
        links = _links(graph)
    if servers is not None and servers != len(links):
        raise InputError(f"the graph joins {len(links)} servers, but servers={servers}")
    own = assign(clients, len(links), rng(seed, "clusters")) if home is None else _servers(home)
    net = clustered(data.samples, own, links)
    if not isinstance(mixing, str):
        given = _matrix("mixing", mixing, "a rule's name or a matrix")
        return replace(net, weights=given)  # type: ignore[arg-type]  # of any shape
    if mixing in GOSSIP_RULES:
        return replace(net, weights=weights_of(GOSSIP_RULES[mixing], net.linked, net.mass))
    met = meeting_by(net, mixing, seed)
    if met is None:
        raise unknown("mixing rule", mixing, [*GOSSIP_RULES, *peers.NAMES, "a matrix"])
    return met


def _links(graph: Any) -> Floats | Sparse:
    if hasattr(graph, "shape"):
        return _matrix("graph", graph, "a name, a matrix of links or a networkx graph")
    if not hasattr(graph, "edges") or isinstance(graph, type):
        of_kind("graph", graph, (), "a name, a matrix of links or a networkx graph")
    return graphs.adjacency(graph)


def _matrix(name: str, given: Any, words: str) -> Floats:
    try:
        found = np.asarray(given, float)
    except (TypeError, ValueError, RuntimeError):
        found = np.zeros(0)
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not found.size:
        of_kind(name, given, (), words)
    return found


def _servers(home: Any) -> Sequence[int]:
    """Each client's server, as given."""
    try:
        found = np.asarray(home)
    except (TypeError, ValueError, RuntimeError):
        found = np.zeros(0)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        of_kind("home", home, (), "a server's number for each client")
    return [int(each) for each in found]


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
        accept_changes: bool = False,
        iterations: int | None = None,
        learning_rate: float = 0.05,
        batch_size: int = 10,
        schedule: str | Curve = "constant",
        schedule_options: Mapping[str, Any] | None = None,
        warmup: int = 0,
        clip_norm: float | None = None,
        average: float = 0.0,
        optimizer: str | type[Optimizer] = "sgd",
        optimizer_options: Mapping[str, Any] | None = None,
        proximal: float = 0.0,
        penalties: Mapping[str, float | Penalty] | None = None,
        loss: Loss = nn.functional.cross_entropy,
        metrics: Mapping[str, Metric] | Sequence[str | Metric] | None = None,
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
        page. A program that was stopped or killed continues it when it is run again. If its data or
        code have changed, that is refused, or with `accept_changes` written into the log.
        """
        own = {name: value for name, value in locals().items() if name in _PARTS}
        if isinstance(scheme, Experiment | Mapping):
            if extra := [name for name, value in own.items() if value is not _PARTS[name]]:
                raise InputError(
                    f"{extra[0]}= belongs to a run of parts, but this is a run of an experiment: "
                    f"write it there, as the keys in `sdfeel init` are written"
                )
            self._carry_out(experiment_of(scheme), None, out, accept_changes)
            return
        _check_parts(scheme, net, model, data, loss, cost, personal)
        if iterations is None:
            raise InputError("how long to train? give iterations=...")
        if out is not None:
            raise InputError(
                "to keep a run in a directory, give out= together with an experiment: "
                "sdfeel.Run({'scheme': ..., 'model': ..., 'data': ..., 'training': "
                "{'iterations': ...}}, out=...)"
            )
        assert isinstance(net, Network)
        parts = RunParts(scheme, net, cost)
        self._carry_out(_of_parts(own, parts, personal), parts)

    def _carry_out(
        self,
        experiment: Experiment,
        parts: RunParts | None = None,
        out: str | Path | None = None,
        accept_changes: bool = False,
    ) -> None:
        if out is not None:
            of_kind("out", out, (str, PathLike), "a directory")
            self._keep(start_or_resume(experiment, Path(out), accept_changes=accept_changes))
            return
        ready = prepare(experiment, parts)
        self._session, self._engine = None, ready.engine
        self.simulation = ready.simulation()
        drive = drive_of(ready, self.simulation)
        unused = () if parts is None else _unused(parts.scheme, parts.net, ready.cost)
        told = _with_notes(drive, (*ready.foreign, *ready.notes, *unused))
        to = [tracker(each) for each in experiment.tracking.to]
        self._events = tracked(told, to, ready.experiment)
        self.module = _module(ready)

    def _keep(self, session: Session) -> None:
        """Let this be the run that `session` keeps in its directory."""
        self._session, self._engine = session, session.prepared.engine
        self._events = _session_events(session)
        self.module = _module(session.prepared)

    @classmethod
    def of_session(cls, session: Session) -> "Run":
        """A run that is kept in a directory."""
        run = cls.__new__(cls)
        run._keep(session)
        return run

    @property
    def session(self) -> Session:
        """The session that keeps the run in its directory."""
        if self._session is None:
            raise InputError("this run is not kept in a directory: give out=...")
        return self._session

    def __iter__(self) -> Iterator[Event]:
        events = self._until_closed()
        _UNDER_WAY.add(events)
        return events

    def _until_closed(self) -> Generator[Event]:
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
            if (weights := self._session.weights()) is not None:
                self.module.load_state_dict(weights)
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


def resume(directory: str | Path, accept_changes: bool = False) -> Run:
    """The rest of a run that was stopped or killed: it ends as if nothing had happened.

    Changed data or code are refused, or with `accept_changes` written into the log.
    """
    of_kind("directory", directory, (str, PathLike), "a run's directory")
    return Run.of_session(continue_run(Path(directory), accept_changes))


def rerun(directory: str | Path, out: str | Path) -> Run:
    """A run started anew from its own record, in another directory.

    What is no longer as it was then is written into the log.
    """
    for name, given in {"directory": directory, "out": out}.items():
        of_kind(name, given, (str, PathLike), "a directory")
    began = Provenance.kept(Path(directory))
    session = start(recorded(Path(directory)), Path(out))
    notes = [f"this runs {directory} again"]
    if began is not None:
        now = provenance.of(session.prepared)
        notes += [f"changed since then: {each}" for each in provenance.changes(began, now)]
        notes += provenance.drift(began, now)
    session.prepared = replace(session.prepared, notes=(*notes, *session.prepared.notes))
    return Run.of_session(session)


def _module(ready: Prepared) -> nn.Module:
    """The module that is trained: the user's own object, if the model was given as one."""
    given = ready.experiment.model.name
    if isinstance(given, nn.Module):
        return given
    return build_model(ready.experiment, ready.data)


def _session_events(session: Session) -> Generator[Event]:
    """A run's events, those of an earlier program included; at the end, its report is written."""
    directory = session.directory
    if (directory / EVENTS).is_file() and session.finished:
        yield from store.read_events(directory)
        return
    yield from session
    if session.finished:
        show(directory)


def _unused(scheme: Scheme, net: Network, cost: Cost) -> tuple[str, ...]:
    """Which of these make no difference to the scheme; InputError for those that it refuses."""
    asked = {
        "overlap": ("clients that reach several servers", any(len(own) > 1 for own in net.reach)),
        "server_rates": ("cost.server_rates", cost.server_rates is not None),
        "cloud_rates": ("cost.cloud_rates", cost.cloud_rates is not None),
    }
    wanted = [(option, words) for option, (words, there) in asked.items() if there]
    own, name = tolerance_of(scheme), name_of(scheme)
    tolerance.check(name, own, wanted, {other: kind.tolerates for other, kind in SCHEMES.items()})
    unused = tolerance.ignored(own, wanted)
    return (f"{name} does not use {', '.join(unused)}",) if unused else ()


# Arguments of a run of parts, and the keys of an experiment that they correspond to.
_KEYS = {
    "evaluate_every": "evaluation.every",
    **{name: f"evaluation.{name}" for name in ("metrics", "per_client", "per_cluster")},
    "per_client_every": "evaluation.per_client_every",
    "seed": "seed",
    "model": "model.name",
    "data": "data.name",
}
_PARTS = {
    name: each.default
    for name, each in inspect.signature(Run.__init__).parameters.items()
    if name not in ("self", "scheme", "out", "accept_changes")
}


def _of_parts(own: Mapping[str, Any], parts: RunParts, personal: Personal | None) -> Experiment:
    """The experiment that these arguments describe, apart from the parts themselves."""
    apart = {"net", "cost", "personal"}
    groups = ("per_client", "per_cluster", "per_client_every")
    if all(own[name] is _PARTS[name] for name in groups):
        apart.add("per_client_every")
    given = {
        _KEYS.get(name, f"training.{name}"): value
        for name, value in own.items()
        if name not in apart and not (value is None and _PARTS[name] is None)
    }
    net = parts.net
    whole: dict[str, Any] = {
        "scheme": parts.scheme,
        "network.clients": len(net.samples),
        "network.servers": len(net.servers),
        "evaluation.train_examples": 0,
    }
    section = {} if personal is None else {f"personal.{k}": v for k, v in asdict(personal).items()}
    lists = {key: list(value) for key, value in section.items() if isinstance(value, tuple)}
    return checked({**whole, **given, **section, **lists})


def _with_notes(drive: Drive, notes: Sequence[str]) -> Generator[Event]:
    """All events, with notes after the first."""
    events = iter(drive)
    yield next(events)
    yield from map(Warned, notes)
    yield from events


def _check_parts(
    scheme: Any, net: Any, model: Any, data: Any, loss: Any, cost: Any, personal: Any
) -> None:
    """Check that every part is of the right kind, and that they fit together."""
    if net is None and model is None and data is None and lacking(scheme):
        raise InputError(
            f"a run needs an experiment (a mapping, or what sdfeel.load makes of a file), or a "
            f"scheme with its net, model and data; got {said(scheme)}"
        )
    wanted: dict[str, tuple[Any, type, bool]] = {
        "net": (net, Network, False),
        "model": (model, nn.Module, False),
        "data": (data, Federated, False),
        "cost": (cost, Cost, True),
        "personal": (personal, Personal, True),
    }
    for name, (given, kind, absent) in wanted.items():
        if not isinstance(given, kind) and not (absent and given is None):
            raise InputError(f"{name} must be a {kind.__name__}, got {type(given).__name__}")
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
    if cost is not None:
        cost.check(net)
    if len(data.test) == 0:
        raise InputError("there are no test examples to measure with: give at least one")
    if not callable(loss):
        raise InputError(f"loss must be a function of outputs and targets, got {said(loss)}")
    if data.classes == 0 and loss is nn.functional.cross_entropy:
        raise InputError(
            "the targets are not class numbers (0, 1, 2 ...), which the default loss needs: "
            "renumber them, or give your own loss, such as loss=torch.nn.functional.mse_loss"
        )
