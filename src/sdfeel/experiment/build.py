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

from sdfeel.core.cost import Cost, Power
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError, unknown
from sdfeel.core.link_times import Link
from sdfeel.core.named import Kind, imported, is_path, spelled
from sdfeel.core.network import Network
from sdfeel.core.scheme import Local, Scheme, defaults
from sdfeel.core.seeds import number, rng
from sdfeel.core.stragglers import Policy, StragglerPolicy
from sdfeel.data import catalog as sources
from sdfeel.data.federated import Examples, Federated, federate
from sdfeel.engine import optimizers
from sdfeel.engine.base import Engine, Training, Workload, penalties
from sdfeel.engine.evaluate import LOSSES, METRICS, Groups, Loss, Metric, chosen
from sdfeel.engine.messages import FLOAT, Codec, Compress, Packing, codec
from sdfeel.engine.parts import Personal
from sdfeel.engine.personal import PersonalEngine
from sdfeel.engine.select import ModuleEngine, choose
from sdfeel.experiment import effects
from sdfeel.experiment.build_network import build_network, with_epochs
from sdfeel.experiment.build_radio import build_case, build_changing, with_radio
from sdfeel.experiment.files import read_speeds
from sdfeel.experiment.loading import rule_of
from sdfeel.experiment.schema import Experiment, SchemeSection
from sdfeel.models import zoo
from sdfeel.models.flat import FlatModule, Layout
from sdfeel.radio import latency
from sdfeel.schemes import FORMER, SCHEMES, find
from sdfeel.schemes.server_optimizers import ServerStep, plain, stepped
from sdfeel.sim.simulate import Simulation, State

MODEL_FOR = {"mnist": "mnist-cnn", "fashion-mnist": "mnist-cnn", "cifar10": "cifar-cnn"}
LOSS = Kind("loss", LOSSES, "sdfeel.losses")
METRIC = Kind("metric", METRICS, "sdfeel.metrics")
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
            chosen(asked.per_client, known_metrics(self.experiment), self.data.classes > 0),
            chosen(asked.per_cluster, known_metrics(self.experiment), self.data.classes > 0),
            asked.per_client_every,
        )

    def simulation(self, engine: Engine | None = None, state: State | None = None) -> Simulation:
        """A simulation from the start, or from a saved state."""
        own = self.engine if engine is None else engine
        stays = None if self.personal is None else self.personal.stays
        return Simulation(self.decisions, own, state, self.packing, stays)

    @property
    def personal(self) -> PersonalEngine | None:
        """The engine, if clients have models of their own."""
        return self.engine if isinstance(self.engine, PersonalEngine) else None


def prepare(experiment: Experiment) -> Prepared:
    """Load, split and build everything that `experiment` names; raise on what cannot work."""
    scheme, foreign = build_scheme(experiment)
    groups = [*experiment.evaluation.per_client, *experiment.evaluation.per_cluster]
    chosen(groups, known_metrics(experiment))  # known names
    late = build_late(experiment)
    data = build_data(experiment)
    experiment = with_clients(experiment, len(data.parts))
    experiment = with_model(experiment)
    net = build_network(experiment, data)
    # A network that the scheme cannot serve, and options that it refuses, are refused here.
    case = build_case(experiment, scheme, net)
    effects.check(case)
    changing, parted = build_changing(case)
    module = build_model(experiment, data)
    scores = build_loss(experiment) is LOSSES["cross-entropy"]
    zoo.check_fit(module, data.train.x[0], data.classes if scores else 0)
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
    if spelled(experiment.model.name) != "auto":
        return experiment
    name = MODEL_FOR.get(spelled(experiment.data.name), "mlp")
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


