"""Sums of branches, words, numbers as targets, and Adam: as the loop has them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sdfeel.core.errors import Diverged
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.evaluate import LOSSES
from sdfeel.engine.native.build import NATIVE, cpu, library
from sdfeel.engine.native.cpp import source
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.engine.native.library import Library
from sdfeel.engine.native.trainer import Lessons, Trainer
from tests.engine.native.helpers import (
    PARTS,
    assert_agrees,
    loop,
    native,
    needs_compiler,
    seeded,
    tasks_of,
    trained,
)

NARROW = (*NATIVE, "-DSDFEEL_LANES=4", "-DSDFEEL_REGISTERS=32")
AVX2 = ("-march=x86-64-v3",) if " avx2" in cpu() else NATIVE
ADAM = Training(0.01, 10, "adam")


class Block(nn.Module):
    """Of a residual network, as torchvision writes it."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(out), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2, self.downsample = nn.BatchNorm2d(out), None
        if stride > 1:
            down = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(down, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        done: Tensor = self.relu(out)
        return done


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Conv2d(2, 5, 3), Block(5, 9, 2), nn.Linear(9, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.stem(x))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Lines(nn.Module):
    """Three branches, one of them nothing, one with dropout, in front of anything that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(11, 11), nn.Linear(11, 11), nn.Dropout(0.3)
        self.head = nn.Linear(11, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(x + self.drop(self.a(x)) + self.b(x.relu())))
        return out


class Reader(nn.Module):
    def __init__(self, line: bool, padding: int | None = None) -> None:
        super().__init__()
        self.words, self.line = nn.Embedding(30, 19, padding_idx=padding), line
        self.head = nn.Linear(19 * 7, 1) if line else nn.Linear(19, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        out: Tensor = self.head(x.flatten(1) if self.line else x.mean(dim=1))
        return out


def data_of(shape: tuple[int, ...], words: int = 0, numbers: tuple[int, ...] | None = None) -> Any:
    draws = torch.Generator().manual_seed(4)
    x = torch.randn(64, *shape, generator=draws)
    if words:  # some come often
        x = (words * torch.rand(64, *shape, generator=draws).square()).long()
    if numbers is not None:
        return Examples(x, torch.randn(64, *numbers, generator=draws))
    return Examples(x, torch.randint(10, (64,), generator=draws))


MSE, NAMED = (
    replace(ADAM, loss=nn.MSELoss()),
    Training(0.05, 10, options={"momentum": 0.9}, loss=LOSSES["mse"]),
)
HEAVY = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
CASES: dict[str, tuple[Any, Examples, Training]] = {
    "resnet": (ResNet, data_of((2, 6, 6)), Training(0.05, 10, options=HEAVY)),
    "branches": (Lines, data_of((11,), numbers=(3,)), MSE),
    "words": (lambda: Reader(False, 0), data_of((7,), words=30), Training(0.5, 10)),
    "words, adam": (
        lambda: Reader(False, 0),
        data_of((7,), words=30),
        replace(ADAM, options={"betas": [0.8, 0.95], "weight_decay": 0.01, "eps": 1e-6}),
    ),
    "words, adamw": (
        lambda: Reader(False, 0),
        data_of((7,), words=30),
        Training(0.05, 10, "adamw", {"weight_decay": 0.9}),
    ),
    "line of words": (lambda: Reader(True), data_of((7,), words=30, numbers=()), NAMED),
}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_it_learns_and_measures_as_the_loop_does(name: str) -> None:
    build, data, training = CASES[name]
    module = seeded(build)
    assert_agrees(module, data, training, rates=(0.5, 1, 1.7))
    own, other = native(module, data, training), loop(module, data, training)
    found, expected = (engine.evaluate(own.initial()) for engine in (own, other))
    assert found.test_loss == pytest.approx(expected.test_loss, rel=1e-5)
    assert found.accuracy == expected.accuracy


@needs_compiler
@pytest.mark.parametrize("name", ["words", "words, adam", "words, adamw"])
def test_shifts_and_pulls_move_words_that_no_example_has(name: str) -> None:
    build, data, training = CASES[name]
    module = seeded(build)
    own, other = native(module, data, training), loop(module, data, training)
    shift = torch.linspace(-0.1, 0.1, own.initial().numel())
    tasks = [replace(task, shift=shift, pull=0.3) for task in tasks_of(own)]
    for ours, theirs in zip(trained(own, tasks), trained(other, tasks), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


@needs_compiler
def test_adam_forgets_at_every_broadcast_and_divergence_reads_as_in_the_loop() -> None:
    build, data, training = CASES["words, adam"]
    own = native(seeded(build), data, training)
    task = Task(1, own.initial(), 4, 0)
    first, again = trained(own, [task, task])
    assert torch.equal(first, again)
    with pytest.raises(Diverged, match="client 1, local iteration 4: the model is no longer"):
        trained(own, [replace(task, start=task.start * float("inf"))])


@needs_compiler
@pytest.mark.parametrize(
    ("name", "target"), [("branches", NARROW), ("words, adam", AVX2)], ids=["narrow", "avx2"]
)
def test_the_width_of_vectors_changes_no_bit(name: str, target: tuple[str, ...]) -> None:
    build, data, training = CASES[name]
    own = native(seeded(build), data, training)
    work = Workload(seeded(build), data, PARTS, data, training, 5)
    code = source(own._native.plan, own.batch)
    other = Trainer(Library(library(code, target)), Lessons.of(work), own.initial().numel(), 1)
    tasks = tasks_of(own)
    for ours, theirs in zip(trained(own, tasks), other.train(tasks), strict=True):
        assert torch.equal(ours, torch.from_numpy(theirs))


@pytest.mark.parametrize(
    ("data", "training", "reason"),
    [
        (data_of((7,)), ADAM, "its inputs are torch.float32 on cpu, not int64"),
        (data_of((7,), words=31), ADAM, "its words are not all between 0 and 29"),
        (data_of((7,), words=30, numbers=()), ADAM, "its targets are not class numbers"),
        (data_of((7,), words=30, numbers=()), MSE, "its targets are () where its outputs are"),
        (data_of((7,), words=30), MSE, "its targets are torch.int64, not float32"),
    ],
)
def test_reasons_of_data(data: Examples, training: Training, reason: str) -> None:
    work = Workload(seeded(lambda: Reader(False)), data, PARTS, data, training, 0)
    assert reason in str(NativeEngine.create(work))
