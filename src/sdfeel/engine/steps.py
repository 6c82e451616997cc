"""One mini-batch step, by plain SGD or an optimiser of torch."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sdfeel.core.errors import InputError, unknown
from sdfeel.models.flat import FlatModule

if TYPE_CHECKING:
    from sdfeel.engine.loop import Training


class Objective:
    """What a client descends: its loss, and the pull to where its round began, if there is one."""

    def __init__(self, flat: FlatModule, training: "Training") -> None:
        self._flat, self._loss, self._pull = flat, training.loss, training.proximal
        self._anchors: list[Tensor] = []

    def begin(self) -> None:
        if self._pull:
            self._anchors = [parameter.detach().clone() for parameter in self._flat.trainable]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self._loss(self._flat.module(x), y)
        for parameter, anchor in zip(self._flat.trainable, self._anchors, strict=False):
            loss = loss + self._pull / 2 * (parameter - anchor).square().sum()
        return loss


class PlainSGD:
    """w := w - learning rate * gradient, and nothing else."""

    def __init__(self, flat: FlatModule, training: "Training") -> None:
        self._parameters, self._objective = flat.trainable, Objective(flat, training)
        self._rate = self._usual = training.learning_rate

    def begin(self, client: int, rate: float) -> None:
        self._rate = self._usual * rate
        self._objective.begin()

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        gradients = torch.autograd.grad(self._objective(x, y), self._parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.add_(gradient, alpha=-self._rate)


class TorchOptimizer:
    """Any optimiser of torch.optim. Its state is forgotten at every broadcast.

    A client's momentum belongs to a model that the server has just replaced.
    """

    def __init__(self, flat: FlatModule, training: "Training", others: Iterable[str] = ()) -> None:
        kinds = {
            name.lower(): kind
            for name, kind in vars(torch.optim).items()
            if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        }
        kinds.pop("optimizer")
        if training.optimizer.lower() not in kinds:
            raise unknown("optimizer", training.optimizer, [*kinds, *others])
        kind: Callable[..., torch.optim.Optimizer] = kinds[training.optimizer.lower()]
        try:
            self._optimizer = kind(flat.trainable, lr=training.learning_rate, **training.options)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"optimizer {training.optimizer} refused its options: {error}"
            ) from None
        self._usual, self._objective = training.learning_rate, Objective(flat, training)

    def begin(self, client: int, rate: float) -> None:
        self._optimizer.state.clear()
        for group in self._optimizer.param_groups:
            group["lr"] = self._usual * rate
        self._objective.begin()

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        def closure() -> float:
            self._optimizer.zero_grad()
            loss = self._objective(x, y)
            torch.autograd.backward(loss)
            return loss.item()

        self._optimizer.step(closure)