def scheme_section(name: Any, scheme: Scheme) -> SchemeSection:
    """The experiment's section for a scheme, with all its options."""
    bare = plain(scheme)  # a dataclass, most often, which its protocol cannot say
    if not dataclasses.is_dataclass(bare) or not isinstance(name, str | type):
        return SchemeSection.model_validate({"name": name})
    options = dataclasses.asdict(cast(Any, bare))
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
    kind, name = find(experiment.scheme.name), experiment.scheme.name
    if not isinstance(name, str | type):
        return name, ()
    own = set(defaults(kind))
    every = {f.name for other in SCHEMES.values() for f in dataclasses.fields(cast(Any, other))}
    # An experiment file has no other way to write the `none` of our help texts.
    given = {k: v for k, v in experiment.scheme.options.items() if v not in (None, "none")}
    for key in given:
        if key in FORMER:
            raise InputError(FORMER[key])
        if key not in every | own:
            raise unknown("key", f"scheme.{key}", [f"scheme.{name}" for name in sorted(own)])
    foreign = sorted(set(given) - own)
    notes = (
        (f"{experiment.scheme.label} does not use {', '.join(f'scheme.{k}' for k in foreign)}",)
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
    loaded = sources.load(section.name, where)
    partition = (
        sources.PARTITION.find(section.partition)
        if is_path(section.partition)
        else (section.partition)
    )
    if loaded.classes == 0 and build_loss(experiment) is LOSSES["cross-entropy"]:
        raise InputError(
            f"the targets of {spelled(section.name)} are not class numbers, which cross-entropy "
            f"needs: set training.loss, to mse for numbers or token-cross-entropy for tokens"
        )
    if isinstance(loaded, Federated):
        return loaded
    if loaded.classes == 0 and spelled(partition) in ("classes", "shards", "dirichlet"):
        raise InputError(
            f"data.partition is {partition}, which needs class numbers, and the targets of "
            f"{spelled(section.name)} are none: set data.partition to iid"
        )
    return federate(
        loaded.train,
        loaded.test,
        experiment.network.clients,
        partition,
        experiment.seed,
        classes_per_client=section.classes_per_client,
        concentration=section.concentration,
        balance=section.balance,
        min_size=section.min_size,
    )


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
        metrics=chosen(list(experiment.evaluation.metrics), known_metrics(experiment)),
        measured=sample(data.train, experiment.evaluation.train_examples, experiment.seed),
    )
    kind, workers = experiment.training.engine, experiment.training.workers or None
    personal = Personal.of(experiment.personal.model_dump())
    if personal is None:
        return choose(kind, workload, workers)
    if personal.method == "fedrep" and kind == "native":
        raise InputError(
            "personal.method = fedrep trains one part of a model at a time, which the native "
            "engine cannot do: choose training.engine=auto"
        )
    engine = PersonalEngine(personal, workload, kind, workers)
    return engine, engine.why


def build_training(experiment: Experiment) -> Training:
    """How a client takes its local iterations."""
    training = experiment.training
    name, own = _optimizer(training.optimizer)
    options = dict(training.optimizer_options)
    if training.momentum:
        options["momentum"] = training.momentum
    if training.weight_decay:
        options["weight_decay"] = training.weight_decay
    return Training(
        learning_rate=training.learning_rate,
        batch_size=training.batch_size,
        optimizer=name,
        own=own,
        loss=build_loss(experiment),
        options=options,
        proximal=training.proximal,
        penalties=penalties(training.penalties),
        iteration=reading(experiment).iteration_unit,
    )


def _optimizer(given: Any) -> tuple[str, Any]:
    """An optimiser's name and, where it is not one of torch's by name, the optimiser itself."""
    if isinstance(given, str) and not is_path(given):
        return given, None
    found = imported(given) if isinstance(given, str) else given
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise InputError(
            f"training.optimizer must be the name of one of torch's optimisers, such as adam, or "
            f"an optimiser class, got {getattr(found, '__name__', type(found).__name__)}"
        )
    known = getattr(torch.optim, found.__name__, None) is found
    return (found.__name__.lower(), None) if known else (spelled(given), found)


def build_loss(experiment: Experiment) -> Loss:
    """What a client makes small."""
    found = LOSS.find(experiment.training.loss)
    if not callable(found):
        raise InputError(
            f"training.loss must be a function of outputs and targets, got {type(found).__name__}"
        )
    loss: Loss = found
    return loss


def known_metrics(experiment: Experiment) -> dict[str, Metric]:
    """The metrics by name, with the experiment's own and its loss."""
    own = {name: METRIC.find(given) for name, given in experiment.evaluation.metrics.items()}
    return {**METRICS, "loss": build_loss(experiment), **own}


def build_late(experiment: Experiment) -> StragglerPolicy:
    """What is done about late clients."""
    section = experiment.latency
    if isinstance(section.late, str) and not is_path(section.late):
        return StragglerPolicy(cast(Policy, section.late), section.deadline_seconds)
    found = imported(section.late) if isinstance(section.late, str) else section.late
    found = found(seconds=section.deadline_seconds) if isinstance(found, type) else found
    for part in ("settle", "check", "policy", "seconds"):
        if not hasattr(found, part):
            raise InputError(
                f"latency.late gave a {type(found).__name__}, which lacks {part}: a policy has "
                f"policy, seconds, settle(view, cost, work, mixed) and check(rounds, cost)"
            )
    policy: StragglerPolicy = found
    return policy


def with_clients(experiment: Experiment, clients: int) -> Experiment:
    """The same experiment with as many clients as its data are split over."""
    network = experiment.network.model_copy(update={"clients": clients})
    return experiment.model_copy(update={"network": network})


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
    card = zoo.MODELS.get(spelled(experiment.model.name))
    printed = None if card is None else card.operations
    packed: dict[Link, int] = {}  # bits of a compressed model, where one travels
    if packing is not None and packing.up:
        packed["client-server"] = packed["client-cloud"] = packing.bits(layout.priced)
    if packing is not None and packing.across is not None:
        packed["server-server"] = packing.across.bits(layout.priced)
    personal = Personal.of(experiment.personal.model_dump())
    gradients = 1 if personal is None else personal.gradients  # of an iteration
    priced = latency.cost(
        gradients
        * latency.step_seconds(
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
