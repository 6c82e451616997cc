"""Tensors as bytes, and back, but only if they have the agreed names, shapes and types.

The format is safetensors: names, shapes, types and raw numbers, and nothing that could be run as
code. Tensors are NumPy arrays here, so that a device without torch uses the same module.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from sdfeel.core.errors import InputError
from sdfeel.live.transport.errors import Rejected

Arrays = Mapping[str, NDArray[Any]]
MODEL = "model"  # the name of the one tensor in every body
CODE = "code"  # the same in a compressed body
PIECE = 1 << 16  # numbers that are widened at once, so that they stay in the cache
_LENGTH = 8  # bytes that hold the length of safetensors' own header


@dataclass(frozen=True)
class Schema:
    """The names, shapes and types that a message must have, which bound its size."""

    entries: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]  # sorted by name

    @classmethod
    def of(cls, tensors: Arrays) -> "Schema":
        return cls(tuple((name, tuple(t.shape), t.dtype) for name, t in sorted(tensors.items())))

    @property
    def total_bytes(self) -> int:
        """Bytes of the numbers alone."""
        return sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in self.entries)

    @property
    def header_bytes(self) -> int:
        """A bound on safetensors' own header: about four times what these names need."""
        return 256 + sum(4 * len(name.encode()) + 256 + 24 * len(s) for name, s, _ in self.entries)

    @property
    def max_bytes(self) -> int:
        """The most bytes that a packed message of this schema can have."""
        return _LENGTH + self.header_bytes + self.total_bytes


def pack(tensors: Arrays) -> bytes:
    """The tensors as safetensors."""
    if not tensors:
        raise InputError("a message needs at least one tensor, got none")
    return safetensors.numpy.save({name: np.asarray(t, order="C") for name, t in tensors.items()})


def digest(body: bytes) -> str:
    """The SHA-256 that travels with a body."""
    return hashlib.sha256(body).hexdigest()


def unpack(
    body: bytes, schema: Schema, sha256: object, max_norm: float | None = None
) -> dict[str, NDArray[Any]]:
    """The tensors in `body`, or `Rejected`; nothing is parsed before size and hash are right."""
    _check_size(body, schema)
    if not isinstance(sha256, str) or digest(body) != sha256:
        raise Rejected("the content does not have the announced SHA-256: it was damaged on the way")
    tensors = parsed(body)
    _check_schema(tensors, schema)
    _check_values(tensors, max_norm)
    return tensors


def _check_size(body: bytes, schema: Schema) -> None:
    if not _LENGTH <= len(body) <= schema.max_bytes:
        raise Rejected(
            f"{len(body):,} bytes cannot be the agreed tensors, which need "
            f"{schema.total_bytes:,} and a short header"
        )
    header = int.from_bytes(body[:_LENGTH], "little")
    if _LENGTH + header + schema.total_bytes != len(body):
        raise Rejected(
            f"a header of {header:,} bytes and tensors of {schema.total_bytes:,} do not make up "
            f"the {len(body):,} bytes received"
        )


def parsed(body: bytes) -> dict[str, NDArray[Any]]:
    """The tensors in a body. Of another node's body, check size and hash first."""
    try:
        return safetensors.numpy.load(body)
    except Exception as error:  # the parser's errors have no common base
        raise Rejected(f"the content is not safetensors: {type(error).__name__}") from None


def _check_schema(tensors: dict[str, Any], schema: Schema) -> None:
    found = Schema.of(tensors)
    if found == schema:
        return
    got, wanted = ({e[0]: e[1:] for e in s.entries} for s in (found, schema))
    for name in sorted(wanted.keys() | got.keys()):
        if name not in got:
            raise Rejected(f"the tensor '{name}' is missing")
        if name not in wanted:
            raise Rejected("there is a tensor that was not agreed upon")
        if got[name] != wanted[name]:
            raise Rejected(
                f"the tensor '{name}' is {_form(*got[name])}, but {_form(*wanted[name])} was agreed"
            )


def _form(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"{'x'.join(map(str, shape)) or 'a scalar'} of {dtype.name}"


def _check_values(tensors: dict[str, NDArray[Any]], max_norm: float | None) -> None:
    """One pass: a float64 sum of squares is finite only if every float32 in it is."""
    squares = 0.0
    for name, tensor in sorted(tensors.items()):
        if not np.issubdtype(tensor.dtype, np.floating):
            continue
        square = _squares(tensor)
        if not math.isfinite(square) and not bool(np.isfinite(tensor).all()):
            raise Rejected(f"the tensor '{name}' has values that are not finite")
        squares += square
    norm = math.sqrt(squares)
    if not math.isfinite(norm) or (max_norm is not None and norm > max_norm):
        bound = "any bound" if max_norm is None else f"the bound of {max_norm:g}"
        raise Rejected(f"the tensors' norm of {norm:.3g} exceeds {bound}")


def _squares(tensor: NDArray[Any]) -> float:
    """The sum of all squares in float64, without a float64 copy of the whole tensor."""
    flat, total = tensor.reshape(-1), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, len(flat), PIECE):
            wide = flat[begin : begin + PIECE].astype(np.float64)
            total += float((wide * wide).sum())
    return total


def unpacked_model(
    body: bytes, schema: Schema, sha256: object, max_norm: float | None = None
) -> NDArray[Any]:
    """The model in another node's message, or `Rejected` if it fails a check."""
    return unpack(body, schema, sha256, max_norm)[MODEL]
