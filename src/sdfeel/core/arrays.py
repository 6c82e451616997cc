"""Array types, and the one way to make an array that nobody can change."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def floats(values: ArrayLike) -> Floats:
    """A read-only float64 copy."""
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


def ints(values: ArrayLike) -> Ints:
    """A read-only int64 copy."""
    array = np.array(values, dtype=np.int64)
    array.setflags(write=False)
    return array
