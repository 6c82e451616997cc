"""Models, data and comparisons for the tests of the native engine."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sdfeel.core.arrays import Ints
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.build import BuildFault, find_compiler
from sdfeel.engine.native.engine import NativeEngine


def _no_compiler() -> bool:
    try:
        find_compiler()
    except BuildFault:
        return True
    return False


needs_compiler = pytest.mark.skipif(_no_compiler(), reason="there is no C++ compiler here")

# 23 and 37 examples, and fewer than a batch of 10.
PARTS: list[Ints] = [np.arange(0, 23), np.arange(23, 60), np.arange(60, 64)]


def seeded(build: Any, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module: nn.Module = build()
    return module


def examples(shape: tuple[int, ...], count: int = 64, classes: int = 10) -> Examples:
    draws = torch.Generator().manual_seed(3)
    x = torch.randn(count, *shape, generator=draws)
    return Examples(x, torch.randint(classes, (count,), generator=draws))


def native(
    module: nn.Module, data: Examples, training: Training, seed: int = 5, **options: Any
) -> NativeEngine:
    own = NativeEngine.create(Workload(module, data, PARTS, data, training, seed), **options)
    assert isinstance(own, NativeEngine), own
    return own


def loop(module: nn.Module, data: Examples, training: Training, seed: int = 5) -> LoopEngine:
    return LoopEngine(Workload(module, data, PARTS, data, training, seed))


def referee(module: nn.Module, data: Examples, training: Training, seed: int = 5) -> LoopEngine:
    """The loop engine in float64."""
    return loop(copy.deepcopy(module).double(), data.to(torch.float64), training, seed)


def trained(own: NativeEngine | LoopEngine, tasks: Sequence[Task]) -> list[Tensor]:
    return [row.clone() for row in own.train(tasks)]


def tasks_of(
    own: NativeEngine | LoopEngine, steps: int = 4, rates: Sequence[float] = (1, 1, 1)
) -> list[Task]:
    """Clients at different places of their data, from different models."""
    start = own.initial()
    return [
        Task(client, start * (1 + 0.1 * client), steps + client, first=3 * client, rate=rate)
        for client, rate in enumerate(rates)
    ]


def assert_agrees(
    module: nn.Module, data: Examples, training: Training, rates: Sequence[float] = (1, 1, 1)
) -> None:
    """The native engine is as near to float64 as the loop engine in float32 is."""
    exact = referee(module, data, training)
    wide = tasks_of(exact, rates=rates)
    single = [replace(task, start=task.start.float()) for task in wide]
    answers = trained(exact, wide)
    ours = trained(native(module, data, training), single)
    theirs = trained(loop(module, data, training), single)
    for task, answer, our, their in zip(wide, answers, ours, theirs, strict=True):
        assert float((answer - task.start).abs().max()) > 1e-3  # it has learned something
        error, usual = (float((row - answer).abs().max()) for row in (our, their))
        assert error <= 10 * usual + 1e-7
