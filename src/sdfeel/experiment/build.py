"""From an experiment to the objects that carry it out."""

import copy
import dataclasses
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from sdfeel.core import graphs, membership
from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.cost import Cost, Power
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError, unknown
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.link_times import Link
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Local, Scheme
from sdfeel.core.seeds import number, rng
from sdfeel.core.stragglers import StragglerPolicy
from sdfeel.data import catalog
from sdfeel.data.clusters import assign
from sdfeel.data.clusters import sizes as cluster_sizes
from sdfeel.data.federated import Examples, Federated, federate
from sdfeel.data.partition import holdings
from sdfeel.engine import optimizers
from sdfeel.engine.base import Engine, Training, Workload, penalties
from sdfeel.engine.evaluate import Groups, chosen
from sdfeel.engine.messages import FLOAT, Codec, Compress, Packing, codec
from sdfeel.engine.select import ModuleEngine, choose
from sdfeel.experiment import effects
from sdfeel.experiment.build_radio import build_case, build_changing, with_radio
from sdfeel.experiment.files import read_graph, read_matrix, read_speeds
from sdfeel.experiment.loading import rule_of
from sdfeel.experiment.schema import Experiment, SchemeSection
from sdfeel.models import zoo
from sdfeel.models.flat import FlatModule, Layout
from sdfeel.radio import latency
from sdfeel.schemes import FORMER, SCHEMES, find
from sdfeel.schemes.server_optimizers import ServerStep, plain, stepped
from sdfeel.sim.simulate import Simulation, State

MODEL_FOR = {"mnist": "mnist-cnn", "fashion-mnist": "mnist-cnn", "cifar10": "cifar-cnn"}
EVALUATIONS = 25  # in a run, unless evaluation.every says otherwise


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that a run needs."""

    experiment: Experiment  # with every `auto` decided
    decisions: Decisions
    net: Network  # before the scheme adapted it
    data: Federated
    engine: ModuleEngine
    why: str  # this engine
    rounds: int  # of all lanes, if nothing ends the run earlier
    packing: Packing | None = None
    notes: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()  # a note if keys of other schemes were ignored

    @property
    def scheme(self) -> Scheme:
        return self.decisions.scheme

    @property
    def cost(self) -> Cost:
        return self.decisions.cost

    @property
    def groups(self) -> Groups | None:
        """The metrics per client and per cluster; None if there are none."""
        asked = self.experiment.evaluation
        if not asked.per_client and not asked.per_cluster:
            return None
        return Groups(
            self.engine.outputs,
            self.data.parts,
            self.net.home,
            chosen(asked.per_client),
            chosen(asked.per_cluster),
            asked.per_client_every,
        )

    def simulation(self, engine: Engine | None = None, state: State | None = None) -> Simulation:
        """A simulation from the start, or from a saved state."""
        own = self.engine if engine is None else engine
        return Simulation(self.decisions, own, state, self.packing)


def prepare(experiment: Experiment) -> Prepared:
    """Load, split and build everything that `experiment` names; raise on what cannot work."""
    scheme, foreign = build_scheme(experiment)
    chosen([*experiment.evaluation.per_client, *experiment.evaluation.per_cluster])  # known names
    late = StragglerPolicy(experiment.latency.late, experiment.latency.deadline_seconds)
    data = build_data(experiment)
    experiment = with_model(experiment)
    net = build_network(experiment, data)
    # A network that the scheme cannot serve, and options that it refuses, are refused here.
    case = build_case(experiment, scheme, net)
    effects.check(case)
    changing, parted = build_changing(case)
    module = build_model(experiment, data)
    zoo.check_fit(module, data.train.x[0], data.classes)
    engine, why = build_engine(experiment, data, module)
    packing = build_packing(experiment, engine.layout)
    cost = build_cost(experiment, data, net, module, engine.layout, packing)
    local = local_step(experiment)
    decisions = Decisions.of(scheme, net, cost, experiment.seed, local, late, changing)
    decisions.check_deadline()
    rounds = decisions.expected_rounds(experiment.training.iterations)
    decisions, net = with_epochs(experiment, decisions, net)
    experiment = resolved(experiment, scheme, data, rounds, engine.name)
    notes = (*effects.notes(replace(case, engine=engine.name)), *parted)
    return Prepared(experiment, decisions, net, data, engine, why, rounds, packing, notes, foreign)


def with_model(experiment: Experiment) -> Experiment:
    """The same experiment, with the model that suits the data if none was chosen."""
    if experiment.model.name != "auto":
        return experiment
    name = MODEL_FOR.get(experiment.data.name, "mlp")
    return experiment.model_copy(
        update={"model": experiment.model.model_copy(update={"name": name})}
    )


def resolved(
    experiment: Experiment, scheme: Scheme, data: Federated, rounds: int, engine: str
) -> Experiment:
    """The same experiment with every `auto` decided, so that a later version cannot differ."""
    training, evaluation = experiment.training, experiment.evaluation
    if evaluation.every == 0:
        measured = min(evaluation.test_examples or inf, len(data.test))
        measured += min(evaluation.train_examples or inf, len(data.train))
        every = evaluate_every(experiment, data, rounds, measured)
        evaluation = evaluation.model_copy(update={"every": every})
    if evaluation.per_client_every == 0 and (evaluation.per_client or evaluation.per_cluster):
        every = evaluate_every(experiment, data, rounds, len(data.train))
        every = evaluation.every * ceil(every / evaluation.every)
        evaluation = evaluation.model_copy(update={"per_client_every": every})
    return experiment.model_copy(
        update={
            "training": training.model_copy(update={"engine": engine}),
            "evaluation": evaluation,
            "scheme": scheme_section(experiment.scheme.name, scheme),
        }
    )


def evaluate_every(experiment: Experiment, data: Federated, rounds: int, measured: float) -> int:
    """Rounds between two measurements on `measured` examples.

    About EVALUATIONS are made in all, and they take at most a tenth of the work.
    Measuring an example costs about a quarter of training on it. All clients are counted, even
    for schemes that schedule a few, so that compared schemes are measured at the same rounds.
    """
    training = experiment.training
    whole = reading(experiment).iteration_unit == "epoch"
    per_iteration = len(data.train) if whole else len(data.parts) * training.batch_size
    trained = per_iteration * training.iterations / rounds
    cheap = ceil(measured / 4 / (0.08 * trained))
    return max(1, rounds // EVALUATIONS, min(cheap, ceil(rounds / 2)))


def scheme_section(name: str, scheme: Scheme) -> SchemeSection:
    """The experiment's section for a scheme, with all its options."""
    options = dataclasses.asdict(
        cast(Any, plain(scheme))
    )  # a dataclass, which its protocol cannot say
    return SchemeSection.model_validate({"name": name, **options})


