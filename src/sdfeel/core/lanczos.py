"""The extreme eigenvalues of a large sparse matrix, by Lanczos' method."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from sdfeel.core.arrays import Floats

FIRST = 64  # steps before the first look
TINY = 1e-13  # an eigenvalue that moves less than this between two looks has arrived


def largest_modulus(product: Callable[[Floats], Floats], size: int) -> float:
    """The largest modulus among the eigenvalues of a symmetric matrix, given what it makes of a
    vector.

    The tridiagonal matrix that the steps build has the same extreme eigenvalues, sooner or later:
    whenever the steps have doubled, they are looked at. What is lost to rounding (vectors do not
    stay orthogonal) only makes copies of eigenvalues that were found, which does no harm here.
    """
    before, vector = np.zeros(size), np.random.default_rng(0).standard_normal(size)
    vector /= np.linalg.norm(vector)
    diagonal: list[float] = []
    beside: list[float] = []
    look, last, scale = FIRST, -1.0, 0.0
    while True:
        new = product(vector)
        diagonal.append(float(vector @ new))
        new = new - diagonal[-1] * vector - (beside[-1] if beside else 0.0) * before
        length = float(np.linalg.norm(new))
        scale = max(scale, abs(diagonal[-1]), length)
        if length <= TINY * scale or len(diagonal) == look:
            found = _largest(diagonal, beside)
            if length <= TINY * scale or abs(found - last) <= TINY * found or look > 8 * size:
                return found
            look, last = 2 * look, found
        beside.append(length)
        before, vector = vector, new / length


def _largest(diagonal: list[float], beside: list[float]) -> float:
    """The largest modulus among the eigenvalues of a tridiagonal matrix."""
    ends = [0.0, *map(abs, beside[: len(diagonal) - 1]), 0.0]
    radii = [a + b for a, b in pairwise(ends)]
    bound = max(abs(a) + r for a, r in zip(diagonal, radii, strict=True))  # Gershgorin's
    squares = [b * b for b in ends[:-1]]
    above = _end(diagonal, squares, bound)
    below = _end([-a for a in diagonal], squares, bound)
    return max(above, below)


def _end(diagonal: list[float], squares: list[float], bound: float) -> float:
    """The largest eigenvalue if it is positive, or else 0: by bisection."""
    low, high = 0.0, bound
    while high - low > 1e-16 * bound:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if any_above(diagonal, squares, middle):
            low = middle
        else:
            high = middle
    return high if low else 0.0


def any_above(diagonal: list[float], squares: list[float], x: float) -> bool:
    """Has the matrix an eigenvalue above x? (By the signs of its pivots: Sylvester's law.)"""
    pivot = 1.0
    for a, square in zip(diagonal, squares, strict=True):
        pivot = a - x - square / pivot
        if pivot > 0:
            return True
        if pivot == 0:
            pivot = -1e-300  # as good as none
    return False
