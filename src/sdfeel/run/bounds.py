"""What Theorem 1 promises for a run, from what its losses have shown so far.

The theorem bounds the mean of the squared gradients at the mean model, over all iterations so far.
Its constants must hold everywhere, so the worst value seen counts; later looks can only raise them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sdfeel.theory import synchronous
from sdfeel.theory.problem import Problem

# The log's names for what is measured and what is promised.
SLOPE, MEAN = "squared_gradient", "mean_squared_gradient"
SMOOTHNESS, NOISE, DIVERGENCE = "smoothness", "noise", "divergence"
BOUND, PROVEN, COVERED = "bound", "proven_rate", "covered"
NAMES = (SLOPE, MEAN, SMOOTHNESS, NOISE, DIVERGENCE, BOUND, PROVEN, COVERED)
WITHIN = 1 - 1e-9  # exactly at the largest step, rounding decides whether the theorem holds


@dataclass(frozen=True)
class Covered:
    """What Theorem 1 needs to know about how a run trains."""

    rate: float
    period: float  # local steps between two exchanges of the servers
    contraction: float  # the disagreement left after one exchange of all servers
    concentration: float  # sum of the clients' squared shares
    words: str = ""  # the same in words

    def largest(self, smoothness: float) -> float:
        """The largest learning rate for which the theorem holds."""
        return synchronous.largest_step(smoothness, self.period, self.contraction)


@dataclass(frozen=True)
class LossProbe:
    """One look at the clients' losses, all at the same model."""

    loss: float
    slope: float  # the squared length of everyone's gradient
    smoothness: float  # L: the largest of all clients
    noise: float  # sigma squared
    divergence: float  # kappa squared


@dataclass(frozen=True)
class Promise:
    """What is kept from one look to the next."""

    gap: float  # the loss at the beginning: Delta, if the least possible loss is 0
    newest: LossProbe
    smoothness: float  # the largest so far, as all below
    noise: float
    divergence: float
    iterations: int = 0
    total: float = 0.0  # the squared gradients of all iterations, on a line between two looks

    @classmethod
    def begin(cls, seen: LossProbe) -> "Promise":
        """After the first look, before any training."""
        return cls(seen.loss, seen, seen.smoothness, seen.noise, seen.divergence)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Promise":
        """The inverse of `record`."""
        return cls(**{**record, "newest": LossProbe(**record["newest"])})

    def record(self) -> dict[str, Any]:
        """The fields as a dictionary, for a checkpoint."""
        return asdict(self)

    def after(self, iterations: int, seen: LossProbe) -> "Promise":
        """The promise after another look, `iterations` local iterations into the run."""
        passed = iterations - self.iterations
        return replace(
            self,
            newest=seen,
            smoothness=max(self.smoothness, seen.smoothness),
            noise=max(self.noise, seen.noise),
            divergence=max(self.divergence, seen.divergence),
            iterations=iterations,
            total=self.total + passed * (self.newest.slope + seen.slope) / 2,
        )

    @property
    def mean(self) -> float:
        """What the theorem bounds: the mean of the squared gradients so far."""
        return self.total / self.iterations if self.iterations else self.newest.slope

    def measurements(self, covered: Covered | None) -> dict[str, float]:
        """For the log: what was seen, and what is promised if the theorem covers the run.

        Beyond the largest step that the theorem allows, it promises nothing; the bound is then that
        of a run with the largest step.
        """
        seen = self.newest
        found = {
            SLOPE: seen.slope,
            MEAN: self.mean,
            SMOOTHNESS: seen.smoothness,
            NOISE: seen.noise,
            DIVERGENCE: seen.divergence,
        }
        if covered is None:
            return found
        largest = covered.largest(self.smoothness)
        found |= {PROVEN: largest, COVERED: float(covered.rate <= largest)}
        if self.iterations:
            found[BOUND] = synchronous.bound(
                self.problem(covered.concentration),
                min(covered.rate, largest * WITHIN),
                self.iterations,
                covered.period,
                covered.contraction,
            )
        return found

    def problem(self, concentration: float) -> Problem:
        """The task in the theorem's terms, with the worst values seen."""
        return Problem(self.smoothness, self.noise, self.divergence, self.gap, concentration)
