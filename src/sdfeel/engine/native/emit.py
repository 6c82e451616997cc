"""Turns a plan into a small C++ file over the headers; every number is known at compile time."""

from typing import Any

import numpy as np

from sdfeel.engine.dropout import WORDS
from sdfeel.engine.native.layers import Conv, Drop, Linear, Norm, Pool
from sdfeel.engine.native.lower import Plan, Stage
from sdfeel.models.flat import VARIANCE_FLOOR

CPP = {True: "true", False: "false"}
HEADERS = (
    "batch_norm.hpp",
    "conv.hpp",
    "entry.hpp",
    "first_linear.hpp",
    "linear.hpp",
    "pointwise.hpp",
)


def source(plan: Plan, batch: int) -> str:
    """The C++ of a model for batches of up to `batch` examples."""
    first = next(i for i, stage in enumerate(plan.stages) if stage.learns)
    size = int(np.prod(plan.shape))
    lines = [f'#include "{header}"' for header in HEADERS] + [
        "namespace {",
        f"constexpr int BATCH = {batch};",
        f"using Update = sdfeel::Step<{CPP[plan.momentum]}, {CPP[plan.shift]}>;",
    ]
    names = []
    for i, stage in enumerate(plan.stages):
        lines += _layer(i, stage, sends_gradient=i > first)
        kind = KINDS[type(stage.main)]
        update = "" if kind in ("MaxPool", "Pointwise") else ", Update"
        names.append(f"sdfeel::{kind}<Layer{i}, BATCH{update}>")
    lines += [
        f"using Loss = sdfeel::CrossEntropy<{plan.classes}, BATCH>;",
        f"using Net = sdfeel::Chain<BATCH, {size}, {first}, Loss,",
        ",\n".join(f"    {name}" for name in names) + ">;",
        "} // namespace",
        "SDFEEL_ENTRY(Net)",
    ]
    return "\n".join(lines) + "\n"


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
        *(_statistics(stage.main) if isinstance(stage.main, Norm) else []),
        f"    using Drop = {'sdfeel::NoDropout' if drop is None else f'sdfeel::Dropout<Drop{i}>'};",
        "};",
    ]


def _numbers(stage: Stage) -> dict[str, int]:
    """Sizes, and places in the row; -1 is no place."""
    main = stage.main
    numbers: dict[str, int] = {}
    if isinstance(main, Conv | Linear | Norm):
        places = {"weight": main.weight, "bias": main.bias}
        numbers |= {name: -1 if place is None else place for name, place in places.items()}
    if isinstance(main, Conv | Pool):
        for name in ("kernel", "stride", "padding"):
            numbers[f"{name}_y"], numbers[f"{name}_x"] = getattr(main, name)
    if isinstance(main, Conv):
        return numbers | dict(zip(("in", "height", "width"), main.shape, strict=True), out=main.out)
    if isinstance(main, Linear):
        return numbers | {"in": main.size, "out": main.out}
    # One line of numbers is a single row of a single plane.
    planes = stage.shape if len(stage.shape) == 3 else (1, 1, *stage.shape)
    return numbers | dict(zip(("channels", "height", "width"), planes, strict=True))


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


KINDS: dict[type[Any], str] = {
    Conv: "Conv",
    Linear: "AnyLinear",
    Norm: "BatchNorm",
    Pool: "MaxPool",
    type(None): "Pointwise",
}


def _float(value: float) -> str:
    return f"{float(np.float32(value)).hex()}f"
