"""From an experiment to the objects that carry it out."""

import copy
import dataclasses
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf
from typing import Any, cast

import numpy as np
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from sdfeel.core import outages
from sdfeel.core.arrays import ints
from sdfeel.core.checked_schemes import Checked
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError, UnknownName, unknown
from sdfeel.core.named import errors_naming, imported, is_path, recorded_name
from sdfeel.core.network import Network
from sdfeel.core.scheme import Scheme, check_kinds, defaults, innermost, tolerance
from sdfeel.core.seeds import number
from sdfeel.core.stragglers import Policy, StragglerPolicy
from sdfeel.data.federated import Federated
from sdfeel.engine.attacks import Attack, Backdoor, Lying, poisoned
from sdfeel.engine.base import Engine, ModuleEngine, Workload
from sdfeel.engine.evaluate import LOSSES, Groups, chosen, confusion
from sdfeel.engine.messages import Packing
from sdfeel.engine.optimizers import local_step
from sdfeel.engine.personal import PersonalEngine, Tuned, own_rows
from sdfeel.engine.privacy import Budget
from sdfeel.experiment import effects
from sdfeel.experiment.build_data import (
    build_loss,
    check_tests,
    groups_of,
    known_metrics,
    load_data,
    split_data,
    split_notes,
    with_data,
    with_tests,
)
from sdfeel.experiment.build_liars import (
    build_attack,
    build_rules,
    check_attack,
    rule_notes,
    with_liars,
)
from sdfeel.experiment.build_messages import (
    build_budget,
    build_packing,
    hiding,
    masked,
    protected,
    with_clip,
)
from sdfeel.experiment.build_network import (
    build_changing,
    build_cloud,
    build_network,
    with_epochs,
    with_servers,
)
from sdfeel.experiment.build_prices import any_known, build_cost, kind_of_rates
from sdfeel.experiment.build_training import (
    build_engine,
    build_workload,
    check_metrics,
    check_own_loss,
    preset_of,
)
from sdfeel.experiment.key_rules import Case
from sdfeel.experiment.loading import hinted, rule_of
from sdfeel.experiment.read_whereabouts import build_whereabouts
from sdfeel.experiment.real_networks import links_table
from sdfeel.experiment.schema import DEFAULTS, Experiment, SchemeSection
from sdfeel.experiment.user_files import text_of
from sdfeel.models import zoo
from sdfeel.models.flat import FlatModule, Layout
from sdfeel.schemes import FORMER, SCHEMES, find, without_options
from sdfeel.schemes.robust_rules import guarded
from sdfeel.schemes.sampling import Sampling, sampled
from sdfeel.schemes.server_optimizers import ServerStep, stepped
from sdfeel.sim.simulate import Simulation
from sdfeel.sim.state import State

