"""Random chains of layers against float64: python -m tests.tools.native_fuzz --count 200

Odd shapes, kernels, strides, paddings, orders, batch sizes, clients with less than a batch,
momentum, and several instruction sets, each compared with the loop engine.
"""

import argparse
import copy
import platform
import random
import sys
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.build import NATIVE, BuildFault, library
from sdfeel.engine.native.cpp import source
from sdfeel.engine.native.library import Library, Native
from sdfeel.engine.native.lower import lower
from sdfeel.engine.native.trainer import Lessons, Trainer

STEPS, CLIENTS = 3, 3
# Vectors wider than the CPU's are split by the compiler: slow, but the same C++.
WIDEST = ("-DSDFEEL_LANES=16", "-DSDFEEL_REGISTERS=32")
TARGETS: dict[str, tuple[str, ...]] = {"native": NATIVE, "widest": (*NATIVE, *WIDEST)}
if platform.machine() in ("x86_64", "AMD64"):
    TARGETS |= {"avx2": ("-mavx2", "-mfma"), "sse": ("-march=x86-64",)}


@dataclass(frozen=True)
class Chain:
    """A random model and how it is trained."""

    module: nn.Sequential
    shape: tuple[int, ...]
    classes: int
    training: Training

    def __str__(self) -> str:
        parts = [str(layer).replace(" ", "") for layer in self.module]
        how = f"batch {self.training.batch_size} {self.training.options or ''}"
        return f"{'x'.join(map(str, self.shape))}: {' '.join(parts)}; {how}"


def chain(seed: int) -> Chain:
    """The chain of a number."""
    draw = random.Random(seed)
    shape = (draw.choice([1, 2, 3, 5]), draw.randint(7, 20), draw.randint(7, 20))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        found: list[nn.Module] = []
        size = shape
        if draw.random() < 0.1:
            found.append(draw.choice([nn.ReLU(), nn.Dropout(0.2), nn.Dropout2d(0.2)]))
        for _ in range(draw.randint(0, 3)):
            size = _convolution(draw, found, size)
        found.append(nn.Flatten())
        width = size[0] * size[1] * size[2]
        if draw.random() < 0.3:
            found.append(nn.Dropout(draw.choice([0.1, 0.5])))
        for _ in range(draw.randint(0, 2)):
            out = draw.choice([1, 5, 17, 32, 50])
            found.append(nn.Linear(width, out, bias=draw.random() < 0.8))
            found += draw.sample([nn.ReLU(), nn.Dropout(0.3)], draw.randint(0, 2))
            width = out
        classes = draw.choice([2, 10, 13])
        learns = any(isinstance(layer, nn.Conv2d | nn.Linear) for layer in found)
        if learns and 2 <= width <= 60 and draw.random() < 0.5:
            classes = width  # it ends where it is
        else:
            found.append(nn.Linear(width, classes, bias=draw.random() < 0.8))
        if seed % 3 != 2:
            found = _normalised(draw, found, shape)
    options = draw.choice([{}, {}, {"momentum": 0.9}, {"momentum": 0.5, "weight_decay": 0.01}])
    training = Training(0.05, draw.choice([1, 3, 7, 10, 16, 33]), options=options)
    return Chain(nn.Sequential(*found), shape, classes, training)


def smooth_chain(seed: int) -> Chain:
    """A chain of the layers that `chain` has not: its numbers have recorded bits, and stay."""
    draw = random.Random(f"smooth {seed}")
    shape = (draw.choice([2, 4, 6]), draw.randint(6, 11), draw.randint(6, 11))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        found: list[nn.Module] = []
        x = torch.zeros(2, *shape)

        def add(layer: nn.Module) -> None:
            nonlocal x
            for tensor in layer.parameters() if _is_norm(layer) else ():
                nn.init.uniform_(tensor, 0.5, 1.5)
            found.append(layer)
            x = layer(x)

        for _ in range(draw.randint(1, 2)):
            add(nn.Conv2d(x.shape[1], draw.choice([2, 4, 6]), 3, padding=1))
            if draw.random() < 0.6:
                groups = draw.choice([1, 2, x.shape[1]])
                norms = [nn.GroupNorm(groups, x.shape[1]), nn.LayerNorm(x.shape[1:])]
                add(draw.choice([*norms, nn.BatchNorm2d(x.shape[1])]))
            add(draw.choice(_activations()))
            pools = [nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d((2, 3), 2, (1, 1))]
            pools.append(nn.AvgPool2d(3, 2, 1, count_include_pad=False))
            add(draw.choice(pools))
        if draw.random() < 0.5:
            add(nn.AdaptiveAvgPool2d((1, None) if draw.random() < 0.5 else 1))
        add(nn.Flatten())
        for _ in range(draw.randint(1, 2)):
            add(nn.Linear(x.shape[1], draw.choice([5, 8, 17])))
            add(draw.choice([nn.BatchNorm1d(x.shape[1]), nn.LayerNorm(x.shape[1]), nn.Identity()]))
            add(draw.choice(_activations()))
        classes = draw.choice([2, 10])
        add(nn.Linear(x.shape[1], classes))
    moving = {"momentum": 0.9, "nesterov": True}
    options = draw.choice([{}, {}, moving, {**moving, "weight_decay": 0.01}])
    return Chain(
        nn.Sequential(*found),
        shape,
        classes,
        Training(0.05, draw.choice([4, 7, 10]), options=options),
    )


def _is_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.GroupNorm | nn.LayerNorm | nn.BatchNorm1d | nn.BatchNorm2d)


