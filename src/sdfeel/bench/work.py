"""The work that is timed: a round of local steps at clients of their own, or an evaluation."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import nn

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import unknown
from sdfeel.core.seeds import number
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Training
from sdfeel.models import zoo

RATE = 0.01


@dataclass(frozen=True)
class BenchWork:
    """One round: every client takes `steps` mini-batches; without steps, one look at all data."""

    name: str
    model: str
    shape: tuple[int, ...]
    clients: int
    steps: int
    batch: int = 10
    examples: int = 1200  # of each client: 50 of them share the 60,000 of MNIST

    @property
    def evaluates(self) -> bool:
        return self.steps == 0

    @property
    def samples(self) -> int:
        """Examples that are trained on, or looked at."""
        return self.clients * (self.examples if self.evaluates else self.steps * self.batch)

    @property
    def flops(self) -> float:
        """Floating-point operations of one example."""
        count = forward_flops if self.evaluates else training_flops
        return count(self.module(), self.shape)

    @property
    def training(self) -> Training:
        return Training(RATE, self.batch)

    def module(self) -> nn.Module:
        if self.model == "lenet":
            return lenet()
        options = {"hidden": 200} if self.model == "mlp" else {}
        return zoo.build(self.model, self.shape, 10, 0, **options)

    def data(self) -> tuple[Examples, list[Ints]]:
        """Examples that look like normalised images, and who holds which."""
        count = self.clients * self.examples
        return drawn(count, self.shape), np.array_split(np.arange(count), self.clients)


@lru_cache(maxsize=1)  # all ways look at the same memory
def drawn(count: int, shape: tuple[int, ...]) -> Examples:
    """Noise with labels."""
    draws = torch.Generator().manual_seed(number(0, "bench"))
    x = torch.randn(count, *shape, generator=draws)
    return Examples(x, torch.randint(10, (count,), generator=draws))


WORKS = {
    work.name: work
    for work in (
        BenchWork("mnist-cnn", "mnist-cnn", (1, 28, 28), clients=50, steps=5),
        BenchWork("mlp", "mlp", (1, 28, 28), clients=50, steps=5),
        BenchWork("lenet", "lenet", (3, 32, 32), clients=50, steps=5, examples=300),
        BenchWork("cifar-cnn", "cifar-cnn", (3, 32, 32), clients=4, steps=5, examples=50),
        BenchWork("evaluation", "mnist-cnn", (1, 28, 28), clients=50, steps=0, examples=200),
    )
}


def find(name: str) -> BenchWork:
    """The work called `name`."""
    if name not in WORKS:
        raise unknown("benchmark", name, WORKS)
    return WORKS[name]


def lenet() -> nn.Module:
    """LeNet-5 for colour images: a model that the project does not ship."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def training_flops(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Floating-point operations of one example's training step, if nothing is skipped.

    Forward, gradient by weights and gradient by inputs cost the same; the first layer needs no
    gradient by its inputs.

    >>> round(training_flops(find("mnist-cnn").module(), (1, 28, 28)))
    2595000
    """
    layers = _products(module, shape)
    return 2 * (3 * sum(layers) - layers[0])


def forward_flops(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Floating-point operations of one example's outputs.

    >>> round(forward_flops(nn.Linear(3, 4), (3,)))
    24
    """
    return 2 * sum(_products(module, shape))


def _products(module: nn.Module, shape: tuple[int, ...]) -> list[float]:
    """Multiplications of each layer that has weights, for one example."""
    layers: list[float] = []

    def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        if isinstance(layer, nn.Linear):
            layers.append(out.numel() * layer.in_features)
        elif isinstance(layer, nn.Conv2d):
            layers.append(out.numel() * prod(layer.weight.shape[1:]))

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    with torch.no_grad():
        module.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return layers
