"""Steps divided by diagonal curvatures, which travel with the model (`newton-diagonal`)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from sdfeel.core.errors import InputError
from sdfeel.core.seeds import rng
from sdfeel.engine.base import Training
from sdfeel.engine.objective import Objective
from sdfeel.models.flat import FlatModule

NEWTON = "newton-diagonal"


@dataclass(frozen=True)
class NewtonOptions:
    """What `training.optimizer_options` may hold."""

    damping: Annotated[float, "added to every curvature, for flat losses"] = 0.3
    decay: Annotated[float, "of the running average of the estimates"] = 0.9
    probes: Annotated[int, "of one estimate; each costs about two gradients"] = 1
    every: Annotated[int, "steps between two estimates"] = 1
    identity: Annotated[bool, "take all curvatures as one: plain SGD"] = False

    def __post_init__(self) -> None:
        faults = {
            "damping must be at least 0": self.damping < 0,
            "decay must be at least 0 and below 1": not 0 <= self.decay < 1,
            "probes must be at least 1": self.probes < 1,
            "every must be at least 1": self.every < 1,
        }
        for fault, found in faults.items():
            if found:
                raise InputError(f"{NEWTON}: {fault}, got {getattr(self, fault.split()[0])}")


def read_newton(options: dict[str, Any]) -> NewtonOptions:
    names = [each.name for each in fields(NewtonOptions)]
    for name in options:
        if name not in names:
            raise InputError(f"{NEWTON} has no option {name}: its options are {', '.join(names)}")
    return NewtonOptions(**options)


def newton_carried(module: nn.Module, options: NewtonOptions) -> tuple[int, ...]:
    """The curvature of each parameter, and how much of a full average it is so far."""
    own = [p.numel() for p in module.parameters() if p.requires_grad]
    return () if options.identity else (*own, 1)


class NewtonDiagonal:
    """Steps divided by curvatures, which are stored in the row after the model.

    An average that begins at zero is too small at first. So is `mass`, the average of ones; both
    are mixed alike, wherever models are, and their quotient is right from the first step on.
    """

    def __init__(self, flat: FlatModule, training: Training, seed: int) -> None:
        self._options, self._seed = read_newton(training.options), seed
        self._parameters, self._objective = flat.trainable, Objective(flat, training)
        self._curvatures, self._mass = flat.carried[:-1], flat.carried[-1:]
        self._rate = self._usual = training.learning_rate
        self._client = 0

    def begin(self, client: int, rate: float, shift: Tensor | None, pull: float) -> None:
        self._client, self._rate = client, self._usual * rate
        self._objective.begin(shift, pull)

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        identity = self._options.identity
        asked = not identity and (step % self._options.every == 0 or not self._mass)
        gradients = self._objective.gradients(self._objective(x, y), create_graph=asked)
        if asked:
            self._learn(gradients, step)
        with torch.no_grad():
            for parameter, gradient, scale in zip(
                self._parameters, gradients, self._scales(), strict=True
            ):
                if gradient is not None:
                    way = gradient if scale is None else gradient / scale
                    parameter.add_(way, alpha=-self._rate)

    def _scales(self) -> list[Tensor] | list[None]:
        """What each parameter's gradient is divided by."""
        if self._options.identity:
            return [None] * len(self._parameters)
        # Mixing weights may be negative, and so may a mixed mass: raise it to the least true one.
        mass = self._mass.clamp(min=1 - self._options.decay)
        scales = (self._curvatures / mass).abs_().add_(self._options.damping)
        return self._split(scales)

    def _learn(self, gradients: Sequence[Tensor | None], step: int) -> None:
        """Include an estimate in the running average."""
        decay = self._options.decay
        found = self._estimate(gradients, step)
        self._curvatures.mul_(decay).add_(found, alpha=1 - decay)
        self._mass.mul_(decay).add_(1 - decay)

    def _estimate(self, gradients: Sequence[Tensor | None], step: int) -> Tensor:
        """(trainable,) the mean of z * (H z) over random signs z."""
        draws = rng(self._seed, NEWTON, self._client, step)
        total = torch.zeros_like(self._curvatures)
        for _ in range(self._options.probes):
            bits = draws.integers(0, 2, size=len(total), dtype=np.int8)
            signs = torch.from_numpy(bits).to(total.dtype).mul_(2).sub_(1)
            total += signs * self._product(gradients, self._split(signs))
        return total / self._options.probes

    def _product(self, gradients: Sequence[Tensor | None], signs: list[Tensor]) -> Tensor:
        """(trainable,) the Hessian times `signs`."""
        terms = [
            (gradient * sign).sum()
            for gradient, sign in zip(gradients, signs, strict=True)
            if gradient is not None and gradient.requires_grad
        ]
        if not terms:  # a loss without any curvature
            return torch.zeros_like(self._curvatures)
        parts = torch.autograd.grad(
            torch.stack(terms).sum(),
            self._parameters,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return torch.cat([part.reshape(-1) for part in parts])

    def _split(self, flat: Tensor) -> list[Tensor]:
        """Views of a (trainable,) vector with the parameters' shapes."""
        sizes = [parameter.numel() for parameter in self._parameters]
        parts = torch.split_with_sizes(flat, sizes)
        return [part.view_as(p) for part, p in zip(parts, self._parameters, strict=True)]
