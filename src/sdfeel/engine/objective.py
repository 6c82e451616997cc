"""What a client descends: its loss, its penalties, and a linear term."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from sdfeel.core.seeds import hidden
from sdfeel.engine.base import Penalty, PrivateSteps, Proximal, Training
from sdfeel.models.flat import FlatModule


class Objective:
    """What a client descends: its loss, its penalties, and a linear term.

    The linear term is the model times the task's shift. Its gradient is the shift itself, which
    is added to the loss's: differentiating the term would cost as much as a small model's step.
    """

    def __init__(self, flat: FlatModule, training: Training) -> None:
        self._flat, self._loss, self._private = flat, training.loss, training.private
        self._address: tuple[int, int] = (0, 0)  # of a round's noise
        self._largest = training.clip_norm
        self._usual, self._proximal = list(training.penalties.values()), training.proximal
        self._penalties: list[Penalty] = []
        self._starts: list[Tensor] = []
        self._shifts: list[Tensor] = []

    def begin(self, shift: Tensor | None, pull: float, client: int = 0) -> None:
        if self._private is not None:  # the same steps from another model need noise of their own
            start = hashlib.sha256(self._flat.row.detach().numpy().tobytes()).digest()
            self._address = client, int.from_bytes(start, "big")
        self._shifts = [] if shift is None else self._split(shift)
        pulled = self._proximal + pull
        self._penalties = [*self._usual, Proximal(pulled)] if pulled else self._usual
        if self._penalties:
            self._starts = [parameter.detach().clone() for parameter in self._flat.trainable]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return self._penalised(self._loss(self._flat.module(x), y))

    def _penalised(self, loss: Tensor) -> Tensor:
        for penalty in self._penalties:
            for parameter, start in zip(self._flat.trainable, self._starts, strict=True):
                loss = loss + penalty(parameter, start)
        return loss

    def slope(self, x: Tensor, y: Tensor, step: int) -> list[Tensor | None]:
        """The gradients that a step follows: exact, or private ones (`PrivateSteps`)."""
        if self._private is None:
            return self.gradients(self(x, y))
        noisy: list[Tensor | None] = list(self._noisy(x, y, step, self._private))
        if self._penalties:  # they depend on the model alone, which is not a secret
            extra = torch.autograd.grad(self._penalised(torch.zeros(())), self._flat.trainable)
            noisy = [a + b for a, b in zip(noisy, extra, strict=True) if a is not None]
        return self.shifted(noisy)

    def _noisy(self, x: Tensor, y: Tensor, step: int, how: PrivateSteps) -> list[Tensor]:
        """The mean of clipped gradients, one of each example, with noise."""
        outputs, count = self._flat.module(x), len(x)
        losses = torch.stack([self._loss(outputs[n : n + 1], y[n : n + 1]) for n in range(count)])
        found = torch.autograd.grad(
            losses,
            self._flat.trainable,
            torch.eye(count, dtype=losses.dtype),
            is_grads_batched=True,
            allow_unused=True,
            materialize_grads=True,
        )
        rows = torch.cat([each.reshape(count, -1) for each in found], dim=1).double()
        scale = (how.clip / rows.norm(dim=1).clamp(min=1e-300)).clamp(max=1.0)
        total = (rows * scale[:, None]).sum(dim=0)
        draws = hidden(how.secret, "examples", *self._address, step)
        noise = how.noise * how.clip * draws.standard_normal(len(total))
        mean = (total + torch.from_numpy(noise)) / count
        return self._split(mean.to(self._flat.row.dtype))

    def gradients(self, loss: Tensor, create_graph: bool = False) -> list[Tensor | None]:
        """Gradients of the whole objective, where `loss` is what calling it gave."""
        found = torch.autograd.grad(
            loss, self._flat.trainable, create_graph=create_graph, allow_unused=True
        )
        return self.shifted(found)

    def shifted(self, gradients: Iterable[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the loss with those of the linear term, together no longer than allowed."""
        found = list(gradients)
        if self._shifts:
            found = [
                shift.clone() if gradient is None else gradient + shift
                for gradient, shift in zip(found, self._shifts, strict=True)
            ]
        return found if self._largest is None else _clipped(found, self._largest)

    def linear(self) -> float:
        """The value of the linear term."""
        pairs = zip(self._flat.trainable, self._shifts, strict=False)
        return sum(float((parameter.detach() * shift).sum()) for parameter, shift in pairs)

    def _split(self, row: Tensor) -> list[Tensor]:
        """Views of a row's trainable part with the parameters' shapes."""
        parts = torch.split_with_sizes(row[: self._flat.parameters], self._flat.layout.trainable)
        return [part.view_as(p) for part, p in zip(parts, self._flat.trainable, strict=True)]


def _clipped(gradients: list[Tensor | None], largest: float) -> list[Tensor | None]:
    """The same direction, with a norm of at most `largest`; what is shorter stays as it is."""
    there = [gradient.detach() for gradient in gradients if gradient is not None]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in there]))
    if not norm > largest:  # which leaves values that are not finite to be noticed later
        return gradients
    return [None if each is None else each * (largest / norm) for each in gradients]
