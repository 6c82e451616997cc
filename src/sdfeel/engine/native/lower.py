"""From layers to stages, each one kernel, and to their C++; or the reason why not."""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from sdfeel.engine.base import Training
from sdfeel.engine.dropout import WORDS
from sdfeel.engine.evaluate import Loss
from sdfeel.engine.native.trace import (
    Average,
    Conv,
    Drop,
    Layer,
    Linear,
    Norm,
    Pool,
    Relu,
    SampleNorm,
    Shape,
    Smooth,
    Unsupported,
    layers,
)
from sdfeel.models.flat import VARIANCE_FLOOR

MOST_PRODUCTS = 1e9  # multiplications of an example's forward pass; beyond, torch is as fast
LARGEST_BATCH = 1024


@dataclass(frozen=True)
class Stage:
    """One kernel: a layer that does the work, and the layers after it that it absorbs.

    Without `main` it is a ReLU or a dropout on its own.
    """

    shape: Shape  # of the input
    main: Conv | Linear | Norm | Pool | Average | Smooth | SampleNorm | None
    pool: bool = False  # 2x2 after a convolution
    relu: bool = False
    drop: Drop | None = None

    @property
    def learns(self) -> bool:
        if isinstance(self.main, Norm | SampleNorm):
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
    nesterov: bool = False

    @property
    def needs_two(self) -> bool:
        """Does a batch of one example have no variance somewhere?"""
        norms = [stage.main for stage in self.stages if isinstance(stage.main, Norm)]
        return any(prod(norm.shape[1:]) == 1 for norm in norms)

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
    nesterov = bool(training.options.get("nesterov"))
    plan = Plan(tuple(shape), result[0], fuse(found), momentum, nesterov=nesterov)
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
        elif isinstance(layer, Conv | Norm | Pool | Average | Smooth | SampleNorm):
            stages.append(Stage(layer.shape, layer))
        elif isinstance(layer, Linear):
            stages.append(Stage((layer.size,), layer))
        elif isinstance(layer, Relu):
            stages.append(Stage(layer.shape, None, relu=True))
        elif layer.p > 0:
            stages.append(Stage(layer.shape, None, drop=layer))
    return tuple(stages)


ALONE = Pool | Average | Smooth | SampleNorm  # they absorb nothing


def _taken(last: Stage, layer: Layer) -> Stage | None:
    """`last` with `layer` inside, if that is possible."""
    conv = isinstance(last.main, Conv)
    if isinstance(layer, Relu) and not isinstance(last.main, ALONE):
        return replace(last, relu=True)
    if isinstance(layer, Drop) and layer.p == 0:
        return last
    if isinstance(layer, Drop) and last.drop is None and not isinstance(last.main, Norm | ALONE):
        return replace(last, drop=layer) if layer.channels or not conv else None
    if isinstance(layer, Pool) and conv and layer.by_two and not last.pool:
        return replace(last, pool=True)
    return None


def _fault(module: nn.Module, training: Training) -> str | None:
    """Why there is no need to check layers or shapes."""
    if training.private is not None:
        return "its steps clip every example's gradient (privacy.protects = examples)"
    if not _is_cross_entropy(training.loss):
        return "its loss is not cross_entropy"
    if training.optimizer.lower() != "sgd":
        return f"its optimiser is {training.optimizer}, not SGD"
    for name, value in training.options.items():
        if value and name not in ("momentum", "weight_decay", "nesterov"):
            return f"SGD has the option {name}"
        if value and not (isinstance(value, int | float) and value > 0):
            return f"SGD has the {name} {value!r}"
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


def _is_cross_entropy(loss: Loss) -> bool:
    """torch's function, or its object with nothing but defaults."""
    if type(loss) is not nn.CrossEntropyLoss:
        return loss is nn.functional.cross_entropy
    usual = (loss.weight, loss.ignore_index, loss.reduction, loss.label_smoothing)
    return usual == (None, -100, "mean", 0.0)


CPP = {True: "true", False: "false"}
HEADERS = (
    "batch_norm.hpp",
    "conv.hpp",
    "entry.hpp",
    "first_linear.hpp",
    "linear.hpp",
    "pointwise.hpp",
    "sample_norm.hpp",
    "smooth.hpp",
)


