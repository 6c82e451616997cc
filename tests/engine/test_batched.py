"""Clients side by side give the loop's models, up to rounding; refusals give the reason."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sdfeel
from sdfeel.core.errors import Diverged, InputError
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload, penalties
from sdfeel.engine.batched import BatchedEngine
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.select import Kind, choose

SHAPE, CLASSES = (2, 6, 6), 3
PARTS = [np.arange(0, 17), np.arange(17, 40), np.arange(40, 43), np.arange(43, 64)]


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(72, 9), nn.Tanh(), nn.Dropout(0.3), nn.Linear(9, 3)
    )


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),  # BatchNorm takes it away, and Adam would divide by it
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout2d(0.4),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


class Residual(nn.Module):
    """A model that the native engine refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(72, 12), nn.Linear(12, 12)
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        found: Tensor = self.last(x + torch.relu(self.second(x)))
        return found


def workload(module: nn.Module, training: Training) -> Workload:
    draws = torch.Generator().manual_seed(2)
    x = torch.randn(64, *SHAPE, generator=draws)
    data = Examples(x, torch.randint(CLASSES, (64,), generator=draws))
    return Workload(module, data, PARTS, data, training, seed=4)


def made(build: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        module: nn.Module = build()
    return module


PLAIN = Training(0.1, 5)
TRAININGS = {
    "sgd": PLAIN,
    "moving": replace(PLAIN, options={"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": replace(PLAIN, optimizer="adam", learning_rate=0.01),
    "clipped": replace(PLAIN, clip_norm=0.2, proximal=0.5),
    "epochs": replace(PLAIN, iteration="epoch", penalties=penalties({"l1": 0.01})),
}


def tasks(engine: LoopEngine, shifted: bool) -> list[Task]:
    """Clients at different places of their data, with different numbers of steps and rates."""
    draws, start = torch.Generator().manual_seed(7), engine.initial()
    found = []
    for client in (0, 1, 2, 3, 1, 0):
        shift = 0.1 * torch.randn(start.shape, generator=draws) if shifted else None
        steps, first, rate = client % 3, 2 * client, 1.0 + (client == 1)
        own = start * (1 + 0.1 * client)
        found.append(Task(client, own, steps, first, rate, shift, 0.3 if shifted else 0.0))
    return found


@pytest.mark.parametrize("build", [perceptron, convolution, Residual])
@pytest.mark.parametrize("name", TRAININGS)
def test_models_are_the_loops_up_to_rounding(build: Any, name: str) -> None:
    work = workload(made(build), TRAININGS[name])
    loop, batched = LoopEngine(work), BatchedEngine(work)
    for shifted in (False, True):
        given = tasks(loop, shifted)
        one = [row.clone() for row in loop.train(given)]
        many = [row.clone() for row in batched.train(given)]
        for task, a, b in zip(given, one, many, strict=True):
            assert torch.equal(a, task.start) == (task.steps == 0)
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-4 if name == "adam" else 1e-5)
    model = loop.initial()
    assert batched.evaluate(model) == loop.evaluate(model)
    assert batched.layout == loop.layout


class Shaken(Examples):
    """Examples that are turned by chance whenever they are used, as augmentation does."""

    def to(self, dtype: torch.dtype) -> "Shaken":
        return Shaken(self.x.to(dtype), self.y)

    def batch(self, rows: Tensor, address: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        x, y = super().batch(rows, address)
        draws = torch.Generator().manual_seed(hash(address) % 2**31)
        return x + torch.randn(x.shape, generator=draws), y


def test_augmented_examples_are_the_loops() -> None:
    work = workload(made(convolution), PLAIN)
    shaken = replace(work, train=Shaken(work.train.x, work.train.y))
    loop, batched, still = LoopEngine(shaken), BatchedEngine(shaken), LoopEngine(work)
    given = tasks(loop, shifted=False)
    one, many, other = (
        torch.stack([row.clone() for row in engine.train(given)])
        for engine in (loop, batched, still)
    )
    assert torch.allclose(one, many, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_schedule_means_what_it_does_in_the_loop() -> None:
    x = np.random.default_rng(0).standard_normal((40, 6), dtype=np.float32)
    data = sdfeel.federate((x, x[:, 0] > 0), (x, x[:, 0] > 0), clients=4)
    net = sdfeel.network(data, servers=2, graph="ring")

    def ended(engine: Kind, **options: Any) -> Tensor:
        module = made(lambda: nn.Linear(6, 2))
        scheme = sdfeel.SDFeel(tau1=2)
        run = sdfeel.Run(scheme, net, module, data, iterations=12, engine=engine, **options)
        list(run)
        return run.model

    cosine = {"schedule": "cosine", "learning_rate": 0.5}
    assert torch.allclose(ended("batched", **cosine), ended("loop", **cosine), rtol=1e-4, atol=1e-6)
    steady = ended("loop", learning_rate=0.5)
    assert not torch.allclose(ended("batched", **cosine), steady, rtol=1e-4, atol=1e-6)


def test_a_model_does_not_depend_on_its_neighbours() -> None:
    work = workload(made(convolution), PLAIN)
    batched = BatchedEngine(work)
    given = tasks(LoopEngine(work), shifted=False)
    together = torch.stack(list(batched.train(given)))
    alone = torch.stack([row.clone() for task in given for row in batched.train([task])])
    assert torch.allclose(together, alone, atol=1e-6)


def test_a_client_without_a_step_stays_where_it_is_beside_one_that_trains() -> None:
    work = workload(made(convolution), PLAIN)
    start = LoopEngine(work).initial()
    still, moved = BatchedEngine(work).train([Task(2, start, 0, 0), Task(2, start, 2, 0)])
    assert torch.equal(still, start)
    assert not torch.equal(moved, start)


class Decides(nn.Module):
    """A model whose way depends on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        found: Tensor = self.linear(x if x.sum() > 0 else -x)
        return found


def test_what_cannot_be_batched_falls_back_and_says_why() -> None:
    engine, why = choose("batched", workload(made(Decides), PLAIN), workers=1)
    assert engine.name == "loop"
    assert why.startswith("one core; not batched: clients cannot be trained side by side: ")
    training = replace(PLAIN, optimizer="lbfgs")
    _, why = choose("batched", workload(made(perceptron), training), workers=1)
    assert "its optimiser is lbfgs, not one of sgd, adam" in why


def test_the_engine_is_chosen_by_name() -> None:
    engine, why = choose("batched", workload(made(perceptron), PLAIN))
    assert (engine.name, engine.bits) == ("batched", "batched on cpu")
    assert why == "as asked; 32 clients side by side on cpu"


def test_a_device_that_is_not_there_is_refused() -> None:
    missing = "cuda" if not torch.cuda.is_available() else "mps"
    with pytest.raises(InputError, match=f"training.device is {missing}, but torch finds no such"):
        choose("batched", workload(made(perceptron), replace(PLAIN, device=missing)))


def test_divergence_reads_as_in_the_loop() -> None:
    work = workload(made(Residual), replace(PLAIN, learning_rate=1e38))
    for engine in (LoopEngine(work), BatchedEngine(work)):
        with pytest.raises(Diverged, match="training diverged at client 1, local iteration 3"):
            list(engine.train([Task(1, engine.initial(), 3, 0)]))
