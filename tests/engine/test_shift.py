"""A task's shift: a row that is added to every gradient, in every engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sdfeel.data.federated import Examples
from sdfeel.engine.base import Engine, Task, Training, Workload
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.engine.newton import NEWTON
from sdfeel.engine.parallel import ParallelEngine
from tests.engine.native.helpers import needs_compiler

PARTS = np.array_split(np.arange(120), 5)
WAYS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.05}),
    ("adam", {}),
    ("lbfgs", {"line_search_fn": "strong_wolfe", "max_iter": 3}),
    (NEWTON, {"every": 2}),
]


def examples() -> Examples:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(120, 12, generator=draws)
    return Examples(x, torch.randint(3, (120,), generator=draws))


def layers() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 3))


def normed() -> nn.Module:
    """With numbers that nobody trains: frozen parameters and running statistics."""
    module = nn.Sequential(layers(), nn.BatchNorm1d(3), nn.Linear(3, 3))
    last = module[2]
    assert isinstance(last, nn.Linear)
    last.bias.requires_grad_(False)
    return module


def loop(module: nn.Module, optimizer: str = "sgd", options: Any = None, **more: Any) -> LoopEngine:
    training = Training(0.1, 4, optimizer, options or {}, **more)
    return LoopEngine(Workload(module, examples(), PARTS, examples(), training, 5))


def native(options: Any = None) -> NativeEngine:
    training = Training(0.1, 4, options=options or {})
    return NativeEngine(Workload(layers(), examples(), PARTS, examples(), training, 5), threads=2)


def tasks(engine: Engine) -> list[Task]:
    start = engine.initial()
    return [Task(c, start + 0.01 * c, 1 + c, first=c, rate=1 + c % 2) for c in range(5)]


def shifts(engine: Engine) -> list[Tensor | None]:
    """Of their own, shared, and none."""
    draws = torch.Generator().manual_seed(7)
    like = engine.initial()
    own = [torch.randn(like.shape, generator=draws, dtype=like.dtype) / 5 for _ in range(3)]
    return [own[0], own[1], None, own[1], own[2]]


def shifted(engine: Engine) -> list[Task]:
    both = zip(tasks(engine), shifts(engine), strict=True)
    return [replace(task, shift=shift) for task, shift in both]


def trained(engine: Engine, given: list[Task]) -> list[Tensor]:
    return [row.clone() for row in engine.train(given)]


@contextmanager
def every_engine(kind: str) -> Iterator[Engine]:
    if kind == "native":
        yield native()
    elif kind == "native, with momentum":
        yield native({"momentum": 0.9, "weight_decay": 0.05})
    elif kind == "parallel":
        engine = ParallelEngine(loop(normed()), 2)
        yield engine
        engine.close()
    else:
        yield loop(normed(), kind, dict(WAYS)[kind])


KINDS = [
    "sgd",
    "adam",
    "lbfgs",
    NEWTON,
    "parallel",
    pytest.param("native", marks=needs_compiler),
    pytest.param("native, with momentum", marks=needs_compiler),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_shift_of_zeros_is_none_bit_for_bit(kind: str) -> None:
    with every_engine(kind) as engine:
        plain = tasks(engine)
        zeros = [replace(task, shift=torch.zeros_like(task.start)) for task in plain]
        assert all(map(torch.equal, trained(engine, zeros), trained(engine, plain)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_shift_changes_the_task_that_has_it_and_no_other(kind: str) -> None:
    with every_engine(kind) as engine:
        plain, moved = trained(engine, tasks(engine)), trained(engine, shifted(engine))
        same = [torch.equal(a, b) for a, b in zip(plain, moved, strict=True)]
        assert same == [shift is None for shift in shifts(engine)]


@pytest.mark.parametrize(("optimizer", "options"), WAYS)
def test_a_shift_is_a_linear_term_of_the_loss(optimizer: str, options: Any) -> None:
    """Autograd differentiates the term; the engine adds the shift."""
    module = normed().double()
    data = Examples(examples().x.double(), examples().y)
    slope = torch.zeros(0)

    def sloped(out: Tensor, y: Tensor) -> Tensor:
        # The engine trains a copy of the module: the term is of the copy's parameters.
        row = torch.cat([p.reshape(-1) for p in inside.trainable])
        return nn.functional.cross_entropy(out, y) + row @ slope[: len(row)]

    def engine(**more: Any) -> LoopEngine:
        training = Training(0.1, 4, optimizer, options, **more)
        return LoopEngine(Workload(module, data, PARTS, data, training, 5))

    own, termed = engine(), engine(loss=sloped)
    inside = termed._flat
    for task in shifted(own):
        if task.shift is not None:
            slope = task.shift
            expected = trained(termed, [replace(task, shift=None)])[0]
            torch.testing.assert_close(trained(own, [task])[0], expected, rtol=1e-9, atol=1e-12)


def test_a_shift_leaves_alone_what_is_not_trained() -> None:
    own = loop(normed())
    count = own.parameters
    task = tasks(own)[0]
    only = torch.zeros_like(task.start)
    only[count:] = 1
    plain, moved = trained(own, [task]), trained(own, [replace(task, shift=only)])
    assert torch.equal(plain[0], moved[0])


class Spare(nn.Module):
    """With a parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(12, 3), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


