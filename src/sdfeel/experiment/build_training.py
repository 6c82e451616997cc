"""From an experiment to how a client takes its local iterations."""

from dataclasses import replace
from typing import Any

import torch

from sdfeel.core.errors import InputError
from sdfeel.core.learning_rates import schedule
from sdfeel.core.named import imported, is_path, spelled
from sdfeel.core.scheme import Local
from sdfeel.engine import optimizers
from sdfeel.engine.base import PrivateSteps, Training, penalties
from sdfeel.experiment.build_data import build_loss
from sdfeel.experiment.schema import Experiment
from sdfeel.radio import latency


def build_training(experiment: Experiment) -> Training:
    """How a client takes its local iterations."""
    training, privacy, private = experiment.training, experiment.privacy, None
    if privacy.protects == "examples":
        private = PrivateSteps(privacy.clip or 1.0, privacy.noise, experiment.seed)
    name, own = optimizer_of(training.optimizer)
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
        private=private,
        schedule=schedule(
            training.schedule,
            training.schedule_options,
            training.warmup,
            training.schedule_unit,
            training.iterations,
        ),
        clip_norm=training.clip_norm,
        device=training.device,
    )


def optimizer_of(given: Any) -> tuple[str, Any]:
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


def local_step(experiment: Experiment) -> Local:
    """What a scheme may know about the local step."""
    return optimizers.local_step(build_training(experiment))


def reading(experiment: Experiment) -> latency.Reading:
    """The preset with the experiment's own choices on top."""
    section = experiment.latency
    keys = ("samples_per_iteration", "backward_factor", "iteration_unit")
    chosen = {key: getattr(section, key) for key in keys if getattr(section, key) is not None}
    return replace(latency.PRESETS[section.preset], **chosen)
