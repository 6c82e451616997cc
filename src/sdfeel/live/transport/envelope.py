"""The first message of every stream: a small JSON object that announces the body.

A short body follows it in the same message, after a line break, which one-line JSON does not
contain.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.limits import CHUNK, INLINE, Limits
from sdfeel.version import __version__

VERSION = 3  # of the protocol; nodes with different versions refuse each other, naming both
METHOD = "/sdfeel.live.Node/Call"
GO = b"go"  # the receiver's permission to send the body
_FIELDS = {"version", "kind", "header", "size"}
DEEPEST = 16  # levels of nested lists and objects, which code may walk by recursion
_BRACKETS = re.compile(r"[\[\]{}]")
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Envelope:
    """A message's kind, header and the size of its body; `size` is None if it has none."""

    kind: str
    header: dict[str, Any] = field(default_factory=dict)
    size: int | None = None

    @classmethod
    def of(cls, kind: str, header: dict[str, Any], body: bytes | None) -> "Envelope":
        return cls(kind, header, None if body is None else len(body))

    def encode(self, body: bytes | None = None) -> bytes:
        """The envelope as one message, with the body if it is given."""
        record = {"version": VERSION, "kind": self.kind, "header": self.header, "size": self.size}
        head = json.dumps(record, allow_nan=False, separators=(",", ":")).encode()
        return b"\n".join((head, body)) if body else head


def opened(message: bytes | None, limits: Limits) -> tuple[Envelope, bytes | None]:
    """The envelope in an untrusted first message, and the body if it came along; or `Refused`."""
    if message is None:
        raise Refused("the stream ended before its header")
    head, mark, body = message.partition(b"\n")
    envelope = decode(head, limits.header_bytes)
    most, size = limits.body_bytes(envelope.kind), envelope.size
    if size is not None and size > most:
        raise Refused(
            f"a body of {size:,} bytes is too large for '{envelope.kind}', which may have {most:,}"
        )
    if not mark:
        return envelope, b"" if size == 0 else None
    if len(body) != size or size > INLINE:
        raise Refused(
            f"{len(body):,} bytes came with the header, which announces {size or 0:,}: at most "
            f"{INLINE:,} may"
        )
    return envelope, body


def decode(message: bytes, most: int) -> Envelope:
    """The envelope in an untrusted message, or `Refused`."""
    if len(message) > most:
        raise Refused(f"the header has {len(message):,} bytes, but may have {most:,}")
    try:
        record = strict(message.decode())
    except (ValueError, RecursionError):
        raise Refused("the header is not JSON of plain text and 64-bit numbers") from None
    if not isinstance(record, dict) or record.keys() != _FIELDS:
        raise Refused("the header is not an envelope of version, kind, header and size")
    kind, header, size = record["kind"], record["header"], record["size"]
    if record["version"] != VERSION:
        shown = record["version"] if isinstance(record["version"], int) else "unknown"
        raise Refused(
            f"the message is of protocol {shown}, but this node speaks protocol {VERSION} (sdfeel "
            f"{__version__}): install the same version of sdfeel on all nodes"
        )
    if not isinstance(kind, str) or not _KIND.fullmatch(kind) or not isinstance(header, dict):
        raise Refused("the envelope's kind must be a short word and its header an object")
    if size is not None and (type(size) is not int or size < 0):
        raise Refused("the envelope's size must be null or a number of bytes")
    return Envelope(kind, header, size)


def chunks(body: bytes) -> Iterator[bytes]:
    """The body in chunks, as a stream carries it."""
    for start in range(0, len(body), CHUNK):
        yield body[start : start + CHUNK]


def strict(text: str) -> Any:
    """JSON without what databases stumble over: NaN, huge numbers, half a surrogate pair."""
    if text.count("[") + text.count("{") > DEEPEST and deepest(text) > DEEPEST:
        _no("what is nested so deeply")
    record = json.loads(text, parse_constant=_no, parse_float=_float, parse_int=_int)
    if "\\u" in text:
        json.dumps(record, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    return record


def deepest(text: str) -> int:
    """The deepest nesting of lists and objects, or more: brackets in strings count, too.

    >>> deepest('{"a": [1, [2]], "b": {}}')
    3
    """
    depth = most = 0
    for mark in _BRACKETS.findall(text):
        depth += 1 if mark in "[{" else -1
        most = max(most, depth)
    return most


def _no(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _no(text)
    return value


def _int(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        _no(text)
    return value