MOST_CLASSES = 100  # with more, no confusion matrix is kept
EVALUATIONS = 25  # in a run, unless evaluation.every says otherwise


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that a run needs."""

    experiment: Experiment  # with every `auto` decided
    decisions: Decisions
    net: Network  # before the scheme adapted it
    data: Federated
    engine: ModuleEngine
    why: str  # the reason for this engine
    rounds: int  # of all lanes, if nothing ends the run earlier
    packing: Packing | None = None
    notes: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()  # a note if keys of other schemes were ignored
    budget: Budget | None = None  # what others can learn about clients or examples
    attack: Attack | None = None  # who lies, and how
    backdoor: Backdoor | None = None  # measures how well a backdoor works

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
        if not (asked.per_client or asked.per_cluster or asked.own_steps):
            return None
        known, classes = known_metrics(self.experiment), self.data.task != "regression"
        clients = chosen(asked.per_client, known, classes)
        clusters = chosen(asked.per_cluster, known, classes)
        groups = Groups(self.engine.outputs, self.data.parts, self.net.home, clients, clusters)
        if asked.own_steps:
            usual = clients or chosen(["accuracy" if self.data.classes else "loss"], known)
            rows = {who: test for who, (_, test) in own_rows(self._workload).items()}
            groups = replace(groups, tuned=Tuned(self.engine, rows, usual, asked.own_steps))
        data = with_tests(self.data, asked.test_examples, self.experiment.seed)
        return groups_of(data, groups, asked.per_client_every, asked.per_client_on)

    @property
    def _workload(self) -> Workload:
        return build_workload(self.experiment, self.data, build_model(self.experiment, self.data))

    def confusion(self, model: Tensor) -> tuple[tuple[int, ...], ...]:
        """The confusion matrix on the test examples; empty if the experiment does not want one."""
        asked, classes = self.experiment.evaluation, self.data.classes
        if not asked.confusion or self.personal is not None or not 2 <= classes <= MOST_CLASSES:
            return ()
        tests = min(asked.test_examples or len(self.data.test), len(self.data.test))
        return confusion(*self.engine.outputs(model, ints(np.arange(tests)), "test"), classes)

    def simulation(self, engine: Engine | None = None, state: State | None = None) -> Simulation:
        """A simulation from the start, or from a saved state."""
        own = self.engine if engine is None else engine
        stays = None if self.personal is None else self.personal.stays
        average = self.experiment.training.average
        if self.attack is not None and self.attack.clients:
            own = Lying(own, self.attack, self.decisions.net.home)
        parts = self.packing, stays, self.budget, average, self.attack
        return Simulation(self.decisions, own, state, *parts)

    def also_measured(self, model: Tensor) -> dict[str, float]:
        """Further measurements of a model: how well a backdoor works, if there is one."""
        return {} if self.backdoor is None else self.backdoor.success(model)

    @property
    def personal(self) -> PersonalEngine | None:
        """The engine, if clients have models of their own."""
        return self.engine if isinstance(self.engine, PersonalEngine) else None


@dataclass(frozen=True, eq=False)
class RunParts:
    """Objects that a program passes in, which are then not built from the experiment."""

    scheme: Scheme
    net: Network
    cost: Cost | None = None


@dataclass(frozen=True, eq=False)
class Settled:
    """What is learned, from whose data, by which scheme and on which network."""

    experiment: Experiment  # with what the data and the network decide
    scheme: Scheme
    late: StragglerPolicy
    data: Federated
    net: Network
    case: Case
    foreign: tuple[str, ...]  # a note if keys of other schemes were ignored
    notes: tuple[str, ...]  # about keys without effect, because the data are already split


def prepare(experiment: Experiment, parts: RunParts | None = None) -> Prepared:
    """Load, split and build everything that `experiment` names; raise on what cannot work."""
    try:
        return build(settle(experiment, parts), parts)
    except UnknownName as error:
        raise hinted(error) from None


def settle(experiment: Experiment, parts: RunParts | None = None) -> Settled:
    """Find what `experiment` names, and refuse what cannot go together."""
    scheme, foreign = build_scheme(experiment) if parts is None else (parts.scheme, ())
    if parts is not None and type(scheme) not in SCHEMES.values():
        scheme = Checked(scheme)
    groups = [*experiment.evaluation.per_client, *experiment.evaluation.per_cluster]
    known = known_metrics(experiment)  # unknown metrics are refused before any data are read
    if groups:
        chosen(groups, known)
    late = build_late(experiment)
    loaded = load_data(experiment)
    data = split_data(experiment, loaded)
    notes = tuple(split_notes(experiment, loaded, len(data.parts)))
    experiment = with_servers(with_data(experiment, data))
    if groups:
        chosen(groups, known_metrics(experiment), data.task != "regression")
    net = build_network(experiment, data) if parts is None else parts.net
    check_tests(data, experiment.evaluation, len(net.servers))
    case = build_case(experiment, scheme, net)
    effects.check(case)
    return Settled(experiment, scheme, late, data, net, case, foreign, notes)


def build_late(experiment: Experiment) -> StragglerPolicy:
    """The policy for late clients: one of ours, or the user's own."""
    section = experiment.latency
    if isinstance(section.late, str) and not is_path(section.late):
        return StragglerPolicy(cast(Policy, section.late), section.deadline_seconds)
    found = imported(section.late) if isinstance(section.late, str) else section.late
    if isinstance(found, type):
        with errors_naming("latency.late", "a policy"):
            found = found(seconds=section.deadline_seconds)
    for part in ("settle", "check", "policy", "seconds"):
        if not hasattr(found, part):
            raise InputError(
                f"latency.late gave a {type(found).__name__}, which lacks {part}: a policy has "
                f"policy, seconds, settle(view, cost, work, mixed) and check(rounds, cost)"
            )
    policy: StragglerPolicy = found
    return policy


def build_case(experiment: Experiment, scheme: Scheme, net: Network) -> Case:
    """What decides which keys matter; the files that the experiment names are read for it."""
    section, network = experiment.radio, experiment.network
    tolerates, own, where = tolerance(scheme), scheme.adapt(net), network.whereabouts
    changes: tuple[outages.Change, ...] = ()
    if network.changes is not None:
        changes = outages.schedule(text_of(network.changes), network.changes)
        outages.check(changes, net, network.changes)
    named = False, False
    if section.links is not None:
        table = links_table(text_of(section.links), section.links, net.links)
        servers = any_known(table.mbps, table.seconds)
        named = servers, any_known(table.cloud_mbps, table.cloud_seconds)
    clients = None if where is None else build_whereabouts(network, where, net)
    rates, by_round = section.rates, clients is not None and clients.unit == "round"
    case = Case(
        experiment,
        scheme,
        tolerates,
        net,
        own,
        changes,
        named,
        "equal" if rates == "equal" else kind_of_rates(rates, len(net.samples)),
        clients=clients,
    )
    if rates == "whereabouts" and by_round and case.lanes:
        raise InputError(
            f"radio.rates is whereabouts, and {experiment.network.whereabouts} counts rounds, but "
            f"{experiment.scheme.label} has no common round: give the file's times in seconds"
        )
    return case


