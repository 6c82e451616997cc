"""From a plan to a small C++ file over the headers: every number known when it is compiled."""

import numpy as np

from sdfeel.engine.dropout import WORDS
from sdfeel.engine.native.layers import Conv, Drop, Pool
from sdfeel.engine.native.lower import Plan, Stage

HEADERS = ("conv.hpp", "entry.hpp", "first_linear.hpp", "linear.hpp", "pointwise.hpp")


def source(plan: Plan, batch: int) -> str:
    """The C++ of a model for batches of up to `batch` examples."""
    first = next(i for i, stage in enumerate(plan.stages) if stage.learns)
    size = int(np.prod(plan.shape))
    lines = [f'#include "{header}"' for header in HEADERS] + [
        "namespace {",
        f"constexpr int BATCH = {batch};",
        f"constexpr bool MOMENTUM = {_bool(plan.momentum)};",
    ]
    names = []
    for i, stage in enumerate(plan.stages):
        lines += _layer(i, stage, sends_gradient=i > first)
        names.append(_template(i, stage))
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
    lines = _dropout(i, drop) if drop is not None else []
    numbers: dict[str, int] = {}
    flags = {"sends_gradient": sends_gradient, "relu": stage.relu}
    main = stage.main
    if isinstance(main, Conv | Pool):
        for name in ("kernel", "stride", "padding"):
            numbers[f"{name}_y"], numbers[f"{name}_x"] = getattr(main, name)
    if isinstance(main, Conv):
        numbers |= dict(zip(("in", "height", "width"), main.shape, strict=True), out=main.out)
        flags["pool"] = stage.pool
    elif main is None or isinstance(main, Pool):
        # One line of numbers is a single row of a single plane.
        planes = stage.shape if len(stage.shape) == 3 else (1, 1, *stage.shape)
        numbers |= dict(zip(("channels", "height", "width"), planes, strict=True))
    else:
        numbers |= {"in": main.size, "out": main.out}
    if main is not None and not isinstance(main, Pool):
        numbers |= {"weight": main.weight, "bias": -1 if main.bias is None else main.bias}
    values = ", ".join(f"{name} = {value}" for name, value in numbers.items())
    switches = ", ".join(f"{name} = {_bool(value)}" for name, value in flags.items())
    return [
        *lines,
        f"struct Layer{i} {{",
        f"    static constexpr int {values};",
        f"    static constexpr bool {switches};",
        f"    using Drop = {'sdfeel::NoDropout' if drop is None else f'sdfeel::Dropout<Drop{i}>'};",
        "};",
    ]


def _dropout(i: int, drop: Drop) -> list[str]:
    threshold = min(int(drop.p * WORDS), WORDS - 1)
    scale = 0.0 if drop.p == 1 else float(np.float32(1 / (1 - drop.p)))
    return [
        f"struct Drop{i} {{",
        f"    static constexpr bool channels = {_bool(drop.channels)};",
        f"    static constexpr uint64_t number = {drop.number}, threshold = {threshold}u;",
        f"    static constexpr float scale = {scale.hex()}f; // {scale:g}",
        "};",
    ]


def _template(i: int, stage: Stage) -> str:
    if stage.learns:
        kind = "Conv" if isinstance(stage.main, Conv) else "AnyLinear"
        return f"sdfeel::{kind}<Layer{i}, BATCH, MOMENTUM>"
    kind = "MaxPool" if isinstance(stage.main, Pool) else "Pointwise"
    return f"sdfeel::{kind}<Layer{i}, BATCH>"


def _bool(value: bool) -> str:
    return "true" if value else "false"
