"""Every decoder, some good input for it, and what must hold for whatever it accepts."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdfeel.core.errors import InputError
from sdfeel.live.transport.envelope import Envelope, decode
from sdfeel.live.transport.errors import Refused, Rejected
from sdfeel.live.transport.tensors import Schema, digest, pack, unpack
from sdfeel.live.trust.allow_list import entries
from sdfeel.live.trust.identity import described
from sdfeel.live.trust.names import Name

_TYPES: dict[np.dtype[Any], tuple[str, str]] = {
    np.dtype("float32"): ("F32", "<f4"),
    np.dtype("float64"): ("F64", "<f8"),
    np.dtype("int64"): ("I64", "<i8"),
}


@dataclass(frozen=True)
class Target:
    """`accepts` says whether the input passed, and fails if what passed is not right."""

    name: str
    good: tuple[bytes, ...]
    accepts: Callable[[bytes], bool]


def targets() -> tuple[Target, ...]:
    return (_envelopes(), *_tensors(), _names(), _lists(), _certificates())


def _envelopes() -> Target:
    most = 64 << 10
    good = (
        Envelope("push", {"round": 3, "sha256": "ab" * 32, "run": "x"}, 87_000),
        Envelope("pull", {"round": 3, "hop": 0, "wait": 2.5, "text": "größer \U0001f600"}),
        Envelope("status"),
    )

    def accepts(data: bytes) -> bool:
        try:
            envelope = decode(data, most)
        except Refused:
            return False
        _must(decode(envelope.encode(), 10 * most) == envelope, "does not survive being written")
        _must(envelope.size is None or 0 <= envelope.size < 2**63, "has a wrong size")
        return True

    return Target("envelope", tuple(envelope.encode() for envelope in good), accepts)


def _tensors() -> tuple[Target, Target]:
    values = np.linspace(-1, 1, 24, dtype=np.float32)
    tensors = {"model": values.reshape(4, 6), "mean": values[:3].astype(float), "n": np.array([5])}
    schema, body = Schema.of(tensors), pack(tensors)
    other = pack({"model": values})
    sha256 = digest(body)

    def damaged(data: bytes) -> bool:
        """The hash is the sender's of the undamaged body."""
        return _passes(data, schema, sha256) and _must(data == body, "is not what was sent")

    def forged(data: bytes) -> bool:
        """The hash is the attacker's own, so everything else must hold the line."""
        return _passes(data, schema, digest(data)) and _must(_sound(data, schema), "is not sound")

    return Target("tensors", (body, other), damaged), Target("forgery", (body, other), forged)


def _passes(data: bytes, schema: Schema, sha256: str) -> bool:
    try:
        unpack(data, schema, sha256, max_norm=1e6)
    except Rejected:
        return False
    return True


def _sound(data: bytes, schema: Schema) -> bool:
    """The same checks by other means than the decoder's."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    squares = 0.0
    for name, shape, dtype in schema.entries:
        entry = header.pop(name)
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        kind, code = _TYPES[dtype]
        numbers = np.frombuffer(data[start:end], code)
        if entry["dtype"] != kind or entry["shape"] != list(shape):
            return False
        if numbers.size != math.prod(shape) or not np.isfinite(numbers).all():
            return False
        squares += float(np.square(numbers.astype(float)).sum()) if code != "<i8" else 0.0
    return not header and squares <= 1.0001e12


def _names() -> Target:
    def accepts(data: bytes) -> bool:
        text = data.decode("utf-8", "replace")
        try:
            name = Name.parse(text)
        except InputError:
            return False
        return _must(str(name) == text, "is another name")

    return Target("name", (b"sdfeel://harbour/edge/3", b"sdfeel://sdfeel/client/120"), accepts)


def _lists() -> Target:
    lines = [f"{7 * n + 2**100:x} sdfeel://harbour/client/{n}  # crane" for n in range(3)]

    def accepts(data: bytes) -> bool:
        text = data.decode("utf-8", "replace")
        found = entries(text)
        for serial, name in found:
            there = any(serial in line.lower() and name in line for line in text.splitlines())
            _must(there, "permits somebody who is not on a line")
        return len(found) > 0

    return Target("allow-list", ("\n".join(lines).encode(), b"# nobody\n"), accepts)


def _certificates() -> Target:
    end = b"-----END CERTIFICATE-----\n"
    *found, _ = Path(__file__).with_name("certificates.pem").read_bytes().split(end)

    def accepts(data: bytes) -> bool:
        try:
            name, serial = described.__wrapped__(data)
        except InputError:
            return False
        return _must(Name.parse(str(name)) == name and int(serial, 16) > 0, "names nobody")

    return Target("certificate", tuple(certificate + end for certificate in found), accepts)


def _must(holds: bool, otherwise: str) -> bool:
    if not holds:
        raise AssertionError(f"the input was accepted and {otherwise}")
    return True
