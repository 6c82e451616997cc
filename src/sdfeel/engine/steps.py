"""One mini-batch step, by plain SGD or one of torch's optimisers."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from sdfeel.core.errors import InputError, unknown
from sdfeel.engine.base import Training
from sdfeel.engine.penalties import Penalty, Proximal
from sdfeel.models.flat import FlatModule


class Objective:
    """What a client descends: its loss, its penalties, and a linear term.

    The linear term is the model times the task's shift. Its gradient is the shift itself, which
    is added to the loss's: differentiating the term would cost as much as a small model's step.
    """

    def __init__(self, flat: FlatModule, training: Training) -> None:
        self._flat, self._loss = flat, training.loss
        self._penalties: list[Penalty] = list(training.penalties.values())
        if training.proximal:
            self._penalties.append(Proximal(training.proximal))
        self._starts: list[Tensor] = []
        self._shifts: list[Tensor] = []

    def begin(self, shift: Tensor | None) -> None:
        self._shifts = [] if shift is None else self._split(shift)
        if self._penalties:
            self._starts = [parameter.detach().clone() for parameter in self._flat.trainable]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self._loss(self._flat.module(x), y)
        for penalty in self._penalties:
            for parameter, start in zip(self._flat.trainable, self._starts, strict=True):
                loss = loss + penalty(parameter, start)
        return loss

    def gradients(self, loss: Tensor, create_graph: bool = False) -> list[Tensor | None]:
        """Of the whole objective, where `loss` is what calling it gave."""
        found = torch.autograd.grad(
            loss, self._flat.trainable, create_graph=create_graph, allow_unused=True
        )
        return self.shifted(found)

    def shifted(self, gradients: Iterable[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the loss with those of the linear term."""
        if not self._shifts:
            return list(gradients)
        return [
            shift.clone() if gradient is None else gradient + shift
            for gradient, shift in zip(gradients, self._shifts, strict=True)
        ]

    def linear(self) -> float:
        """The value of the linear term."""
        pairs = zip(self._flat.trainable, self._shifts, strict=False)
        return sum(float((parameter.detach() * shift).sum()) for parameter, shift in pairs)

    def _split(self, row: Tensor) -> list[Tensor]:
        """Views of a row's trainable part with the parameters' shapes."""
        parts = torch.split_with_sizes(row[: self._flat.parameters], self._flat.layout.trainable)
        return [part.view_as(p) for part, p in zip(parts, self._flat.trainable, strict=True)]


class PlainSGD:
    """w := w - learning rate * gradient, and nothing else."""

    def __init__(self, flat: FlatModule, training: Training) -> None:
        self._parameters, self._objective = flat.trainable, Objective(flat, training)
        self._rate = self._usual = training.learning_rate

    def begin(self, client: int, rate: float, shift: Tensor | None) -> None:
        self._rate = self._usual * rate
        self._objective.begin(shift)

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        gradients = self._objective.gradients(self._objective(x, y))
        with torch.no_grad():
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.add_(gradient, alpha=-self._rate)


class TorchOptimizer:
    """Any optimiser of torch.optim. Its state is forgotten at every broadcast.

    A client's momentum belongs to a model that the server has just replaced.
    """

    def __init__(self, flat: FlatModule, training: Training, others: Iterable[str] = ()) -> None:
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
        self._parameters, self._objective = flat.trainable, Objective(flat, training)
        self._usual = training.learning_rate

    def begin(self, client: int, rate: float, shift: Tensor | None) -> None:
        self._optimizer.state.clear()
        for group in self._optimizer.param_groups:
            group["lr"] = self._usual * rate
        self._objective.begin(shift)

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        def closure() -> float:
            self._optimizer.zero_grad()
            loss = self._objective(x, y)
            torch.autograd.backward(loss)
            gradients = self._objective.shifted(p.grad for p in self._parameters)
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            return loss.item() + self._objective.linear()

        self._optimizer.step(closure)
