"""From layers to stages, each one kernel, or the reason why not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import nn

from sdfeel.engine.base import Training
from sdfeel.engine.evaluate import LOSSES, Loss
from sdfeel.engine.native.layers import (
    Average,
    Conv,
    Drop,
    Embed,
    Layer,
    Linear,
    Norm,
    Pool,
    Relu,
    Residual,
    SampleNorm,
    Shape,
    Smooth,
    WordMean,
)
from sdfeel.engine.native.trace import Unsupported, layers

MOST_PRODUCTS = 1e9  # multiplications of an example's forward pass; beyond, torch is as fast
LARGEST_BATCH = 1024
LossName = Literal["cross-entropy", "mse"]


@dataclass(frozen=True)
class Stage:
    """One kernel: a layer that does the work, and the layers after it that it absorbs.

    Without `main` it is a ReLU or a dropout on its own, or the sum of two branches.
    """

    shape: Shape  # of the input
    main: Conv | Linear | Norm | Pool | Average | Smooth | SampleNorm | Embed | None
    pool: bool = False  # 2x2 after a convolution
    relu: bool = False
    drop: Drop | None = None
    branches: "tuple[tuple[Stage, ...], tuple[Stage, ...]] | None" = None  # whose sum it is
    result: Shape = ()  # of that sum

    @property
    def learns(self) -> bool:
        if self.branches is not None:
            return any(stage.learns for branch in self.branches for stage in branch)
        if isinstance(self.main, Norm | SampleNorm):
            return self.main.weight is not None
        return isinstance(self.main, Conv | Linear | Embed)


def all_stages(stages: Sequence[Stage]) -> Iterator[Stage]:
    """All stages, also those of branches."""
    for stage in stages:
        yield stage
        for branch in stage.branches or ():
            yield from all_stages(branch)


@dataclass(frozen=True)
class ModelPlan:
    """A model as the native engine runs it."""

    shape: Shape  # of an example
    classes: int  # numbers that it gives
    stages: tuple[Stage, ...] = field(repr=False)
    momentum: bool  # momentum or weight decay
    shift: bool = False  # tasks have shifts, which cost a little
    nesterov: bool = False
    adam: bool = False
    decoupled: bool = False  # it is AdamW
    loss: LossName = "cross-entropy"

    @property
    def words(self) -> int | None:
        """The size of the vocabulary, if examples are words."""
        main = self.stages[0].main if self.stages else None
        return main.words if isinstance(main, Embed) else None

    @property
    def needs_two(self) -> bool:
        """Does a batch of one example have no variance somewhere?"""
        norms = [stage.main for stage in all_stages(self.stages) if isinstance(stage.main, Norm)]
        return any(prod(norm.shape[1:]) == 1 for norm in norms)

    @cached_property
    def products(self) -> int:
        """Multiplications of one example's forward pass."""
        total = 0
        for main in (stage.main for stage in all_stages(self.stages)):
            if isinstance(main, Conv):
                total += prod(main.result) * main.shape[0] * prod(main.kernel)
            elif isinstance(main, Linear):
                total += main.size * main.out
        return total


def unsupported(module: nn.Module, training: Training, shape: Shape) -> str | None:
    """Why the native engine does not train this model, in one line; None if it does.

    >>> from sdfeel.engine.base import Training
    >>> unsupported(nn.Linear(4, 4), Training(0.1, 10, "lbfgs"), (4,))
    'its optimiser is lbfgs, not SGD, Adam or AdamW'
    """
    plan = lower(module, training, shape)
    return plan if isinstance(plan, str) else None


def lower(module: nn.Module, training: Training, shape: Shape) -> ModelPlan | str:
    """The plan for a model, or the reason why there is none."""
    reason = _fault(module, training)
    if reason:
        return reason
    try:
        found, result = layers(module, tuple(shape))
    except Unsupported as fault:
        return str(fault)
    if len(result) != 1:
        return f"its output for an example is {result}, not one line of numbers"
    momentum = bool(training.options.get("momentum") or training.options.get("weight_decay"))
    nesterov = bool(training.options.get("nesterov"))
    optimizer, loss = training.optimizer.lower(), loss_name(training.loss)
    adam, decoupled = optimizer != "sgd", optimizer == "adamw"
    assert loss is not None  # or there was a fault
    plan = ModelPlan(
        *(tuple(shape), result[0], fuse(found), momentum, False, nesterov, adam, decoupled, loss)
    )
    if not any(stage.learns for stage in plan.stages):
        return "it has no layer that learns"
    if plan.products > MOST_PRODUCTS:
        return (
            f"it needs {plan.products / 1e6:.0f} million multiplications for an example, "
            f"more than {MOST_PRODUCTS / 1e6:.0f}: torch is as fast"
        )
    return plan