def build_scheme(experiment: Experiment) -> tuple[Scheme, tuple[str, ...]]:
    """The scheme with its servers' own steps, and a note if keys of other schemes were ignored."""
    scheme, notes = _build_plain(experiment)
    section = experiment.server
    if section.optimizer == "none":
        return scheme, notes
    rate, momentum = section.learning_rate, section.momentum
    step = ServerStep(section.optimizer, rate, momentum, section.beta2, section.tau)
    return stepped(scheme, step), notes


def _build_plain(experiment: Experiment) -> tuple[Scheme, tuple[str, ...]]:
    kind = find(experiment.scheme.name)
    own = {field.name for field in dataclasses.fields(cast(Any, kind))}
    every = {f.name for other in SCHEMES.values() for f in dataclasses.fields(cast(Any, other))}
    # An experiment file has no other way to write the `none` of our help texts.
    given = {k: v for k, v in experiment.scheme.options.items() if v not in (None, "none")}
    for key in given:
        if key in FORMER:
            raise InputError(FORMER[key])
        if key not in every:
            raise unknown("key", f"scheme.{key}", [f"scheme.{name}" for name in sorted(own)])
    foreign = sorted(set(given) - own)
    notes = (
        (f"{experiment.scheme.name} does not use {', '.join(f'scheme.{k}' for k in foreign)}",)
        if foreign
        else ()
    )
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        return adapter.validate_python({k: v for k, v in given.items() if k in own}), notes
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
        key = key.removesuffix(".int")
        if first["type"] == "value_error":
            raise InputError(first["msg"].removeprefix("Value error, ")) from None
        raise InputError(f"scheme.{key} must be {rule_of(first)}, got {first['input']!r}") from None


def build_data(experiment: Experiment) -> Federated:
    section = experiment.data
    where = Path(section.directory) if section.directory is not None else None
    loaded = catalog.load(section.name, where)
    if loaded.classes == 0:
        raise InputError(
            f"the targets of {section.name} are not class numbers, and experiments train "
            f"classifiers: train it from Python, with sdfeel.Run and your own loss"
        )
    return federate(
        loaded.train,
        loaded.test,
        experiment.network.clients,
        section.partition,
        experiment.seed,
        classes_per_client=section.classes_per_client,
        concentration=section.concentration,
        balance=section.balance,
        min_size=section.min_size,
    )


def build_network(experiment: Experiment, data: Federated) -> Network:
    links, home = build_links(experiment), build_home(experiment, data)
    net = clustered(data.samples, home, links)
    if experiment.network.overlap and len(net.servers) > 1:
        net = overlapping(net, experiment.network.overlap)
    return build_mixing(experiment, net)


