"""What a plan aims at, and how to read a training curve against it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from sdfeel.core.errors import InputError

Kind = Literal["accuracy", "loss", "budget"]


@dataclass(frozen=True)
class PilotPoint:
    """A measurement during a pilot run."""

    seconds: float  # virtual
    iterations: int
    accuracy: float | None
    loss: float
    steps: int  # local steps of all clients so far: the cost of simulating it


@dataclass(frozen=True)
class Goal:
    """A target to reach soon, or a time to make the most of."""

    kind: Kind
    value: float  # an accuracy, a training loss, or virtual seconds

    def __post_init__(self) -> None:
        if self.kind == "accuracy" and not 0 < self.value <= 1:
            raise InputError(
                f"the target accuracy must be above 0 and at most 1, got {self.value:g}"
            )
        if self.kind != "accuracy" and not 0 < self.value < inf:
            name = "budget" if self.kind == "budget" else "target loss"
            raise InputError(f"the {name} must be above 0, got {self.value:g}")

    @property
    def horizon(self) -> float:
        """Virtual seconds after which nothing counts."""
        return self.value if self.kind == "budget" else inf

    @property
    def level(self) -> float:
        """The score to reach; infinite where more is always better."""
        return {"accuracy": self.value, "loss": -self.value, "budget": inf}[self.kind]

    def score(self, point: PilotPoint) -> float:
        """How good a model is: more is better."""
        if self.kind == "loss" or point.accuracy is None:
            return -point.loss
        return point.accuracy

    def first(self, points: Sequence[PilotPoint], level: float) -> PilotPoint | None:
        """The first measurement with at least that score, within the horizon."""
        for point in points:
            if point.seconds <= self.horizon and self.score(point) >= level:
                return point
        return None

    def best(self, points: Sequence[PilotPoint], until: float = inf) -> float:
        """The best score up to a moment; minus infinity before the first measurement.

        It is the best, not the last, because single measurements jump up and down.
        """
        until = min(until, self.horizon)
        return max((self.score(p) for p in points if p.seconds <= until), default=-inf)
