"""total + weight * row, rounded once, on every CPU.

torch adds a multiple of a tensor in one operation, which rounds once where the CPU multiplies and
adds in one step, as modern ones do. Where it does not, the same numbers come from more operations.
"""

from functools import cache

import torch
from torch import Tensor


def add_multiple(total: Tensor, row: Tensor, weight: float) -> None:
    """Let `total` grow by `weight` times `row`, both float64."""
    if torch_fuses():
        total.add_(row, alpha=weight)
    else:
        total.copy_(by_hand(total, row, weight))


@cache
def torch_fuses() -> bool:
    """Does torch round once, in whole vectors and in what is left over?"""
    draws = torch.Generator().manual_seed(0)
    for size in (*range(1, 40), 4099):
        total, row = torch.rand(2, size, dtype=torch.float64, generator=draws)
        if not torch.equal(total.add(row, alpha=1 / 3), by_hand(total, row, 1 / 3)):
            return False
    return True


def by_hand(total: Tensor, row: Tensor, weight: float) -> Tensor:
    """The same by single operations (Boldo and Melquiond, "Emulation of FMA", 2008).

    Everything but the last addition is exact, or its last bit says that it was not.
    """
    product, rest = _product(row, torch.full_like(row, weight))
    middle, low = _sum(total, rest)
    high, more = _sum(product, middle)
    return high + _odd_sum(more, low)


def _sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b as two numbers: the rounded sum, and what was lost."""
    total = a + b
    second = total - a
    return total, (a - (total - second)) + (b - second)


def _product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a * b as two numbers: the rounded product, and what was lost."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    lost = a_high * b_high - product
    lost = lost + a_high * b_low
    lost = lost + a_low * b_high
    return product, lost + a_low * b_low


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    """The upper and the lower half of a number's digits."""
    shifted = a * (2.0**27 + 1)
    high = shifted - (shifted - a)
    return high, a - high


def _odd_sum(a: Tensor, b: Tensor) -> Tensor:
    """a + b; if that is not exact, its neighbour whose last bit is 1."""
    total, lost = _sum(a, b)
    bits = total.view(torch.int64)
    outwards = torch.where((lost > 0) == (total > 0), 1, -1)
    odd = torch.where((lost != 0) & (bits & 1 == 0), bits + outwards, bits)
    return odd.view(torch.float64)