def source(plan: Plan, batch: int) -> str:
    """The C++ of a model for batches of up to `batch` examples."""
    first = next(i for i, stage in enumerate(plan.stages) if stage.learns)
    size = int(np.prod(plan.shape))
    lines = [f'#include "{header}"' for header in HEADERS] + [
        "namespace {",
        f"constexpr int BATCH = {batch};",
        f"using Update = sdfeel::Step<{', '.join(CPP[each] for each in _steps(plan))}>;",
    ]
    names = []
    for i, stage in enumerate(plan.stages):
        lines += _layer(i, stage, sends_gradient=i > first)
        kind = KINDS[type(stage.main)]
        update = ", Update" if isinstance(stage.main, LEARNING) else ""
        names.append(f"sdfeel::{kind}<Layer{i}, BATCH{update}>")
    lines += [
        f"using Loss = sdfeel::CrossEntropy<{plan.classes}, BATCH>;",
        f"using Net = sdfeel::Chain<BATCH, {size}, {first}, Loss,",
        ",\n".join(f"    {name}" for name in names) + ">;",
        "} // namespace",
        "SDFEEL_ENTRY(Net)",
    ]
    return "\n".join(lines) + "\n"


def _steps(plan: Plan) -> tuple[bool, ...]:
    """What the steps of sgd.hpp have."""
    return plan.momentum, plan.shift, *([True] if plan.nesterov else [])


def _layer(i: int, stage: Stage, sends_gradient: bool) -> list[str]:
    drop = stage.drop
    flags = {"sends_gradient": sends_gradient, "relu": stage.relu, "pool": stage.pool}
    values = ", ".join(f"{name} = {value}" for name, value in _numbers(stage).items())
    switches = ", ".join(f"{name} = {CPP[value]}" for name, value in flags.items())
    return [
        *(_dropout(i, drop) if drop is not None else []),
        f"struct Layer{i} {{",
        f"    static constexpr int {values};",
        f"    static constexpr bool {switches};",
        *_own(stage.main),
        f"    using Drop = {'sdfeel::NoDropout' if drop is None else f'sdfeel::Dropout<Drop{i}>'};",
        "};",
    ]


def _numbers(stage: Stage) -> dict[str, int]:
    """Sizes, and places in the row; -1 means none."""
    main = stage.main
    numbers: dict[str, int] = {}
    if isinstance(main, LEARNING):
        places = {"weight": main.weight, "bias": main.bias}
        numbers |= {name: -1 if place is None else place for name, place in places.items()}
    if isinstance(main, Conv | Pool | Average):
        for name in ("kernel", "stride", "padding"):
            numbers[f"{name}_y"], numbers[f"{name}_x"] = getattr(main, name)
    if isinstance(main, Conv):
        return numbers | dict(zip(("in", "height", "width"), main.shape, strict=True), out=main.out)
    if isinstance(main, Linear):
        return numbers | {"in": main.size, "out": main.out}
    if isinstance(main, SampleNorm):
        numbers |= {"groups": main.groups, "each": main.each}
    # One line of numbers is a single row of a single plane; for norms, its channels.
    line = (*stage.shape, 1, 1) if isinstance(main, Norm | SampleNorm) else (1, 1, *stage.shape)
    planes = stage.shape if len(stage.shape) == 3 else line
    return numbers | dict(zip(("channels", "height", "width"), planes, strict=True))


def _own(main: object) -> list[str]:
    """What only this kind of stage needs to know."""
    if isinstance(main, Norm):
        return _statistics(main)
    if isinstance(main, SampleNorm):
        return [f"    static constexpr float epsilon = {_float(main.epsilon)};"]
    if isinstance(main, Average):
        return [f"    static constexpr bool padded = {CPP[main.padded]};"]
    if isinstance(main, Smooth):
        value = (
            f"    struct Parameter {{ static constexpr double parameter = {main.parameter!r}; }};"
        )
        return [value, f"    using Function = sdfeel::{main.name}<Parameter>;"]
    return []


def _statistics(norm: Norm) -> list[str]:
    values = {"epsilon": norm.epsilon, "momentum": norm.momentum, "floor": VARIANCE_FLOOR}
    floats = ", ".join(f"{name} = {_float(value)}" for name, value in values.items())
    return [
        f"    static constexpr int mean = {norm.mean}, variance = {norm.variance};",
        f"    static constexpr float {floats};",
    ]


def _dropout(i: int, drop: Drop) -> list[str]:
    threshold = min(int(drop.p * WORDS), WORDS - 1)
    scale = 0.0 if drop.p == 1 else 1 / (1 - drop.p)
    return [
        f"struct Drop{i} {{",
        f"    static constexpr bool channels = {CPP[drop.channels]};",
        f"    static constexpr uint64_t number = {drop.number}, threshold = {threshold}u;",
        f"    static constexpr float scale = {_float(scale)}; // {scale:g}",
        "};",
    ]


LEARNING = Conv | Linear | Norm | SampleNorm
KINDS: dict[type[Any], str] = {
    Conv: "Conv",
    Linear: "AnyLinear",
    Norm: "BatchNorm",
    Pool: "MaxPool",
    Average: "AvgPool",
    Smooth: "Smooth",
    SampleNorm: "SampleNorm",
    type(None): "Pointwise",
}


def _float(value: float) -> str:
    return f"{float(np.float32(value)).hex()}f"
