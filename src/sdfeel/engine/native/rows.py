"""Whole rows in C++, where there is a compiler: noise, and what rules need, with NumPy's own bits.

What is here has its plain version in `guards.py` and `by_rule.py`, which is the definition. Nothing
here needs torch.
"""

import ctypes
from functools import cache
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.seeds import generator
from sdfeel.engine.native.build import BuildFault, library

Models = NDArray[Any]  # float32
SOURCE = '#include "rows_c_api.hpp"\n'
LEAST = 1 << 12  # fewer numbers are left to NumPy, so that nothing has to be compiled for them
MOST_ROWS = 256  # as in rows.hpp
TRIED = 20_000  # numbers that are compared with NumPy's before any other is drawn


def rows_for(x: NDArray[Any]) -> "NativeRows | None":
    """The functions in C++ for these rows, if they are worthwhile and can be compiled here."""
    worthwhile = x.size >= LEAST and x.dtype == np.float32 and x.flags.c_contiguous
    return loaded() if worthwhile else None


def rows_in_c() -> "NativeRows | None":
    """The functions in C++, if they are compiled here and mix with the bits of `combine.mixed`."""
    rows = loaded()
    return rows if rows is not None and rows.fuses else None


@cache
def loaded() -> "NativeRows | None":
    """The compiled functions, if there is a compiler and they draw what NumPy does."""
    try:
        rows = NativeRows(library(SOURCE))
    except (BuildFault, OSError, AttributeError):
        return None
    zeros, bits = np.zeros(TRIED, np.float32), bytes(range(32))
    drawn = rows.guarded(zeros, zeros, 1.0, 1.0, bits)
    return (
        rows
        if np.array_equal(drawn, generator(bits).standard_normal(TRIED).astype(np.float32))
        else None
    )


class NativeRows:
    """The functions of the library; all arrays are C-contiguous, models are float32."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.sdfeel_ziggurat_bytes.restype = ctypes.c_int64
        # NumPy's documentation on extending it promises that this file has its C functions.
        numpys = ctypes.CDLL(np.random._generator.__file__).random_standard_normal
        self._ziggurat = np.zeros(self._c.sdfeel_ziggurat_bytes(), np.uint8)
        self._c.sdfeel_ziggurat(_at(self._ziggurat), ctypes.cast(numpys, ctypes.c_void_p))
        self._guarded = self._c.sdfeel_guarded
        numbers = ctypes.c_int64, ctypes.c_double, ctypes.c_double
        self._guarded.argtypes = (*[ctypes.c_void_p] * 4, *numbers, ctypes.c_char_p)
        self._guarded.restype = None
        self._drawing = _address(self._ziggurat)
        self._c.sdfeel_rows_fuse.restype = ctypes.c_bool
        self.fuses = bool(self._c.sdfeel_rows_fuse())  # does it round a product and a sum once?
        self._mix = self._c.sdfeel_mix
        self._mix.argtypes = (*[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 2)
        self._mix.restype = None

    def guarded(
        self, start: Models, trained: Models, clip: float, deviation: float, bits: bytes
    ) -> Models:
        """(P,) as `guards.UpdateGuard.between`; `bits` are those of the generator."""
        start, trained = np.ascontiguousarray(start), np.ascontiguousarray(trained)
        out = np.empty_like(trained)
        where = _address(start), _address(trained), _address(out)
        self._guarded(self._drawing, *where, len(out), clip, deviation, bits)
        return out

    def mix(
        self, terms: list[int], weights: Floats, starts: Ints, rows: list[int], size: int
    ) -> None:
        """Each row of `size` numbers becomes a weighted sum, with the bits of `combine.mixed`.

        Models are given by their addresses; the terms of row n begin at `starts[n]`.
        """
        # For a few numbers, their bytes are at hand sooner than the address of an array.
        numbers = weights.tobytes(), starts.tobytes()
        self._mix(_addresses(terms), *numbers, _addresses(rows), len(rows), size)

    def squares(self, x: Models, centre: Floats) -> Floats:
        """(N,) each row's squared distance from the centre."""
        x, centre, found = np.ascontiguousarray(x), np.ascontiguousarray(centre), np.empty(len(x))
        self._c.sdfeel_squares(_at(x), *map(_count, x.shape), _at(centre), _at(found))
        return found

    def summed(self, factors: Floats, x: Models) -> Floats:
        """(P,) the sum of factor * row, in the order of the rows."""
        x, factors = np.ascontiguousarray(x), np.ascontiguousarray(factors)
        total = np.empty(x.shape[1])
        self._c.sdfeel_summed(_at(x), *map(_count, x.shape), _at(factors), _at(total))
        return total

    def median(self, x: Models, share: Floats, equal: bool, nothing: float) -> Floats:
        """(P,) each number's weighted median."""
        return self._by_order(self._c.sdfeel_median, x, share, equal, nothing)

    def trimmed(self, x: Models, share: Floats, equal: bool, nothing: float, trim: float) -> Floats:
        """(P,) each number's weighted mean, without a share of the votes at either end."""
        return self._by_order(self._c.sdfeel_trimmed, x, share, equal, nothing, trim)

    def _by_order(
        self, function: Any, x: Models, share: Floats, equal: bool, *bounds: float
    ) -> Floats:
        out = np.empty(x.shape[1])
        function(
            *(_at(x), ctypes.c_int(len(x)), _count(x.shape[1]), _at(share)),
            *(ctypes.c_bool(equal), *map(ctypes.c_double, bounds), _at(out)),
        )
        return out

    def most(self, x: Models, begin: int, end: int, own: Floats) -> Floats:
        """(N,) the largest difference from `own` in those columns, whatever its sign."""
        most = np.empty(len(x))
        self._c.sdfeel_most(*_piece(x, begin, end, own), _at(most))
        return most

    def products(self, x: Models, begin: int, end: int, own: Floats, factors: Floats) -> Floats:
        """(N, N) products of the differences times each row's factor, in whole numbers."""
        products, room = np.empty((len(x), len(x))), np.empty((len(x), end - begin + 8))
        given = _at(factors), _at(room), _at(products)
        self._c.sdfeel_products(*_piece(x, begin, end, own), *given)
        return products

    def met(
        self,
        x: Models,
        begin: int,
        end: int,
        own: Floats,
        factors: Floats,
        near: Floats,
        far: Ints,
        unit: float,
        out: Models,
    ) -> None:
        """Write each row's mean with its near rows into those columns of `out`."""
        self._c.sdfeel_met(
            *_piece(x, begin, end, own),
            *(_at(factors), _at(near), _at(far), _count(far.shape[1])),
            *(ctypes.c_double(unit), ctypes.c_double(len(x) - far.shape[1])),
            _at(out, begin),
        )


def _piece(x: Models, begin: int, end: int, own: Floats) -> tuple[Any, ...]:
    """Some columns of all rows and of their centre."""
    stride, rows = _count(x.shape[1]), ctypes.c_int(len(x))
    return _at(x, begin), stride, rows, _count(end - begin), _at(own, begin)


def _at(array: NDArray[Any], place: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(_address(array) + place * array.itemsize)


def _addresses(numbers: list[int]) -> bytes:
    return pack(f"{len(numbers)}N", *numbers)


def _address(array: NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _count(number: int) -> ctypes.c_int64:
    return ctypes.c_int64(number)
