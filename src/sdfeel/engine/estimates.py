"""What clients can say about their losses: how steep, how curved, how different, how noisy.

Two models on the same mini-batch give secants of a client's loss and of its gradient; two
mini-batches at the same model give the gradient's noise. The planner, and schemes that choose their
own periods, depend on these numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import InputError
from sdfeel.core.scheme import Estimates

Apart = TypeVar("Apart", float, Floats)  # of one client, or of all


@runtime_checkable
class Probing(Protocol):
    """An engine that can compute single gradients. `engine/loop.py` defines the answer."""

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]: ...


def probing(engine: object) -> Probing:
    """`engine`, if it can compute gradients."""
    if isinstance(engine, Probing):
        return engine
    raise InputError(
        f"the engine {getattr(engine, 'name', type(engine).__name__)} cannot compute single "
        f"gradients, which estimates need: choose training.engine=auto"
    )


@dataclass(frozen=True, eq=False)
class Probe:
    """What one client computes at the models `start` and `end`."""

    loss_start: float
    loss_end: float
    gap: float  # |end - start|, of the trainable parameters
    gradient_gap: float  # between the gradients at both, on the same mini-batch
    gradient: Tensor  # (trainable,) at `start`
    noise: float  # half the squared distance between two mini-batches' gradients at `start`

    @property
    def rho(self) -> float:
        """How steep the loss is between the models; 0 where they are the same."""
        return abs(self.loss_end - self.loss_start) / self.gap if self.gap else 0.0

    @property
    def beta(self) -> float:
        """How curved the loss is between the models; 0 where they are the same."""
        return self.gradient_gap / self.gap if self.gap else 0.0


def probe(engine: Probing, client: int, start: Tensor, end: Tensor, step: int) -> Probe:
    """Three gradients: two models on the mini-batch of `step`, and `start` on the one after."""
    loss_start, gradient = engine.loss_and_gradient(client, start, step)
    loss_end, moved = engine.loss_and_gradient(client, end, step)
    _, other = engine.loss_and_gradient(client, start, step + 1)
    own = len(gradient)
    return Probe(
        loss_start,
        loss_end,
        gap=_distance(end[:own], start[:own]),
        gradient_gap=_distance(moved, gradient),
        gradient=gradient,
        noise=batch_noise(_distance(other, gradient)),
    )


class Estimator:
    """Takes clients one after another, as an engine yields them, without keeping their models."""

    def __init__(self, engine: Probing) -> None:
        self._engine = engine
        self._asked: list[tuple[float, int, Tensor, int]] = []  # weight, client, start, step
        self._gradient: Tensor | None = None  # (trainable,) the weighted sum
        self._total = self._moved = 0.0
        self._rho = self._beta = self._noise = self._loss = self._compared = 0.0

    def add(
        self,
        client: int,
        weight: float,
        start: Tensor,
        end: Tensor,
        step: int,
        also: Tensor | None = None,  # (P,) a model whose loss is reported with that of `start`
    ) -> None:
        """Note a client. `estimates` reads `start` again, so it must not change until then."""
        found = probe(self._engine, client, start, end, step)
        if also is not None:
            self._compared += weight * self._engine.loss_and_gradient(client, also, step)[0]
        self._asked.append((weight, client, start, step))
        if self._gradient is None:
            self._gradient = torch.zeros(len(found.gradient), dtype=torch.float64)
        self._gradient.add_(found.gradient, alpha=weight)
        self._total += weight
        self._moved += weight if found.gap else 0.0
        self._rho += weight * found.rho
        self._beta += weight * found.beta
        self._noise += weight * found.noise
        self._loss += weight * found.loss_start

    def estimates(self) -> Estimates:
        """Compute all gradients again: keeping them would take the memory of a model per client."""
        if self._gradient is None or not self._total:
            raise InputError("estimates need at least one client with data")
        mean, delta = self._gradient / self._total, 0.0
        for weight, client, start, step in self._asked:
            _, gradient = self._engine.loss_and_gradient(client, start, step)
            delta += weight * _distance(gradient, mean)
        moved = self._moved or 1.0
        return Estimates(
            self._rho / moved,
            self._beta / moved,
            delta / self._total,
            self._noise / self._total,
            self._loss / self._total,
            compared=self._compared / self._total,
        )


def estimate(
    engine: Probing,
    starts: Mapping[int, Tensor],
    ends: Mapping[int, Tensor],
    steps: Mapping[int, int],
    weights: Mapping[int, float],
) -> Estimates:
    """The estimates of the clients in `ends`; the mappings are read one client after another."""
    found = Estimator(engine)
    for client in ends:
        found.add(client, weights[client], starts[client], ends[client], steps[client])
    return found.estimates()


def batch_noise(distance: Apart) -> Apart:
    """sigma squared, from the distance between two mini-batches' gradients at one model."""
    return distance**2 / 2


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm())