def _activations() -> list[nn.Module]:
    return [
        nn.Tanh(),
        nn.Sigmoid(),
        nn.SiLU(),
        nn.ELU(0.7),
        nn.LeakyReLU(0.2),
        nn.GELU(),
        nn.GELU("tanh"),
        nn.ReLU(),
    ]


Size = tuple[int, int, int]


def _convolution(draw: random.Random, found: list[nn.Module], size: Size) -> Size:
    """Add a convolution and what may follow it."""
    channels, height, width = size
    kernel = draw.choice([(1, 1), (3, 3), (3, 3), (5, 5), (7, 7), (3, 5), (2, 4)])
    padding = draw.choice([(0, 0), (kernel[0] // 2, kernel[1] // 2)])
    stride = draw.choice([(1, 1), (1, 1), (1, 1), (2, 2), (2, 1)])
    out = draw.choice([1, 3, 7, 8, 10, 16, 20, 33])
    after = [
        (length + 2 * pad - k) // step + 1
        for length, pad, k, step in zip((height, width), padding, kernel, stride, strict=True)
    ]
    if min(after) < 2:
        return size
    bias = draw.random() < 0.8
    found.append(nn.Conv2d(channels, out, kernel, stride, padding, bias=bias))
    follow: list[nn.Module] = []
    if draw.random() < 0.8:
        follow.append(nn.ReLU())
    if draw.random() < 0.3:
        follow.append(draw.choice([nn.Dropout2d(0.4), nn.Dropout2d(0.5), nn.Dropout(0.25)]))
    if draw.random() < 0.6 and min(after) >= 4:
        pool = draw.choice([nn.MaxPool2d(2)] * 4 + [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3)])
        follow.append(pool)
        after = list(pool(torch.zeros(1, 1, *after)).shape[2:])
    draw.shuffle(follow)
    found += follow
    return out, after[0], after[1]


def _normalised(
    draw: random.Random, found: list[nn.Module], shape: tuple[int, ...]
) -> list[nn.Module]:
    """The same layers with BatchNorm2d here and there, its numbers not those of the beginning."""
    given, x = list[nn.Module](), torch.zeros(1, *shape)
    for layer in found:
        planes = x.ndim == 4 and x.shape[2:] != (1, 1)
        if planes and draw.random() < (0.3 if given else 0.1):
            momentum = draw.choice([0.1, 0.3])
            norm = nn.BatchNorm2d(x.shape[1], momentum=momentum, affine=draw.random() < 0.8)
            for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
                assert tensor is not None
                nn.init.uniform_(tensor, 0.5, 1.5)
            given.append(norm)
        given.append(layer)
        x = layer(x)
    return given


def fault(own: Chain, seed: int, target: tuple[str, ...]) -> str | None:
    """How the native model differs from float64 more than the loop does, or None."""
    plan = lower(own.module, own.training, own.shape)
    if isinstance(plan, str):
        return f"it is refused: {plan}"
    batch = own.training.batch_size
    try:
        path = library(source(plan, batch), target)
        compiled = Native(plan, Library(path), path)
    except BuildFault as reason:
        return str(reason)
    draws = torch.Generator().manual_seed(seed)
    counts = [2 * batch + 1, max(1, batch - 1), 3 * batch]
    ends = np.cumsum(counts)
    parts = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    x = torch.randn(int(ends[-1]), *own.shape, generator=draws)
    y = torch.randint(own.classes, (len(x),), generator=draws)
    data, wide = Examples(x, y), Examples(x.double(), y)
    work = Workload(own.module, data, parts, data, own.training, seed)
    loop = LoopEngine(work)
    module = copy.deepcopy(own.module).double()
    referee = LoopEngine(Workload(module, wide, parts, wide, own.training, seed))
    start = loop.initial()
    native = Trainer(compiled.library, Lessons.of(work), start.numel(), threads=2, shift=plan.shift)
    tasks = [Task(client, start, STEPS, client) for client in range(CLIENTS)]
    exact = [Task(client, start.double(), STEPS, client) for client in range(CLIENTS)]
    errors, own_errors, rows = [], [], []
    trained = zip(referee.train(exact), loop.train(tasks), native.train(tasks), strict=True)
    for a, b, c in trained:
        own_errors.append(float((b - a).abs().max()))
        errors.append(float((torch.from_numpy(c) - a).abs().max()))
        rows.append(torch.from_numpy(c.copy()))
    if not torch.equal(torch.stack(rows), _after_poison(native, tasks)):
        return "a client leaves traces in the next one's model"
    # One client's ReLU may hang in the balance and fall the other way: the middle one decides.
    error, allowed = sorted(errors)[1], 10 * sorted(own_errors)[1] + 3e-7
    return (
        None
        if error <= allowed
        else f"it is off by {error:.1e}, and at most {allowed:.1e} is allowed"
    )


def _after_poison(native: Trainer, tasks: list[Task]) -> torch.Tensor:
    """(tasks, P) the same models, by one thread that has just trained a model of NaN."""
    poison = replace(tasks[0], start=torch.full_like(tasks[0].start, float("nan")))
    block = native.prepared([poison, *tasks])
    return torch.from_numpy(native.trained(block, threads=1).models[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description="random chains against float64")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the number of the first chain")
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--smooth", action="store_true", help="chains of the other layers")
    options = parser.parse_args()
    names = list(TARGETS) if options.target == "all" else [options.target]
    bad = 0
    for seed in range(options.first, options.first + options.count):
        name = names[seed % len(names)]
        own = smooth_chain(seed) if options.smooth else chain(seed)
        found = fault(own, seed, TARGETS[name])
        if found:
            bad += 1
            print(f"chain {seed} ({name}): {found}\n  {own}", flush=True)
    print(f"{options.count} chains on {', '.join(names)}: {bad} bad")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