def with_epochs(
    experiment: Experiment, decisions: Decisions, net: Network
) -> tuple[Decisions, Network]:
    """The decisions with those of the epochs in which the network is another one, and the first."""
    codecs = experiment.compression.uplink, experiment.compression.backhaul
    if experiment.network.epochs and codecs != ("none", "none"):
        raise InputError(
            "network.epochs goes with models that are sent as they are: leave out "
            "compression.uplink and compression.backhaul"
        )
    epochs, first = [], net
    for epoch in membership.schedule(experiment.network.epochs):
        known = len(net.samples)
        if epoch.counts or any(client >= known for client, _ in epoch.moves):
            raise InputError(
                f"network.epochs: a simulation has the {known} clients of its data, each with its "
                f"examples; other clients and other numbers of examples are for deployments"
            )
        net = build_mixing(experiment, epoch.applied(net))
        found = on_another(decisions, net)
        if epoch.begins == 0:
            decisions, first = found, net
        else:
            epochs.append((epoch.begins, found))
    return replace(decisions, epochs=tuple(epochs)), first


def on_another(decisions: Decisions, net: Network, cost: Cost | None = None) -> Decisions:
    """The same scheme on the network of another epoch; InputError if it cannot change so."""
    own, view = decisions, decisions.view(0)
    name = type(plain(own.scheme)).__name__
    if len(own.lanes) > 1:
        raise InputError(f"network.epochs needs a common round, and {name} has none: leave it out")
    work = own.work(view)
    if own.net.shelves or work.measure or own.mix(view, own.cost.done(work)).memory:
        raise InputError(
            f"network.epochs: {name} keeps more than the servers' models, which would have to move "
            f"with clients: leave it out"
        )
    if own.outages is not None or own.late.policy != "wait":
        raise InputError(
            "network.epochs is for networks that are always there and clients that are waited for: "
            "leave out network.changes, network.link_chance, network.server_up_seconds and "
            "latency.late"
        )
    found = Decisions.of(own.scheme, net, cost or own.cost, own.seed, own.local, own.late)
    assert found.net.servers == own.net.servers  # an epoch changes clients alone
    return found


def build_home(experiment: Experiment, data: Federated) -> Ints:
    """(C,) each client's server."""
    section = experiment.network
    return assign(
        section.clients,
        section.servers,
        rng(experiment.seed, "clusters"),
        assignment=section.assignment,
        gamma=section.imbalance,
        holdings=who_holds_what(data),
    )


def overlapping(net: Network, count: int) -> Network:
    """The last `count` clients of every cell reach the next cell's server, too."""
    reach = list(net.reach)
    for d in net.servers:
        mine = np.flatnonzero(net.home == d)
        if count > len(mine):
            raise InputError(
                f"network.overlap is {count}, but cell {d} has only {len(mine)} clients: lower it"
            )
        for client in mine[len(mine) - count :]:
            reach[client] = (d, (d + 1) % len(net.servers))
    return Network(net.samples, tuple(reach), net.links)


def equal_network(experiment: Experiment) -> Network:
    """The experiment's servers with clients of equal data: to look at the graph alone."""
    section = experiment.network
    links = build_links(experiment)
    sizes = cluster_sizes(section.clients, section.servers, section.imbalance)
    home = np.repeat(np.arange(section.servers), sizes)
    return build_mixing(experiment, clustered(np.ones(section.clients), home, links))


def who_holds_what(data: Federated) -> Ints:
    """(C, K) examples of each class at each client."""
    return holdings(data.train.y.numpy(), data.parts, max(data.classes, 1))


def build_links(experiment: Experiment) -> Floats:
    section = experiment.network
    file = Path(section.graph)
    named = section.graph in (*graphs.TOPOLOGIES, *graphs.ALIASES)
    if not named and (file.suffix or file.is_file()):
        return read_graph(file, section.servers)
    draws = rng(experiment.seed, "graph")
    return graphs.links(section.graph, section.servers, draws, section.radius, section.probability)


def build_mixing(experiment: Experiment, net: Network) -> Network:
    name = experiment.network.mixing
    if name in GOSSIP_RULES:
        return replace(net, weights=GOSSIP_RULES[name](net.links, net.mass))
    if Path(name).suffix or Path(name).is_file():
        return replace(net, weights=read_matrix(Path(name)))
    raise unknown("mixing rule", name, [*GOSSIP_RULES, "a file .csv, .json or .npy"])


def build_model(experiment: Experiment, data: Federated) -> nn.Module:
    return zoo.build(
        experiment.model.name,
        data.shape,
        data.classes,
        number(experiment.seed, "model"),
        **experiment.model.options,
    )


