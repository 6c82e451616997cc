"""A plan's C++: the numbers of its stages, and which templates they are for."""

from math import prod
from typing import Any

import numpy as np

from sdfeel.engine.dropout import WORDS
from sdfeel.engine.native.layers import (
    Average,
    Conv,
    Drop,
    Embed,
    Linear,
    Norm,
    Pool,
    SampleNorm,
    Shape,
    Smooth,
)
from sdfeel.engine.native.lower import ModelPlan, Stage, all_stages
from sdfeel.models.flat import VARIANCE_FLOOR

CPP = {True: "true", False: "false"}


def source(plan: ModelPlan, batch: int) -> str:
    """The C++ of a model for batches of up to `batch` examples."""
    first = next(i for i, stage in enumerate(plan.stages) if stage.learns)
    lines: list[str] = []
    names = [_written(f"{i}", stage, i > first, lines) for i, stage in enumerate(plan.stages)]
    value, loss = "int64_t" if plan.words else "float", LOSS_NAMES[plan.loss]
    return "\n".join(
        [
            *(f'#include "{header}"' for header in _headers(plan)),
            "namespace {",
            f"constexpr int BATCH = {batch};",
            f"using Update = {_update(plan)};",
            *lines,
            f"using Loss = sdfeel::{loss}<{plan.classes}, BATCH>;",
            f"using Net = sdfeel::Chain<BATCH, {value}, {prod(plan.shape)}, {first}, Update, Loss,",
            ",\n".join(f"    {name}" for name in names) + ">;",
            "} // namespace",
            "SDFEEL_MODEL_C_API(Net)",
            "",
        ]
    )


def _headers(plan: ModelPlan) -> list[str]:
    """What a model needs, and no more: every header takes time to compile."""
    found = {HEADERS[type(stage.main)] for stage in all_stages(plan.stages)}
    sums = any(stage.branches is not None for stage in all_stages(plan.stages))
    optional = {"residual.hpp": sums, "adam.hpp": plan.adam}
    return sorted(
        {"model_c_api.hpp", "losses.hpp", *found, *(h for h, is_in in optional.items() if is_in)}
    )


def _update(plan: ModelPlan) -> str:
    if plan.adam:
        return f"sdfeel::Adam<{CPP[plan.shift]}{', true' if plan.decoupled else ''}>"
    given = (plan.momentum, plan.shift, *([True] if plan.nesterov else []))
    return f"sdfeel::Step<{', '.join(CPP[each] for each in given)}>"


def _written(name: str, stage: Stage, sends_gradient: bool, lines: list[str]) -> str:
    """The type of a stage; the definitions that it needs are added to `lines`."""
    lines += _layer(name, stage, sends_gradient)
    if stage.branches is None:
        update = ", Update" if isinstance(stage.main, LEARNING) else ""
        return f"sdfeel::{KINDS[type(stage.main)]}<Layer{name}, BATCH{update}>"
    sizes = ", ".join(map(str, _planes(stage.result)))
    found = []
    for which, branch in zip(("a", "b"), stage.branches, strict=True):
        inner = [_written(f"{name}{which}{i}", each, True, lines) for i, each in enumerate(branch)]
        end = f"sdfeel::Joint<{sizes}, BATCH>"
        lines.append(f"using Branch{name}{which} = sdfeel::Line<0, {', '.join([end, *inner])}>;")
        found.append(f"Branch{name}{which}")
    return f"sdfeel::Residual<Layer{name}, BATCH, {', '.join(found)}>"


def _layer(i: str, stage: Stage, sends_gradient: bool) -> list[str]:
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
        places = {"weight": main.weight, "bias": getattr(main, "bias", None)}
        numbers |= {name: -1 if place is None else place for name, place in places.items()}
    if isinstance(main, Conv | Pool | Average):
        for name in ("kernel", "stride", "padding"):
            numbers[f"{name}_y"], numbers[f"{name}_x"] = getattr(main, name)
    if isinstance(main, Conv):
        return numbers | dict(zip(("in", "height", "width"), main.shape, strict=True), out=main.out)
    if isinstance(main, Linear):
        return numbers | {"in": main.size, "out": main.out}
    if isinstance(main, Embed):
        padding = -1 if main.padding is None else main.padding
        sizes = {"words": main.words, "size": main.size, "length": main.length}
        return numbers | sizes | {"padding": padding}
    if stage.branches is not None:
        names = ("out_channels", "out_height", "out_width")
        numbers |= dict(zip(names, _planes(stage.result), strict=True))
    if isinstance(main, SampleNorm):
        numbers |= {"groups": main.groups, "each": main.each}
    # One line of numbers is a single row of a single plane; for norms, its channels.
    norm = isinstance(main, Norm | SampleNorm) and len(stage.shape) == 1
    planes = (*stage.shape, 1, 1) if norm else _planes(stage.shape)
    return numbers | dict(zip(("channels", "height", "width"), planes, strict=True))


def _planes(shape: Shape) -> tuple[int, int, int]:
    """Channels, height and width: a line is one row of one plane."""
    channels, height, width = shape if len(shape) == 3 else (1, 1, prod(shape))
    return channels, height, width


def _own(main: object) -> list[str]:
    """What only this kind of stage needs to know."""
    if isinstance(main, Norm):
        return _statistics(main)
    if isinstance(main, SampleNorm):
        return [f"    static constexpr float epsilon = {_float(main.epsilon)};"]
    if isinstance(main, Embed):
        return [f"    static constexpr bool mean = {CPP[main.mean]};"]
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


def _dropout(i: str, drop: Drop) -> list[str]:
    threshold = min(int(drop.p * WORDS), WORDS - 1)
    scale = 0.0 if drop.p == 1 else 1 / (1 - drop.p)
    return [
        f"struct Drop{i} {{",
        f"    static constexpr bool channels = {CPP[drop.channels]};",
        f"    static constexpr uint64_t number = {drop.number}, threshold = {threshold}u;",
        f"    static constexpr float scale = {_float(scale)}; // {scale:g}",
        "};",
    ]


LEARNING = Conv | Linear | Norm | SampleNorm | Embed
KINDS: dict[type[Any], str] = {
    Conv: "Conv",
    Linear: "AnyLinear",
    Norm: "BatchNorm",
    Pool: "MaxPool",
    Average: "AvgPool",
    Smooth: "Smooth",
    SampleNorm: "SampleNorm",
    Embed: "Embedding",
    type(None): "Pointwise",
}
HEADERS: dict[type[Any], str] = {
    Conv: "conv.hpp",
    Linear: "first_linear.hpp",
    Norm: "batch_norm.hpp",
    Pool: "pointwise.hpp",
    Average: "pointwise.hpp",
    Smooth: "smooth_activations.hpp",
    SampleNorm: "sample_norm.hpp",
    Embed: "embedding.hpp",
    type(None): "pointwise.hpp",
}
LOSS_NAMES = {"cross-entropy": "CrossEntropy", "mse": "SquaredError"}


def _float(value: float) -> str:
    return f"{float(np.float32(value)).hex()}f"
