"""What may be added to a client's loss: regularisers.

To add one, write it here and give it a line in PENALTIES: from then on experiments, Python and
every engine know it, or refuse it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sdfeel.core.errors import InputError, unknown


class Penalty(Protocol):
    """A term of the loss."""

    def __call__(self, parameter: Tensor, start: Tensor) -> Tensor:
        """What one tensor of the model adds; `start` is what it was when the round began."""
        ...


@dataclass(frozen=True)
class Proximal:
    """A pull towards where the round began (FedProx): `training.proximal`, known to schemes."""

    strength: float

    def __call__(self, parameter: Tensor, start: Tensor) -> Tensor:
        return self.strength / 2 * (parameter - start).square().sum()


@dataclass(frozen=True)
class L1:
    """The sum of all magnitudes, which makes models sparse."""

    strength: float

    def __call__(self, parameter: Tensor, start: Tensor) -> Tensor:
        return self.strength * parameter.abs().sum()


PENALTIES: dict[str, Callable[[float], Penalty]] = {"l1": L1}


def penalties(asked: Mapping[str, float | Penalty]) -> dict[str, Penalty]:
    """Penalties by name: from the table with these strengths, or the user's own."""
    return {name: _made(name, given) for name, given in asked.items() if given != 0}


def _made(name: str, given: float | Penalty) -> Penalty:
    if callable(given):
        return given
    if name not in PENALTIES:
        raise unknown("penalty", name, PENALTIES)
    if not given > 0:
        raise InputError(f"the penalty {name} must have a strength of at least 0, got {given:g}")
    return PENALTIES[name](given)