def fuse(found: Sequence[Layer]) -> tuple[Stage, ...]:
    """Let convolutions and linear layers absorb what follows them.

    ReLU, 2x2 pooling and the dropout of whole channels commute (dropout multiplies by a number
    that is not negative), so their order does not matter; dropout of elements does not commute
    with pooling.
    """
    stages: list[Stage] = []
    for layer in found:
        taken = _taken(stages[-1], layer) if stages else None
        if taken is not None:
            stages[-1] = taken
        elif isinstance(layer, Residual):
            branches = fuse(layer.body), fuse(layer.other)
            stages.append(Stage(layer.shape, None, branches=branches, result=layer.result))
        elif isinstance(layer, Embed):
            stages.append(Stage((layer.length,), layer))
        elif isinstance(layer, Conv | Norm | Pool | Average | Smooth | SampleNorm):
            stages.append(Stage(layer.shape, layer))
        elif isinstance(layer, Linear):
            stages.append(Stage((layer.size,), layer))
        elif isinstance(layer, Relu):
            stages.append(Stage(layer.shape, None, relu=True))
        elif isinstance(layer, Drop) and layer.p > 0:
            stages.append(Stage(layer.shape, None, drop=layer))
    return tuple(stages)


ALONE = Pool | Average | Smooth | SampleNorm | Embed  # they absorb nothing


def _taken(last: Stage, layer: Layer) -> Stage | None:
    """`last` with `layer` inside, if that is possible."""
    conv = isinstance(last.main, Conv)
    if isinstance(layer, WordMean):
        assert isinstance(last.main, Embed)
        return replace(last, main=replace(last.main, mean=True))
    if isinstance(layer, Relu) and not isinstance(last.main, ALONE):
        return replace(last, relu=True)
    if isinstance(layer, Drop) and layer.p == 0:
        return last
    closed = isinstance(last.main, Norm | ALONE) or last.branches is not None
    if isinstance(layer, Drop) and last.drop is None and not closed:
        return replace(last, drop=layer) if layer.channels or not conv else None
    if isinstance(layer, Pool) and conv and layer.by_two and not last.pool:
        return replace(last, pool=True)
    return None


def _fault(module: nn.Module, training: Training) -> str | None:
    """Why the engine cannot train this, as far as one can tell before looking at layers."""
    if training.private is not None:
        return "its steps clip every example's gradient (privacy.protects = examples)"
    if loss_name(training.loss) is None:
        return "its loss is neither cross_entropy nor mse_loss"
    if fault := _optimizer_fault(training):
        return fault
    if training.proximal:
        return "its training has a proximal term"
    if training.clip_norm is not None:
        return f"training.clip_norm is {training.clip_norm:g}, and it does not clip gradients"
    if training.penalties:
        return f"its training has penalties ({', '.join(training.penalties)})"
    if training.batch_size > LARGEST_BATCH:
        return f"its batches of {training.batch_size} are larger than {LARGEST_BATCH}"
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            return f"its parameter {name} is frozen"
        if parameter.dtype != torch.float32:
            return f"its parameter {name} is {parameter.dtype}, not float32"
    return None


OPTIMIZERS = {  # what they are called, and the options that they have besides weight decay
    "sgd": ("SGD", ("momentum", "nesterov")),
    "adam": ("Adam", ("betas", "eps")),
    "adamw": ("AdamW", ("betas", "eps")),
}


def _optimizer_fault(training: Training) -> str | None:
    name = training.optimizer.lower()
    if training.own is not None or name not in OPTIMIZERS:
        return f"its optimiser is {training.optimizer}, not SGD, Adam or AdamW"
    label, known = OPTIMIZERS[name]
    for option, value in training.options.items():
        if value and option not in (*known, "weight_decay"):
            return f"{label} has the option {option}"
        if not value and option != "eps":
            continue
        if option == "betas":
            fits = len(value) == 2 and all(isinstance(b, float) and 0 <= b < 1 for b in value)
        else:
            fits = isinstance(value, int | float) and bool(np.float32(value) > 0)
        if not fits:
            return f"{label} has the {option} {value!r}"
    return None


def loss_name(loss: Loss) -> LossName | None:
    """What a loss is, if it is known: torch's function, or its object with nothing but defaults."""
    if type(loss) is nn.CrossEntropyLoss:
        usual = (loss.weight, loss.ignore_index, loss.reduction, loss.label_smoothing)
        return "cross-entropy" if usual == (None, -100, "mean", 0.0) else None
    if loss is nn.functional.cross_entropy:
        return "cross-entropy"
    if type(loss) is nn.MSELoss:
        return "mse" if loss.reduction == "mean" else None
    return "mse" if loss in (nn.functional.mse_loss, LOSSES["mse"]) else None
