"""A training problem small enough to check by hand: F_i(w) = 1/2 (w - c_i)' A_i (w - c_i)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sdfeel.engine.base import Scores, Task


@dataclass
class QuadraticEngine:
    """Exact gradients in float64; `curvature` 1 makes every F_i isotropic."""

    centres: Tensor  # (C, P)
    rate: float
    weights: Tensor  # (C,) shares of the data
    curvature: Tensor | float = 1.0  # (C, P) or one number
    start: float = 0.0
    name: str = "quadratic"

    def initial(self) -> Tensor:
        return torch.full((self.centres.shape[1],), self.start, dtype=torch.float64)

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        curvature = torch.as_tensor(self.curvature, dtype=torch.float64).expand_as(self.centres)
        for task in tasks:
            model = task.start.clone()
            for _ in range(task.steps):
                slope = curvature[task.client] * (model - self.centres[task.client])
                if task.shift is not None:
                    slope = slope + task.shift
                if task.pull:
                    slope = slope + task.pull * (model - task.start)
                model -= task.rate * self.rate * slope
            yield model

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]:
        curvature = torch.as_tensor(self.curvature, dtype=torch.float64).expand_as(self.centres)
        gap = model - self.centres[client]
        return float((curvature[client] * gap**2).sum() / 2), curvature[client] * gap

    def evaluate(self, model: Tensor) -> Scores:
        gaps = torch.as_tensor(self.curvature) * (model - self.centres) ** 2
        loss = float(self.weights @ gaps.sum(dim=1)) / 2
        return Scores(loss, loss, None)


def quadratic(centres: ArrayLike, samples: ArrayLike, rate: float) -> QuadraticEngine:
    """Scalar or vector centres, weighted by sample counts."""
    points = torch.as_tensor(np.asarray(centres, dtype=np.float64))
    points = points[:, None] if points.ndim == 1 else points
    shares = torch.as_tensor(np.asarray(samples, dtype=np.float64))
    return QuadraticEngine(points, rate, shares / shares.sum())
