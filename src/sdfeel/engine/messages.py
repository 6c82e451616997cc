"""Models and updates that take fewer bits on the wire, and what their senders still owe.

A codec is lossy: a message `x` arrives as `Q(x)`. With error feedback the sender adds what was
lost to its next message, so that nothing is lost for good.

After Mills et al. 2020 (CE-FedAvg) and Amiri and Gündüz 2020 (D-DSGD).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.errors import InputError, unknown
from sdfeel.core.seeds import rng

FLOAT = 32  # bits of a number as it is, and of a scale

Sizes = tuple[int, ...]  # elements of each tensor of a row


class Codec(Protocol):
    """A way to write a row with fewer bits."""

    unbiased: ClassVar[bool]  # is what arrives right on average?

    def encode(self, x: Tensor, sizes: Sizes, draws: np.random.Generator) -> Tensor:
        """(P,) what arrives when `x` is sent."""
        ...

    def bits(self, sizes: Sizes) -> int:
        """Bits of one message."""
        ...

    def fidelity(self, sizes: Sizes) -> float:
        """The share of a message's energy that arrives at least, or almost surely."""
        ...


@dataclass(frozen=True)
class Plain:
    """Every number as it is."""

    unbiased: ClassVar[bool] = False

    def encode(self, x: Tensor, sizes: Sizes, draws: np.random.Generator) -> Tensor:
        return x

    def bits(self, sizes: Sizes) -> int:
        return FLOAT * sum(sizes)

    def fidelity(self, sizes: Sizes) -> float:
        return 1.0


@dataclass(frozen=True)
class Uniform:
    """Each tensor on an even grid from minus to plus its largest entry, zero included.

    Entries are rounded up or down at random such that their mean is right.
    """

    unbiased: ClassVar[bool] = True

    width: Annotated[int, "bits per number, 2 to 32; 32 sends numbers as they are"] = 8

    def __post_init__(self) -> None:
        if not 2 <= self.width <= FLOAT:
            raise InputError(f"a quantiser's width must be 2 to {FLOAT} bits, got {self.width}")

    def encode(self, x: Tensor, sizes: Sizes, draws: np.random.Generator) -> Tensor:
        if self.width == FLOAT:
            return x
        parts = torch.split_with_sizes(x, sizes)
        return torch.cat([self._rounded(part, draws) for part in parts])

    def _rounded(self, x: Tensor, draws: np.random.Generator) -> Tensor:
        words = torch.from_numpy(draws.random(len(x)))  # drawn even if not used: by position
        scale = x.abs().max().double() if len(x) else torch.zeros(())
        if not scale:
            return x
        levels = 2 ** (self.width - 1) - 1  # on either side of zero
        # A wide grid's last place plus almost one may be rounded to a place beyond it.
        places = (x.double() / scale * levels + words).floor().clamp(max=levels)
        rounded: Tensor = (places / levels * scale).to(x.dtype)
        return rounded

    def bits(self, sizes: Sizes) -> int:
        """A scale per tensor; as they are, numbers need none."""
        if self.width == FLOAT:
            return FLOAT * sum(sizes)
        return self.width * sum(sizes) + FLOAT * len(sizes)

    def fidelity(self, sizes: Sizes) -> float:
        """Rounding at random adds energy: so much is left of the original in a typical message."""
        levels = 2 ** (self.width - 1) - 1
        noise = np.log(max(sizes, default=1)) / (2 * levels**2)  # bell-shaped entries
        return float(1 / (1 + noise))


@dataclass(frozen=True)
class TopK:
    """The entries of largest magnitude, with their places; of equal ones, those that come first."""

    unbiased: ClassVar[bool] = False

    share: Annotated[float, "of the entries are sent"] = 0.01
    k: Annotated[int, "entries are sent, whatever the share (0: the share decides)"] = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"the share of entries must be above 0 and at most 1: {self.share:g}")
        if self.k < 0:
            raise InputError(f"the number of entries k must be at least 0, got {self.k}")

    def kept(self, count: int) -> int:
        """How many of `count` entries are sent."""
        return min(count, self.k or max(1, round(self.share * count)))

    def encode(self, x: Tensor, sizes: Sizes, draws: np.random.Generator) -> Tensor:
        kept = self.kept(len(x))
        if kept == len(x):
            return x
        size = x.abs()
        least = torch.topk(size, kept, sorted=False).values.min()
        chosen = size > least
        ties = (size == least).nonzero().squeeze(1)
        chosen[ties[: kept - int(chosen.sum())]] = True
        return torch.where(chosen, x, torch.zeros_like(x))

    def bits(self, sizes: Sizes) -> int:
        """A number and its place for each entry; all entries need no places."""
        count = sum(sizes)
        kept = self.kept(count)
        return FLOAT * count if kept == count else kept * (FLOAT + (count - 1).bit_length())

    def fidelity(self, sizes: Sizes) -> float:
        """The largest entries hold at least their share of the energy."""
        return self.kept(sum(sizes)) / sum(sizes)


CODECS: dict[str, Callable[..., Codec]] = {"none": Plain, "uniform": Uniform, "top-k": TopK}


def codec(name: str, **options: object) -> Codec:
    """
    >>> codec("top-k", k=3).bits((100, 20))
    117
    """
    if name not in CODECS:
        raise unknown("compression", name, CODECS)
    try:
        return CODECS[name](**options)
    except TypeError as error:
        raise InputError(f"compression {name} refused its options: {error}") from None


@dataclass
class Feedback:
    """What each sender still owes its receivers: `owed := x + owed - Q(x + owed)`.

    Debts are float64. Numbers of the models' own type then add up without rounding, unless
    their magnitudes lie more than some 29 bits apart. Senders over different kinds of links need
    a memory, and a purpose, each.
    """

    codec: Codec
    sizes: Sizes
    seed: int
    purpose: str = "quantise"  # of the random numbers
    owed: dict[int, Tensor] = field(default_factory=dict)  # sender -> (P,), all that must be saved

    def send(self, x: Tensor, sender: int, *when: int) -> Tensor:
        """(P,) what arrives when `sender` sends `x`, and it may be `x` itself.

        `when` (a round, or a round and a hop) must be another for each of its messages.
        """
        draws = rng(self.seed, self.purpose, sender, *when)
        debt = self.owed.pop(sender, None)
        if debt is None:  # not x + 0, which would turn -0 into 0
            sent = self.codec.encode(x, self.sizes, draws)
            debt = x.double() - sent.double()
        else:
            debt = x.double() + debt
            sent = self.codec.encode(debt.to(x.dtype), self.sizes, draws)
            debt -= sent.double()
        if debt.any():
            self.owed[sender] = debt
        return sent
