"""What the native engine can run, or why it cannot: models, optimisers, losses."""

from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import nn

from sdfeel.engine.base import Training
from sdfeel.engine.native.layers import Conv, Drop, Layer, Linear, Norm, Pool, Relu, Shape
from sdfeel.engine.native.trace import Unsupported, layers

MOST_PRODUCTS = 1e9  # multiplications of an example's forward pass; beyond, torch is as fast
LARGEST_BATCH = 1024


@dataclass(frozen=True)
class Stage:
    """One kernel: a layer that does the work, and the layers after it that it absorbs.

    Without `main` it is a ReLU or a dropout on its own.
    """

    shape: Shape  # of the input
    main: Conv | Linear | Norm | Pool | None
    pool: bool = False  # 2x2 after a convolution
    relu: bool = False
    drop: Drop | None = None

    @property
    def learns(self) -> bool:
        if isinstance(self.main, Norm):
            return self.main.weight is not None
        return isinstance(self.main, Conv | Linear)


@dataclass(frozen=True)
class Plan:
    """A model as the native engine runs it."""

    shape: Shape  # of an example
    classes: int
    stages: tuple[Stage, ...] = field(repr=False)
    momentum: bool  # momentum or weight decay
    shift: bool = False  # tasks have shifts, which cost a little

    @property
    def products(self) -> int:
        """Multiplications of one example's forward pass."""
        total = 0
        for main in (stage.main for stage in self.stages):
            if isinstance(main, Conv):
                total += prod(main.result) * main.shape[0] * prod(main.kernel)
            elif isinstance(main, Linear):
                total += main.size * main.out
        return total


def unsupported(module: nn.Module, training: Training, shape: Shape) -> str | None:
    """Why the native engine does not train this model, in one line; None if it does.

    >>> from sdfeel.engine.base import Training
    >>> unsupported(nn.Linear(4, 4), Training(0.1, 10, "adam"), (4,))
    'its optimiser is adam, not SGD'
    """
    plan = lower(module, training, shape)
    return plan if isinstance(plan, str) else None


def lower(module: nn.Module, training: Training, shape: Shape) -> Plan | str:
    """The plan for a model, or the reason why there is none."""
    reason = _fault(module, training)
    if reason:
        return reason
    try:
        found, result = layers(module, tuple(shape))
    except Unsupported as fault:
        return str(fault)
    if len(result) != 1:
        return f"it gives {result} for an example, not one line of scores"
    momentum = bool(training.options.get("momentum") or training.options.get("weight_decay"))
    plan = Plan(tuple(shape), result[0], fuse(found), momentum)
    if not any(stage.learns for stage in plan.stages):
        return "it has no layer that learns"
    if plan.products > MOST_PRODUCTS:
        return (
            f"it needs {plan.products / 1e6:.0f} million multiplications for an example, "
            f"more than {MOST_PRODUCTS / 1e6:.0f}: torch is as fast"
        )
    return plan


def fuse(found: list[Layer]) -> tuple[Stage, ...]:
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
        elif isinstance(layer, Conv | Norm | Pool):
            stages.append(Stage(layer.shape, layer))
        elif isinstance(layer, Linear):
            stages.append(Stage((layer.size,), layer))
        elif isinstance(layer, Relu):
            stages.append(Stage(layer.shape, None, relu=True))
        elif layer.p > 0:
            stages.append(Stage(layer.shape, None, drop=layer))
    return tuple(stages)


def _taken(last: Stage, layer: Layer) -> Stage | None:
    """`last` with `layer` inside, if that is possible."""
    conv = isinstance(last.main, Conv)
    if isinstance(layer, Relu) and not isinstance(last.main, Pool):
        return replace(last, relu=True)
    if isinstance(layer, Drop) and layer.p == 0:
        return last
    if isinstance(layer, Drop) and last.drop is None and not isinstance(last.main, Norm | Pool):
        return replace(last, drop=layer) if layer.channels or not conv else None
    if isinstance(layer, Pool) and conv and layer.by_two and not last.pool:
        return replace(last, pool=True)
    return None


def _fault(module: nn.Module, training: Training) -> str | None:
    """Why there is no need to check layers or shapes."""
    if training.loss is not nn.functional.cross_entropy:
        return "its loss is not cross_entropy"
    if training.optimizer.lower() != "sgd":
        return f"its optimiser is {training.optimizer}, not SGD"
    for name, value in training.options.items():
        if value and name not in ("momentum", "weight_decay"):
            return f"SGD has the option {name}"
        if value and not (isinstance(value, int | float) and value > 0):
            return f"SGD has the {name} {value!r}"
    if training.proximal:
        return "its training has a proximal term"
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
