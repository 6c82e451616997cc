"""A Flower client under our edge servers; with the real package where it is installed.

`make test-flower` runs this file in an environment of its own.
"""

import importlib.util
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sdfeel.core.errors import InputError
from sdfeel.data.federated import Examples
from sdfeel.deploy.flower import FlowerTrainer
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.batches import batches
from sdfeel.engine.loop import LoopEngine

DATA = Examples(torch.randn(40, 6, generator=torch.manual_seed(0)), torch.arange(40) % 3)
EVERY = np.arange(40)
SEED, RATE, BATCH = 5, 0.1, 8


def module() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 3))


class Plain:
    """A client as a Flower user writes it: state_dict in, local SGD, state_dict out."""

    def __init__(self) -> None:
        self.net = module()

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, Any]:
        names = self.net.state_dict().keys()
        values = {n: torch.as_tensor(v) for n, v in zip(names, parameters, strict=True)}
        self.net.load_state_dict(values)
        optimiser = torch.optim.SGD(self.net.parameters(), lr=RATE)
        picked = batches(EVERY, BATCH, SEED, config["client"], config["first"], config["steps"])
        for rows in torch.from_numpy(picked):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(self.net(DATA.x[rows]), DATA.y[rows])
            torch.autograd.backward(loss)
            optimiser.step()
        return [value.numpy() for value in self.net.state_dict().values()], len(DATA), {}


def ours(task: Task) -> Tensor:
    training = Training(learning_rate=RATE, batch_size=BATCH)
    engine = LoopEngine(Workload(module(), DATA, [EVERY], DATA, training, SEED))
    return next(engine.train([task])).clone()


def task(steps: int) -> Task:
    training = Training(learning_rate=RATE, batch_size=BATCH)
    start = LoopEngine(Workload(module(), DATA, [EVERY], DATA, training, SEED)).initial()
    return Task(0, start, steps, first=3)


def test_a_client_in_flowers_style_trains_the_same_model() -> None:
    trained = FlowerTrainer(Plain(), module())(task(4))
    torch.testing.assert_close(trained, ours(task(4)))
    assert not torch.equal(trained, task(4).start)


@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="flwr is not installed")
def test_the_real_numpy_client_trains_the_same_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Flower itself imports
        flwr = importlib.import_module("flwr.client")

    class Real(flwr.NumPyClient):  # type: ignore[name-defined, misc]
        def fit(self, parameters: Any, config: Any) -> Any:
            return Plain().fit(parameters, config)

    client = Real()
    assert client.to_client() is not None  # Flower itself would run it, too
    torch.testing.assert_close(FlowerTrainer(client, module())(task(4)), ours(task(4)))


def test_what_cannot_be_a_client_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match="a dict without a method fit"):
        FlowerTrainer({}, module())  # type: ignore[arg-type]

    class Short(Plain):
        def fit(self, parameters: list[Any], config: dict[str, Any]) -> Any:
            return parameters[:-1], 1, {}

    with pytest.raises(InputError, match=r"returned 8 arrays that do not fit the model's 9"):
        FlowerTrainer(Short(), module())(task(1))
    longer = Task(0, torch.zeros(999), 1, 0)
    with pytest.raises(InputError, match="trains plain models"):
        FlowerTrainer(Plain(), module())(longer)