def build(settled: Settled, parts: RunParts | None = None) -> Prepared:
    """The objects that carry out an experiment: engine, messages, prices and decisions."""
    experiment, data, net, case = settled.experiment, settled.data, settled.net, settled.case
    attack, backdoor, tried = None, None, None
    if experiment.attack.kind != "none":
        experiment = with_liars(experiment, net)
        attack = build_attack(experiment, net)
        data, tried = poisoned(data, attack)
    changing, parted = build_changing(case)
    module = build_model(experiment, data)
    scores = build_loss(experiment) is LOSSES["cross-entropy"]
    zoo.check_fit(module, data.train.first, data.classes if scores else 0)
    if data.test.first.shape != data.train.first.shape:  # a model may take both
        zoo.check_fit(module, data.test.first, 0)
    workload = build_workload(experiment, data, module)
    if workload.training.loss not in LOSSES.values():
        check_own_loss(workload)
    asked = experiment.evaluation
    if asked.metrics or asked.per_client or asked.per_cluster:
        check_metrics(workload, known_metrics(experiment), asked)
    engine, why = build_engine(experiment, workload)
    packing = None
    if experiment.compression != DEFAULTS.compression or experiment.privacy.protects == "clients":
        packing = build_packing(experiment, engine.layout)
    given = None if parts is None else parts.cost
    cost = given or build_cost(experiment, data, net, module, engine.layout, packing)
    known = experiment.seed, local_step(workload.training), settled.late, changing
    decisions = Decisions.of(settled.scheme, net, cost, *known)
    if experiment.network.cloud is not None:
        cloud = build_cloud(experiment.network.cloud, net, changing)
        decisions = replace(decisions, cloud=cloud)
    if attack is not None:
        check_attack(experiment, attack, decisions)
        backdoor = None if tried is None else Backdoor(engine.outputs, tried, attack.target)
    made = Prepared(experiment, decisions, net, data, engine, why, 0, packing)
    made = replace(made, foreign=settled.foreign, attack=attack, backdoor=backdoor)
    if experiment.privacy.protects != "nothing" or experiment.privacy.secure_aggregation:
        made = _private(made, workload, priced=given is None)
    if made.packing is not None and attack is not None:
        made = replace(made, packing=replace(made.packing, liars=attack.clients))
    return _ready(made, settled, parted)


def _private(made: Prepared, workload: Workload, priced: bool) -> Prepared:
    """`made` with clips, noise and masks; if prices are ours (`priced`), masks raise them."""
    experiment, decisions, packing = made.experiment, made.decisions, made.packing
    layout, attack = made.engine.layout, made.attack
    if experiment.privacy.secure_aggregation and priced:
        packing = masked(experiment, packing, decisions.net, layout)
        cost = build_cost(experiment, made.data, made.net, workload.module, layout, packing)
        decisions = decisions.priced(cost)
    experiment, far = with_clip(experiment, decisions, made.engine.initial())
    packing = build_packing(experiment, layout)
    packing = protected(experiment, packing, decisions, layout)
    decisions = hiding(experiment, decisions)
    budget = build_budget(experiment, packing, made.data, workload.training)
    if budget is not None and attack is not None and budget.protects == "clients":
        budget = replace(budget, liars=attack.clients)
    told = () if budget is None else (*far, budget.statement)
    made = replace(made, experiment=experiment, decisions=decisions, packing=packing)
    return replace(made, budget=budget, notes=told)


# Options that count the rounds between two events, and what never happens in too short a run.
RARE = {"tau2": "the servers never meet", "buffer": "the cloud never takes a step"}


