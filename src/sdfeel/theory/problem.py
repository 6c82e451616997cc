"""What the bounds must know of a learning task."""

from dataclasses import dataclass
from math import isfinite

from sdfeel.core.errors import InputError


@dataclass(frozen=True)
class Problem:
    """The paper's three assumptions as numbers, and how far there is to go."""

    smoothness: float  # L: how fast gradients change
    noise: float  # sigma squared: variance of one mini-batch gradient
    divergence: float  # kappa squared: how far clients' gradients are from everyone's; IID: 0
    gap: float  # Delta: the loss at the start minus the least possible loss
    concentration: float  # sum of the squared shares of all clients; 1 / C when all are equal

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (isfinite(value) and value >= 0):
                raise InputError(f"{name} must be a finite number of at least 0, got {value:g}")
        if self.smoothness == 0:
            raise InputError("smoothness must be above 0, got 0")

    @property
    def floor(self) -> float:
        """Phi_0 of Theorem 1: the noise that is left after averaging over all clients."""
        return self.noise * self.concentration
