"""CIFAR-10 at half the resolution and a CNN for it: what two cores can train to the end."""

from torch import nn
from torch.nn.functional import avg_pool2d

from sdfeel.data.catalog import load
from sdfeel.data.federated import Dataset, Examples, Federated


def data() -> Dataset:
    """CIFAR-10 from $SDFEEL_DATA or the cache, its images pooled to 16 x 16."""
    whole = load("cifar10")
    assert not isinstance(whole, Federated)
    return Dataset("cifar10-16", _halved(whole.train), _halved(whole.test), whole.classes)


def model(width: int = 16) -> nn.Module:
    """A small version of the paper's CNN: BatchNorm after the first convolution of each block."""

    def block(inside: int, outside: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]

    return nn.Sequential(
        *block(3, width),
        *block(width, 2 * width),
        nn.Flatten(),
        nn.Linear(2 * width * 4 * 4, 64),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )


def _halved(examples: Examples) -> Examples:
    """Each 2 x 2 pixels averaged."""
    return Examples(avg_pool2d(examples.x, 2), examples.y)
