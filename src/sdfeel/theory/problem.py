"""What the bounds need to know about a learning task."""

from dataclasses import dataclass
from math import isfinite

from sdfeel.core.errors import InputError


@dataclass(frozen=True)
class Problem:
    """The paper's three assumptions as numbers, and how far the loss has to fall."""

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


ROOM = 1 + 1e-9  # no warning for a rate that was chosen as the largest proven one


def warning(learning_rate: float, largest: float, theorem: int, setting: str) -> str | None:
    """A warning about a learning rate that a theorem does not cover; None if it does.

    `largest` is the largest step for which the theorem proves convergence; the curvature behind
    it is measured, so it is never below the true one.

    >>> warning(0.001, 0.00673, 1, "tau1=5, L=1") is None
    True
    >>> print(warning(0.05, 0.00673, 1, "tau1=5, L=1"))
    learning rate 0.05 is at least 7.4 times the largest step for which Theorem 1 proves \
convergence (0.00673, with tau1=5, L=1); training may work all the same
    """
    if learning_rate <= largest * ROOM:
        return None
    times = learning_rate / largest
    said = f"{times:.1f}" if times < 10 else f"{times:.0f}"
    return (
        f"learning rate {learning_rate:g} is at least {said} times the "
        f"largest step for which Theorem {theorem} proves convergence ({largest:.3g}, with "
        f"{setting}); training may work all the same"
    )