def _ready(made: Prepared, settled: Settled, parted: tuple[str, ...]) -> Prepared:
    """`made` with every `auto` decided, and with all notes that the user should read first;
    `parted` are those about servers and links that come and go."""
    experiment, decisions, net, case = made.experiment, made.decisions, made.net, settled.case
    if decisions.late.seconds is not None:
        decisions.check_deadline()
    iterations, shortest = experiment.training.iterations, min(decisions.first_lengths)
    rounds = decisions.expected_rounds(iterations)
    notes = [*settled.notes]
    if iterations < shortest:
        notes.append(
            f"training.iterations = {iterations} is less than a round, and rounds are always "
            f"finished: this run does {shortest:g} iterations"
        )
    bare = innermost(decisions.scheme)
    lengths = decisions.first_lengths  # a run ends by the lanes' mean, before slow ones are done
    few = min(rounds, ceil(iterations * len(lengths) / max(lengths)))
    for option, missed in RARE.items():
        if getattr(bare, option, 0) > few:
            notes.append(
                f"scheme.{option} = {getattr(bare, option)}, but this run has about {few} "
                f"round{'s' * (few != 1)}: {missed}"
            )
    if experiment.network.epochs:
        decisions, net = with_epochs(experiment, decisions, net)
    notes += effects.notes(replace(case, engine=made.engine.name))
    if recorded_name(experiment.robust.cluster) != "none":
        notes += rule_notes(case)
    notes += (*parted, *made.notes)
    experiment = resolved(experiment, settled.scheme, made.data, rounds, made.engine.name)
    made = replace(made, experiment=experiment, decisions=decisions, net=net)
    return replace(made, rounds=rounds, notes=tuple(notes))


def resolved(
    experiment: Experiment, scheme: Scheme, data: Federated, rounds: int, engine: str
) -> Experiment:
    """The same experiment with every `auto` decided, so that later versions run the same."""
    training, evaluation = experiment.training, experiment.evaluation
    if evaluation.every == 0:
        measured = min(evaluation.test_examples or inf, len(data.test))
        measured += min(evaluation.train_examples or inf, len(data.train))
        every = evaluate_every(experiment, data, rounds, measured)
        evaluation = evaluation.model_copy(update={"every": every})
    costly = evaluation.per_client or evaluation.per_cluster or evaluation.own_steps
    if evaluation.per_client_every == 0 and costly:
        steps = 4 * evaluation.own_steps * training.batch_size * len(data.parts)
        every = evaluate_every(experiment, data, rounds, len(data.train) + steps)
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
    whole = preset_of(experiment).iteration_unit == "epoch"
    per_iteration = len(data.train) if whole else len(data.parts) * training.batch_size
    trained = per_iteration * training.iterations / rounds
    cheap = ceil(measured / 4 / (0.08 * trained))
    return max(1, rounds // EVALUATIONS, min(cheap, ceil(rounds / 2)))


def scheme_section(name: Any, scheme: Scheme) -> SchemeSection:
    """The experiment's section for a scheme, with all its options."""
    bare = innermost(scheme)  # usually a dataclass, which a protocol cannot require
    if not dataclasses.is_dataclass(bare) or not isinstance(name, str | type):
        return SchemeSection.model_validate({"name": name})
    options = dataclasses.asdict(cast(Any, bare))  # checked when the scheme was made
    return SchemeSection.model_construct(name=name, **options)


def build_scheme(experiment: Experiment) -> tuple[Scheme, tuple[str, ...]]:
    """The scheme, wrapped in client sampling, robust rules and server steps where they are asked
    for, and a note if keys of other schemes were ignored."""
    scheme, notes = _build_plain(experiment)
    if type(scheme) not in SCHEMES.values():
        scheme = Checked(scheme)
    drawn, robust, section = experiment.sampling, experiment.robust, experiment.server
    if drawn != DEFAULTS.sampling:
        scheme = sampled(scheme, Sampling(drawn.clients, drawn.share))
    if (recorded_name(robust.cluster), recorded_name(robust.servers)) != ("none", "none"):
        scheme = guarded(scheme, *build_rules(experiment), robust.votes)
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
    options = {key: value for key, value in given.items() if key in own}
    if not dataclasses.is_dataclass(kind):
        return without_options(kind), notes
    check_kinds(kind, given=options)  # pydantic would read `true` as 1, and "3" as 3
    try:
        return _reader(kind).validate_python(options), notes
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
        key = key.removesuffix(".int")
        if first["type"] == "value_error":
            raise InputError(first["msg"].removeprefix("Value error, ")) from None
        raise InputError(f"scheme.{key} must be {rule_of(first)}, got {first['input']!r}") from None


@lru_cache(maxsize=64)
def _reader(kind: type[Scheme]) -> TypeAdapter[Any]:
    """Reads a scheme's options; a planner builds thousands of schemes."""
    return TypeAdapter(kind)


def build_model(experiment: Experiment, data: Federated) -> nn.Module:
    return zoo.build(
        experiment.model.name,
        data.shape,
        data.outputs,
        number(experiment.seed, "model"),
        **experiment.model.options,
    )


def layout_of(module: nn.Module) -> Layout:
    """The tensors in a row of this model, before any engine is built."""
    return FlatModule(copy.deepcopy(module)).layout
