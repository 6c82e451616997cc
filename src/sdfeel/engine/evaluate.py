"""Measuring one model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sdfeel.data.examples import Examples

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> the mean loss
Metric = Callable[[Tensor, Tensor], float | Tensor]  # (outputs, targets) -> a number

BLOCK = 250  # examples at a time: small enough that activations stay in the cache


@dataclass(frozen=True)
class Measured:
    loss: float
    accuracy: float | None
    metrics: dict[str, float]


def evaluate(
    module: nn.Module, data: Examples, loss: Loss, metrics: Mapping[str, Metric] | None = None
) -> Measured:
    """Loss, accuracy (where targets are class numbers) and the user's metrics on `data`."""
    was_training = module.training
    module.eval()
    total, right, kept = 0.0, 0, []
    with torch.inference_mode():
        for begin in range(0, len(data), BLOCK):
            x, y = data.x[begin : begin + BLOCK], data.y[begin : begin + BLOCK]
            out = module(x)
            total += float(loss(out, y)) * len(y)
            if _classifies(out, y):
                right += int((out.argmax(dim=1) == y).sum())
            if metrics:
                kept.append(out)
    module.train(was_training)
    outputs = torch.cat(kept) if kept else None
    return Measured(
        loss=total / len(data),
        accuracy=right / len(data) if _classifies(out, y) else None,
        metrics={name: float(metric(outputs, data.y)) for name, metric in (metrics or {}).items()}
        if outputs is not None
        else {},
    )


def _classifies(out: Tensor, y: Tensor) -> bool:
    return out.ndim == 2 and y.ndim == 1 and y.dtype == torch.int64
