"""Functions whose last bit is the same on every CPU that has fused multiply-adds.

NumPy's own exponentials, logarithms, powers and sines have other last bits on a CPU with AVX-512
than on one without, and products of vectors (`@`) come from a linear-algebra library that adds in
an order of its own on each kind of CPU. A weight that differs in its last bit makes another model,
so code that decides or weighs uses these functions. (NumPy's sums, products, quotients and square
roots are the same everywhere.)
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sdfeel.core.arrays import Floats


def dot(a: ArrayLike, b: ArrayLike) -> float:
    """The sum of products of two vectors.

    >>> dot([1.0, 2.0], [3, 4])
    11.0
    """
    return total(np.asarray(a, dtype=np.float64) * np.asarray(b))


BLOCK = 8192  # numbers that every NumPy adds up in one order


def total(row: Floats) -> float:
    """The sum of a row in the order of NumPy 2; NumPy 1.26 adds long rows up block by block.

    >>> total(np.ones(20_000))
    20000.0
    """
    if len(row) <= BLOCK:
        return float(row.sum())
    half = len(row) // 16 * 8
    return total(row[:half]) + total(row[half:])


def _each(name: str) -> Callable[[ArrayLike], Any]:
    """A function of single numbers, by the C library; what is not finite, by NumPy."""
    by_numpy, by_library = getattr(np, name), np.frompyfunc(getattr(math, name), 1, 1)

    def function(x: ArrayLike) -> Floats:
        given = np.asarray(x, dtype=np.float64)
        found = np.asarray(by_numpy(given))
        finite = np.isfinite(found)
        found[finite] = by_library(given[finite])
        return found

    return function


exp, expm1 = _each("exp"), _each("expm1")
log, log1p, log2, log10 = _each("log"), _each("log1p"), _each("log2"), _each("log10")
sin, cos = _each("sin"), _each("cos")


def power(base: ArrayLike, exponent: float) -> Floats:
    """Numbers above 0 to a power.

    >>> power([1, 4, 9], -0.5).round(3)
    array([1.   , 0.5  , 0.333])
    """
    raised = np.frompyfunc(lambda x: x**exponent, 1, 1)(np.asarray(base, dtype=np.float64))
    return np.asarray(raised, dtype=np.float64)