def build_engine(
    experiment: Experiment, data: Federated, module: nn.Module
) -> tuple[ModuleEngine, str]:
    """The engine, and why it was chosen."""
    workload = Workload(
        module,
        data.train,
        data.parts,
        sample(data.test, experiment.evaluation.test_examples, experiment.seed),
        build_training(experiment),
        experiment.seed,
        measured=sample(data.train, experiment.evaluation.train_examples, experiment.seed),
    )
    return choose(experiment.training.engine, workload, experiment.training.workers or None)


def build_training(experiment: Experiment) -> Training:
    """How a client takes its local iterations."""
    training = experiment.training
    options = dict(training.optimizer_options)
    if training.momentum:
        options["momentum"] = training.momentum
    if training.weight_decay:
        options["weight_decay"] = training.weight_decay
    return Training(
        learning_rate=training.learning_rate,
        batch_size=training.batch_size,
        optimizer=training.optimizer,
        options=options,
        proximal=training.proximal,
        penalties=penalties(training.penalties),
        iteration=reading(experiment).iteration_unit,
    )


def local_step(experiment: Experiment) -> Local:
    """What a scheme may know about the local step."""
    return optimizers.local_step(build_training(experiment))


def layout_of(module: nn.Module) -> Layout:
    """The tensors in a row of this model, before any engine is built."""
    return FlatModule(copy.deepcopy(module)).layout


def build_packing(experiment: Experiment, layout: Layout) -> Packing | None:
    """How messages are compressed; None where nothing is lost."""
    section = experiment.compression
    if section.uplink == section.backhaul == "none":
        return None
    options: dict[str, dict[str, Any]] = {
        "uniform": {"width": section.bits},
        "top-k": {"share": section.share},
    }
    lossy: list[Codec | None] = []
    for name in (section.uplink, section.backhaul):
        made = codec(name, **options.get(name, {}))
        whole = made.bits(layout.sizes) >= FLOAT * sum(layout.sizes)
        lossy.append(None if whole else made)
    up, across = lossy
    if up is None and across is None:
        return None
    stages = () if up is None else (Compress(up),)
    return Packing(layout.sizes, experiment.seed, stages, across)


def sample(data: Examples, count: int, seed: int) -> Examples:
    """`count` examples drawn once; all of them for 0, or if there are fewer."""
    if count == 0 or count >= len(data):
        return data
    picked = np.sort(rng(seed, "measured").choice(len(data), size=count, replace=False))
    rows = torch.from_numpy(picked)
    return Examples(data.x[rows], data.y[rows])


def reading(experiment: Experiment) -> latency.Reading:
    """The preset with the experiment's own choices on top."""
    section = experiment.latency
    keys = ("samples_per_iteration", "backward_factor", "iteration_unit")
    chosen = {key: getattr(section, key) for key in keys if getattr(section, key) is not None}
    return replace(latency.PRESETS[section.preset], **chosen)


def build_cost(
    experiment: Experiment,
    data: Federated,
    net: Network,
    module: nn.Module,
    layout: Layout,
    packing: Packing | None = None,
) -> Cost:
    """Each client's speed and each link's rate: what rounds are priced by."""
    section, devices = experiment.latency, experiment.devices
    clients = len(data.parts)
    if devices.file is not None:
        speeds = read_speeds(Path(devices.file), clients)
    else:
        draws = rng(experiment.seed, "devices")
        speeds = latency.speeds(clients, devices.gflops * 1e9, devices.spread)
        speeds = latency.assigned(speeds, devices.placement, net.home, draws)
    card = zoo.MODELS.get(experiment.model.name)
    printed = None if card is None else card.operations
    packed: dict[Link, int] = {}  # bits of a compressed model, where one travels
    if packing is not None and packing.up:
        packed["client-server"] = packed["client-cloud"] = packing.bits(layout.priced)
    if packing is not None and packing.across is not None:
        packed["server-server"] = packing.across.bits(layout.priced)
    priced = latency.cost(
        latency.step_seconds(
            speeds,
            data.samples,
            section.operations or printed or zoo.operations(module, data.train.x[0]),
            experiment.training.batch_size,
            reading(experiment),
        ),
        section.model_bits or float(FLOAT * sum(layout.priced)),
        latency.Rates(
            section.client_server_mbps,
            section.server_server_mbps,
            section.server_cloud_mbps,
            section.client_cloud_mbps,
            section.cell_edge_mbps,
        ),
        section.downlink,
        Power(devices.computing_watts, devices.sending_watts, devices.backhaul_watts),
    )
    return with_radio(replace(priced, packed=packed), experiment, net)
