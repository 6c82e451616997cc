"""Matrices with few entries: the links and the weights of ten thousand servers."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from sdfeel.core.arrays import Bools, Floats, Ints, floats, ints
from sdfeel.core.errors import InputError, said

AT_ONCE = 1 << 20  # numbers of a dense matrix that are written out together


@dataclass(frozen=True, eq=False)
class Sparse:
    """The entries of a matrix that are not 0, row by row."""

    starts: Ints  # (R + 1,) where each row's entries begin
    columns: Ints  # (N,) ascending within a row
    values: Floats  # (N,)
    width: int  # columns in all

    @classmethod
    def of(cls, matrix: "ArrayLike | Sparse") -> "Sparse":
        """What is not 0 in a matrix; one that is sparse already stays as it is.

        >>> few = Sparse.of([[0, 0.5], [0, 0]])
        >>> few.starts.tolist(), few.columns.tolist(), few.values.tolist()
        ([0, 1, 1], [1], [0.5])
        """
        if isinstance(matrix, Sparse):
            return matrix
        plain = isinstance(matrix, np.ndarray) and matrix.dtype.kind in "biuf"
        dense = np.asarray(matrix, dtype=np.float64) if plain else floats(matrix)
        if dense.ndim != 2:
            raise InputError(f"a matrix has rows and columns, got {said(matrix)}")
        rows, columns = dense.nonzero()
        return cls._ordered(rows, columns, dense[rows, columns], dense.shape)

    @classmethod
    def at(cls, rows: Ints, columns: Ints, values: Floats, shape: tuple[int, int]) -> "Sparse":
        """A matrix with these values at these places, each named once; elsewhere it is 0."""
        there = values != 0
        if not there.all():
            rows, columns, values = rows[there], columns[there], values[there]
        order = np.lexsort((columns, rows))
        return cls._ordered(rows[order], columns[order], values[order], shape)

    @classmethod
    def _ordered(
        cls, rows: Ints, columns: Ints, values: Floats, shape: tuple[int, ...]
    ) -> "Sparse":
        counts = np.bincount(rows, minlength=shape[0])
        starts = np.concatenate([[0], np.cumsum(counts)])
        return cls(ints(starts), ints(columns), floats(values), int(shape[1]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), self.width

    @cached_property
    def rows(self) -> Ints:
        """(N,) the row of each entry."""
        return ints(np.repeat(np.arange(len(self)), np.diff(self.starts)))

    @cached_property
    def places(self) -> Ints:
        """(N,) the number of each entry's place, counted row by row; ascending."""
        return ints(self.rows * self.width + self.columns)

    def row(self, number: int) -> Ints:
        """The columns of a row's entries, ascending."""
        return self.columns[self.starts[number] : self.starts[number + 1]]

    def get(self, rows: Ints, columns: Ints) -> Floats:
        """(M,) the numbers at these places.

        >>> Sparse.of([[0, 0.5], [2, 0]]).get(np.array([0, 1, 1]), np.array([1, 1, 0]))
        array([0.5, 0. , 2. ])
        """
        places = rows * self.width + columns
        if not len(self.places):
            return np.zeros(len(places))
        found = np.minimum(np.searchsorted(self.places, places), len(self.places) - 1)
        return np.where(self.places[found] == places, self.values[found], 0.0)

    def with_values(self, values: Floats) -> "Sparse":
        """Other numbers at the same places."""
        return Sparse.at(self.rows, self.columns, values, self.shape)

    def among(self, which: Ints) -> "Sparse":
        """The part of a square matrix that belongs to these rows and columns, ascending."""
        if len(which) == len(self):
            return self
        number = np.full(len(self), -1)
        number[which] = np.arange(len(which))
        rows, columns = number[self.rows], number[self.columns]
        kept = (rows >= 0) & (columns >= 0)
        size = len(which)
        return Sparse._ordered(rows[kept], columns[kept], self.values[kept], (size, size))

    def sums(self) -> Floats:
        """(R,) `dense.sum(axis=1)` to the last bit: NumPy's order of sums depends on zeros, too.

        >>> Sparse.of([[0, 0.5], [2, 1]]).sums()
        array([0.5, 3. ])
        """
        found, block = np.zeros(len(self)), max(AT_ONCE // max(self.width, 1), 1)
        dense = np.zeros((min(block, len(self)), self.width))
        for begin in range(0, len(self), block):
            end = min(begin + block, len(self))
            span = slice(self.starts[begin], self.starts[end])
            places = self.rows[span] - begin, self.columns[span]
            dense[places] = self.values[span]
            found[begin:end] = dense[: end - begin].sum(axis=1)
            dense[places] = 0
        return found

    @cached_property
    def dense(self) -> Floats:
        """(R, C) all numbers: for matrices of hundreds of rows, and to look at."""
        found = np.zeros(self.shape)
        found[self.rows, self.columns] = self.values
        return floats(found)


def reached(links: Sparse, start: int) -> Bools:
    """(R,) which rows paths join to `start`, itself included."""
    seen = np.zeros(len(links), dtype=bool)
    seen[start] = True
    front = np.array([start])
    while front.size:
        near = np.concatenate([links.row(each) for each in front.tolist()])
        front = np.unique(near[~seen[near]])
        seen[front] = True
    return seen
