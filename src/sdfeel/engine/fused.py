"""total + weight * row, rounded once, using only operations that every CPU has.

Servers use torch, in one operation, where it rounds once (combine.py). This file does the same for
machines that have no torch, or whose torch rounds twice.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.arrays import Floats

PIECE = 1 << 15  # numbers of a model that are added together, so that they stay in the cache


def weighted_by_hand(terms: Iterable[tuple[float, NDArray[Any]]]) -> NDArray[Any]:
    """(P,) the sum of weight * row, in the order given: `combine.weighted`, to the bit."""
    given = list(terms)
    out = np.empty_like(given[0][1])
    for begin in range(0, len(out), PIECE):
        piece = slice(begin, begin + PIECE)
        total = np.zeros(len(out[piece]))
        for weight, row in given:
            total = by_hand(total, row[piece].astype(np.float64), weight)
        out[piece] = total
    return out


def bounded(shift: NDArray[Any], start: NDArray[Any], clip: float) -> NDArray[Any]:
    """(P,) the shift, no longer than `clip` times the start.

    >>> bounded(np.array([3.0, 4.0]), np.array([0.0, 2.0]), 0.5)
    array([0.6, 0.8])
    """
    if clip == np.inf:
        return shift
    longest, length = clip * _length(start), _length(shift)
    if not length > longest:
        return shift
    return (shift.astype(np.float64) * (longest / length)).astype(shift.dtype)


def _length(row: NDArray[Any]) -> float:
    # Not by numpy's norm, whose sum depends on how many threads there are.
    return float(np.sqrt(np.square(row.astype(np.float64)).sum()))


def by_hand(total: Floats, row: Floats, weight: float) -> Floats:
    """total + weight * row, rounded once: Boldo and Melquiond, "Emulation of FMA", 2008.

    Everything before the last addition is exact, or its last bit says that it is not.
    """
    product, rest = _product(row, np.full_like(row, weight))
    middle, low = _sum(total, rest)
    high, more = _sum(product, middle)
    return high + _odd_sum(more, low)


def _sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """a + b as two numbers: the rounded sum, and what was lost."""
    total = a + b
    second = total - a
    return total, (a - (total - second)) + (b - second)


def _product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """a * b as two numbers: the rounded product, and what was lost."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    lost = a_high * b_high - product
    lost = lost + a_high * b_low
    lost = lost + a_low * b_high
    return product, lost + a_low * b_low


def _halves(a: Floats) -> tuple[Floats, Floats]:
    """The upper and the lower half of a number's digits."""
    shifted = a * (2.0**27 + 1)
    high = shifted - (shifted - a)
    return high, a - high


def _odd_sum(a: Floats, b: Floats) -> Floats:
    """a + b; if that is not exact, its neighbour whose last bit is 1."""
    total, lost = _sum(a, b)
    bits = total.view(np.int64)
    outwards = np.where((lost > 0) == (total > 0), 1, -1)
    odd = np.where((lost != 0) & (bits & 1 == 0), bits + outwards, bits)
    return odd.view(np.float64)
