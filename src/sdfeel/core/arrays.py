"""Array types, the one way to make an array that nobody can change, and rows by group."""

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdfeel.core.errors import InputError, said

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


BROKEN = TypeError, ValueError, RuntimeError, OverflowError  # of values that are no numbers


def floats(values: ArrayLike) -> Floats:
    """A read-only float64 copy; the array itself if nobody can change it."""
    if _fixed(values, np.float64):
        return values
    try:
        array = np.array(np.asarray(values), dtype=np.float64)  # tensors do not copy themselves
    except BROKEN:
        raise _no_numbers(values) from None
    array.setflags(write=False)
    return array


def ints(values: ArrayLike) -> Ints:
    """A read-only int64 copy; the array itself if nobody can change it."""
    if _fixed(values, np.int64):
        return values
    try:
        array = np.array(np.asarray(values), dtype=np.int64)
    except BROKEN:
        raise _no_numbers(values) from None
    array.setflags(write=False)
    return array


def _no_numbers(values: object) -> InputError:
    return InputError(f"an array of numbers is needed, got {said(values)}")


def _fixed(values: ArrayLike, kind: type[Any]) -> TypeGuard[NDArray[Any]]:
    """Is this a read-only array of that kind, and not a view of one that can be changed?"""
    return (
        type(values) is np.ndarray
        and values.dtype == kind
        and not values.flags.writeable
        and values.flags.owndata
    )


def grouped(members: Ints, groups: Ints, count: int) -> list[Ints]:
    """The sorted members of group 0, 1, ..., count - 1; those of groups below 0 are dropped.

    >>> grouped(np.array([5, 3, 9, 7]), np.array([1, 1, 0, -1]), 2)
    [array([9]), array([3, 5])]
    """
    order = np.lexsort((members, groups))
    order = order[groups[order] >= 0]
    cuts = np.searchsorted(groups[order], np.arange(1, count))
    return list(np.split(members[order], cuts))
