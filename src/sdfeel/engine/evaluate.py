"""Measuring one model."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sdfeel.data.federated import Examples

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> the mean loss
Metric = Callable[[Tensor, Tensor], float | Tensor]  # (outputs, targets) -> a number

BLOCK = 250  # examples at a time: small enough that activations stay in the cache


@dataclass(frozen=True)
class Measured:
    """A model on some examples."""

    loss: float
    accuracy: float | None
    metrics: dict[str, float]


@dataclass(frozen=True)
class Tally:
    """One block's part of a measurement. Tallies are summed in order, whoever made them."""

    loss: float  # summed over the block
    right: int | None  # classified correctly; None where targets are not class numbers
    count: int


def blocks(data: Examples) -> int:
    """How many blocks the examples make."""
    return -(-len(data) // BLOCK)


def tallies(
    module: nn.Module,
    data: Examples,
    loss: Loss,
    which: Iterable[int],
    keep: Callable[[Tensor], None] = lambda out: None,
) -> list[Tally]:
    """Measure the blocks called `which`; `keep` gets each block's outputs."""
    was_training = module.training
    module.eval()
    found = []
    with torch.inference_mode():
        for n in which:
            x, y = data.x[n * BLOCK : (n + 1) * BLOCK], data.y[n * BLOCK : (n + 1) * BLOCK]
            out = module(x)
            classes = out.ndim == 2 and y.ndim == 1 and y.dtype == torch.int64
            right = int((out.argmax(dim=1) == y).sum()) if classes else None
            found.append(Tally(float(loss(out, y)) * len(y), right, len(y)))
            keep(out)
    module.train(was_training)
    return found


def total(parts: Iterable[Tally]) -> tuple[float, float | None]:
    """The mean loss and the accuracy over all blocks."""
    loss, right, count = 0.0, 0, 0
    classes = True
    for part in parts:
        loss += part.loss
        count += part.count
        classes = classes and part.right is not None
        right += part.right or 0
    return loss / count, right / count if classes else None


def evaluate(
    module: nn.Module, data: Examples, loss: Loss, metrics: Mapping[str, Metric] | None = None
) -> Measured:
    """Loss, accuracy (where targets are class numbers) and the user's metrics on `data`."""
    outputs: list[Tensor] = []
    keep = outputs.append if metrics else lambda out: None
    mean, accuracy = total(tallies(module, data, loss, range(blocks(data)), keep))
    own = {}
    if metrics:
        whole = torch.cat(outputs)
        own = {name: float(metric(whole, data.y)) for name, metric in metrics.items()}
    return Measured(mean, accuracy, own)
