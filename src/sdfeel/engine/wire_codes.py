"""Compressed rows as bytes on the wire: as many as are charged, and exact on arrival.

`messages.py` says what arrives when a row is compressed; this file writes it with that many bits,
and reads it again, without torch, so that every device can.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.seeds import rng

Row = NDArray[np.float32]
Code = NDArray[np.uint8]
FLOAT = 32  # bits of an uncompressed number, and of a scale


@dataclass(frozen=True)
class Coding:
    """How clients' updates are written: even steps of few bits, or the largest entries."""

    kind: Literal["uniform", "top-k"]
    sizes: tuple[int, ...]  # elements of each tensor of a row
    seed: int
    width: int = 8  # uniform: bits of a number
    kept: int = 0  # top-k: entries that are sent

    @property
    def bits(self) -> int:
        """Bits of one message."""
        if self.kind == "uniform":
            return self.width * sum(self.sizes) + FLOAT * len(self.sizes)
        return self.kept * (FLOAT + self._place_bits)

    @property
    def bytes(self) -> int:
        """Bytes of one message; the last one may be padded."""
        return -(-self.bits // 8)

    @property
    def _place_bits(self) -> int:
        return (sum(self.sizes) - 1).bit_length()

    @property
    def _levels(self) -> int:
        return int(2 ** (self.width - 1) - 1)

    def encode(self, row: Row, draws: np.random.Generator) -> Code:
        """(bytes,) a row as it is sent."""
        if self.kind == "uniform":
            return self._rounded(row, draws)
        size = np.abs(row)
        least = np.partition(size, len(row) - self.kept)[len(row) - self.kept]
        chosen = size > least
        ties = np.flatnonzero(size == least)
        chosen[ties[: self.kept - int(chosen.sum())]] = True
        places = np.flatnonzero(chosen)
        return _joined(_bits(_raw(row[places]), FLOAT), _bits(places, self._place_bits))

    def decode(self, code: Code) -> Row:
        """(P,) the row that arrives; the bytes may be any, as long as their number is right."""
        stream = np.unpackbits(code)[: self.bits]
        if self.kind == "uniform":
            return self._read(stream)
        cut = self.kept * FLOAT
        values = _floats(_numbers(stream[:cut], FLOAT))
        places = _numbers(stream[cut:], self._place_bits)
        row = np.zeros(sum(self.sizes), dtype=np.float32)
        row[np.minimum(places, len(row) - 1)] = values
        return row

    def _rounded(self, row: Row, draws: np.random.Generator) -> Code:
        levels, scales, marks = self._levels, [], []
        for part in np.split(row, np.cumsum(self.sizes)[:-1]):
            words = draws.random(
                len(part)
            )  # drawn even where not used, so that draws go by position
            scale = np.abs(part).max(initial=np.float32(0))
            scales.append(scale)
            if not scale:
                marks.append(np.zeros(len(part)))
                continue
            steps = np.floor(part.astype(np.float64) / np.float64(scale) * levels + words)
            marks.append(np.minimum(steps, levels))
        numbers = np.concatenate(marks).astype(np.int64) + levels
        return _joined(_bits(_raw(np.array(scales)), FLOAT), _bits(numbers, self.width))

    def _read(self, stream: Code) -> Row:
        cut, levels = FLOAT * len(self.sizes), self._levels
        scales = _floats(_numbers(stream[:cut], FLOAT)).astype(np.float64)
        marks = _numbers(stream[cut:], self.width).astype(np.float64) - levels
        with np.errstate(all="ignore"):  # the reader refuses what is not finite
            wide = marks / levels * np.repeat(scales, self.sizes)
            return wide.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Sent:
    """One message, and what its sender still owes after it."""

    code: Code
    owed: NDArray[np.float64] | None


def send(coding: Coding, row: Row, owed: NDArray[np.float64] | None, client: int, k: int) -> Sent:
    """A client's update of round `k`, with what its earlier messages lost (`messages.Feedback`)."""
    draws = rng(coding.seed, "quantise", client, k)
    wide = row.astype(np.float64)
    if owed is None:
        code = coding.encode(row, draws)
    else:
        wide = wide + owed
        code = coding.encode(wide.astype(np.float32), draws)
    debt = wide - coding.decode(code).astype(np.float64)
    return Sent(code, debt if debt.any() else None)


def _raw(values: NDArray[Any]) -> NDArray[np.int64]:
    return values.astype(np.float32).view(np.uint32).astype(np.int64)


def _floats(numbers: NDArray[np.int64]) -> Row:
    return numbers.astype(np.uint32).view(np.float32)


def _bits(numbers: NDArray[np.int64], width: int) -> Code:
    """(N * width,) the lowest bits of each number, highest first."""
    found = np.empty((len(numbers), width), dtype=np.uint8)
    for n in range(width):
        found[:, n] = (numbers >> (width - 1 - n)) & 1
    return found.reshape(-1)


def _numbers(bits: Code, width: int) -> NDArray[np.int64]:
    columns, found = bits.reshape(-1, width), np.zeros(len(bits) // width, dtype=np.int64)
    for n in range(width):
        found = (found << 1) | columns[:, n]
    return found


def _joined(*parts: Code) -> Code:
    return np.packbits(np.concatenate(parts))