@pytest.mark.parametrize("options", [{}, {"weight_decay": 1e-9}])
def test_a_parameter_without_a_gradient_goes_where_its_shift_says(options: Any) -> None:
    own = loop(Spare(), options=options)
    spare = own.layout.trainable.index(2)
    begin = sum(own.layout.trainable[:spare])
    shift = torch.zeros_like(own.initial())
    shift[begin : begin + 2] = torch.tensor([1.0, -2.0])
    row = trained(own, [Task(0, own.initial(), 3, 0, shift=shift)])[0]
    torch.testing.assert_close(row[begin : begin + 2], torch.tensor([-0.3, 0.6]))


@pytest.mark.parametrize("kind", ["sgd", "adam", NEWTON, "parallel"])
def test_a_pull_is_the_proximal_term_bit_for_bit(kind: str) -> None:
    module, way = normed(), "sgd" if kind == "parallel" else kind
    termed, plain = (loop(module, way, dict(WAYS)[way], proximal=p) for p in (0.75, 0.0))
    given = shifted(plain)
    pulled = [replace(task, pull=0.75) for task in given]
    expected = trained(termed, given)
    engine = ParallelEngine(plain, 2) if kind == "parallel" else plain
    assert all(map(torch.equal, trained(engine, pulled), expected))
    assert not torch.equal(trained(engine, given)[4], expected[4])
    engine.close()


@needs_compiler
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.05}])
def test_native_pulls_as_the_loop_does_whoever_asks_for_it(options: Any) -> None:
    ours, theirs = native(options), loop(layers(), options=options)
    pulls = [0.75, 0.75, 0.0, 1.5, 0.75]
    given = [replace(t, pull=pull) for t, pull in zip(shifted(theirs), pulls, strict=True)]
    for one, other in zip(trained(ours, given), trained(theirs, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    training = Training(0.1, 4, options=options, proximal=0.75)
    always = NativeEngine(Workload(layers(), examples(), PARTS, examples(), training, 5), 2)
    plain = tasks(ours)
    asked = [replace(task, pull=0.75) for task in plain]
    assert all(map(torch.equal, trained(always, plain), trained(ours, asked)))


def test_workers_give_the_loops_bits_with_shifts() -> None:
    own = loop(normed())
    expected = trained(own, shifted(own))
    for workers in (1, 2, 3):
        engine = ParallelEngine(own, workers)
        assert all(map(torch.equal, trained(engine, shifted(own)), expected))
        engine.close()


@needs_compiler
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.05}])
def test_native_is_as_near_to_float64_as_the_loop_is(options: Any) -> None:
    single = loop(layers(), options=options)
    wide = Examples(examples().x.double(), examples().y)
    training = Training(0.1, 4, options=options)
    exact = LoopEngine(Workload(layers().double(), wide, PARTS, wide, training, 5))
    given = shifted(single)
    exactly = [
        replace(t, start=t.start.double(), shift=None if t.shift is None else t.shift.double())
        for t in given
    ]
    answers = trained(exact, exactly)
    ours, theirs = trained(native(options), given), trained(single, given)
    for answer, our, their in zip(answers, ours, theirs, strict=True):
        error, usual = (float((row - answer).abs().max()) for row in (our, their))
        assert error <= 10 * usual + 1e-7


@needs_compiler
def test_native_compiles_for_shifts_only_when_one_comes() -> None:
    engine = native()
    trained(engine, tasks(engine))
    assert not engine._others
    trained(engine, shifted(engine))
    assert engine._others
    engine.close()
