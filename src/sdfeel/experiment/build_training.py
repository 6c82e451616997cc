"""From an experiment to how a client takes its local iterations, and to what computes them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sdfeel.core.errors import InputError
from sdfeel.core.learning_rates import schedule
from sdfeel.core.named import imported, is_path, recorded_name
from sdfeel.core.scheme import Local
from sdfeel.data.federated import Examples, Federated
from sdfeel.engine import optimizers
from sdfeel.engine.base import ModuleEngine, Penalty, PrivateSteps, Training, Workload, penalties
from sdfeel.engine.evaluate import METRICS, Metric, check_loss, measured
from sdfeel.engine.parts import Personal
from sdfeel.engine.personal import PersonalEngine
from sdfeel.engine.select import choose
from sdfeel.experiment.build_data import build_loss, known_metrics, sample, with_tests
from sdfeel.experiment.schema import Experiment
from sdfeel.experiment.sections import EvaluationSection
from sdfeel.models.zoo import taken
from sdfeel.radio import latency


def build_training(experiment: Experiment) -> Training:
    """How a client takes its local iterations."""
    training, privacy = experiment.training, experiment.privacy
    private, rates, regularised = None, None, dict[str, Penalty]()
    if privacy.protects == "examples":
        private = PrivateSteps(privacy.clip or 1.0, privacy.noise, experiment.seed)
    constant = isinstance(training.schedule, str) and training.schedule == "constant"
    if not constant or training.schedule_options or training.warmup:
        rates = schedule(
            training.schedule,
            training.schedule_options,
            training.warmup,
            training.schedule_unit,
            training.iterations,
        )
    if training.penalties:
        regularised = penalties(training.penalties)
    name, own = training.optimizer, None
    if not isinstance(name, str) or is_path(name):
        name, own = own_optimizer(name)
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
        penalties=regularised,
        iteration=preset_of(experiment).iteration_unit,
        private=private,
        schedule=rates,
        clip_norm=training.clip_norm,
        device=training.device,
    )


def build_workload(
    experiment: Experiment, data: Federated, module: nn.Module, secret: int | None = None
) -> Workload:
    """What an engine is built around; noise in its steps is drawn from `secret`, or by the seed."""
    training = build_training(experiment)
    if training.private is not None and secret is not None:
        training = replace(training, private=replace(training.private, secret=secret))
    asked, seed, known = experiment.evaluation, experiment.seed, known_metrics(experiment)
    return Workload(
        module,
        data.train,
        data.parts,
        sample(data.test, asked.test_examples, seed),
        training,
        seed,
        metrics={name: known[name] for name in asked.metrics},
        measured=sample(
            data.train if data.honest is None else data.honest, asked.train_examples, seed
        ),
        tests=None if data.tests is None else with_tests(data, asked.test_examples, seed).tests,
    )


def check_own_loss(workload: Workload) -> None:
    """Refuse a loss that training cannot use, tried on the outputs for a first batch."""
    training = workload.training
    found = _tried(workload, workload.train, training.batch_size)
    if found is not None:
        check_loss(training.loss, *found)


def _tried(workload: Workload, data: Examples, count: int) -> tuple[Tensor, Tensor] | None:
    """The model's outputs for the first examples, and their targets. None if the model fails: in
    the order in which clients have them, the same examples may be fine."""
    module, (x, y) = workload.module, data.block(0, count)
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(taken(module, x))
    except Exception:
        return None
    finally:
        module.train(was_training)
    return outputs, y.to(outputs.dtype) if y.is_floating_point() else y


def check_metrics(
    workload: Workload, known: Mapping[str, Metric], asked: EvaluationSection
) -> None:
    """Refuse a built-in metric that does not suit the model's outputs."""
    names = dict.fromkeys([*asked.metrics, *asked.per_client, *asked.per_cluster])
    ours = [name for name in names if any(known[name] is each for each in METRICS.values())]
    found = _tried(workload, workload.test, 2) if ours else None
    if found is not None:
        for name in ours:
            measured(name, known[name], *found)


def build_engine(experiment: Experiment, workload: Workload) -> tuple[ModuleEngine, str]:
    """The engine, and why it was chosen."""
    kind, workers = experiment.training.engine, experiment.training.workers or None
    if experiment.personal.method == "none":
        return choose(kind, workload, workers)
    personal = Personal.of(experiment.personal.model_dump())
    if personal.method == "fedrep" and kind == "native":
        raise InputError(
            "personal.method = fedrep trains one part of a model at a time, which the native "
            "engine cannot do: choose training.engine=auto"
        )
    engine = PersonalEngine(personal, workload, kind, workers)
    return engine, engine.why


def own_optimizer(given: Any) -> tuple[str, Any]:
    """The name of a class of optimisers and, where it is not one of torch's, the class itself."""
    found = imported(given) if isinstance(given, str) else given
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise InputError(
            f"training.optimizer must be the name of one of torch's optimisers, such as adam, or "
            f"an optimiser class, got {getattr(found, '__name__', type(found).__name__)}"
        )
    known = getattr(torch.optim, found.__name__, None) is found
    return (found.__name__.lower(), None) if known else (recorded_name(given), found)


def local_step(experiment: Experiment) -> Local:
    """What a scheme may know about the local step."""
    return optimizers.local_step(build_training(experiment))


def preset_of(experiment: Experiment) -> latency.Reading:
    """The preset with the experiment's own choices on top."""
    section = experiment.latency
    keys = ("samples_per_iteration", "backward_factor", "iteration_unit")
    chosen = {key: getattr(section, key) for key in keys if getattr(section, key) is not None}
    return replace(latency.PRESETS[section.preset], **chosen)
