"""Adam's steps from moments that travel with the model (`shared-adam`)."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from sdfeel.core.errors import InputError
from sdfeel.engine.base import Training
from sdfeel.engine.objective import Objective
from sdfeel.models.flat import FlatModule

SHARED_ADAM = "shared-adam"


@dataclass(frozen=True)
class SharedAdamOptions:
    """What `training.optimizer_options` may hold."""

    beta1: Annotated[float, "decay of the mean of gradients"] = 0.9
    beta2: Annotated[float, "decay of the mean of their squares"] = 0.999
    eps: Annotated[float, "added to the root of the squares"] = 1e-8

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"{SHARED_ADAM}: {name} must be at least 0 and below 1, "
                    f"got {getattr(self, name)}"
                )
        if not self.eps > 0:
            raise InputError(f"{SHARED_ADAM}: eps must be above 0, got {self.eps}")


def read_shared_adam(options: dict[str, Any]) -> SharedAdamOptions:
    names = [each.name for each in fields(SharedAdamOptions)]
    for name in options:
        if name not in names:
            raise InputError(
                f"{SHARED_ADAM} has no option {name}: its options are {', '.join(names)}"
            )
    return SharedAdamOptions(**options)


def adam_carried(module: nn.Module) -> tuple[int, ...]:
    """Both moments of each parameter, and how much of a full average each is so far."""
    own = [p.numel() for p in module.parameters() if p.requires_grad]
    return (*own, *own, 2)


class SharedAdam:
    """Adam's steps from moments that are stored in the row after the model.

    Averages that begin at zero are too small at first. So are the averages of ones that are mixed
    with them; the quotient is Adam's bias correction, whoever was averaged with whom.
    """

    def __init__(self, flat: FlatModule, training: Training) -> None:
        self._options = read_shared_adam(training.options)
        self._parameters, self._objective = flat.trainable, Objective(flat, training)
        count = sum(p.numel() for p in flat.trainable)
        self._first, self._second = flat.carried[:count], flat.carried[count : 2 * count]
        self._masses = flat.carried[2 * count :]
        self._rate = self._usual = training.learning_rate

    def begin(self, client: int, rate: float, shift: Tensor | None, pull: float) -> None:
        self._rate = self._usual * rate
        self._objective.begin(shift, pull, client)

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        found = self._objective.slope(x, y, step)
        with torch.no_grad():
            parts = [
                torch.zeros_like(p) if gradient is None else gradient
                for p, gradient in zip(self._parameters, found, strict=True)
            ]
            way = self._way(torch.cat([part.reshape(-1) for part in parts]))
            sizes = [p.numel() for p in self._parameters]
            for parameter, part in zip(self._parameters, way.split_with_sizes(sizes), strict=True):
                parameter.add_(part.view_as(parameter), alpha=-self._rate)

    def _way(self, gradient: Tensor) -> Tensor:
        """(trainable,) the direction of the step, after the moments have taken in the gradient."""
        own = self._options
        self._first.mul_(own.beta1).add_(gradient, alpha=1 - own.beta1)
        self._second.mul_(own.beta2).addcmul_(gradient, gradient, value=1 - own.beta2)
        decays = torch.tensor([own.beta1, own.beta2], dtype=self._masses.dtype)
        self._masses.mul_(decays).add_(1 - decays)
        # Mixing weights may be negative, and so may mixed masses and squares: raise them to a
        # floor.
        masses = torch.maximum(self._masses, 1 - decays)
        squares = self._second.clamp(min=0).div_(masses[1])
        return (self._first / masses[0]).div_(squares.sqrt_().add_(own.eps))
