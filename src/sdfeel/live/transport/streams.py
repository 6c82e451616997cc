"""One side of a call: messages in and out, with a bound on every wait and every byte."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Protocol

import grpc.aio

from sdfeel.live.errors import Refused
from sdfeel.live.limits import CHUNK, Limits
from sdfeel.live.transport.envelope import Envelope, chunks, decode


class Stream(Protocol):
    """What a caller's call and a server's context have in common."""

    def read(self) -> Awaitable[Any]: ...
    def write(self, message: bytes, /) -> Awaitable[None]: ...


class Stalled(Exception):
    """The other side neither sent nor took anything for too long."""


class Conversation:
    """A stream and the limits that hold on it; counts the bytes that pass."""

    def __init__(self, stream: Stream, limits: Limits) -> None:
        self._stream, self._limits = stream, limits
        self.bytes_in = self.bytes_out = 0
        self._heard = False

    async def receive(self, seconds: float | None = None) -> bytes | None:
        """The next message, or None at the end; the other side may take `seconds`."""
        try:
            async with asyncio.timeout(self._limits.chunk_seconds if seconds is None else seconds):
                message = await self._stream.read()
        except TimeoutError:
            raise Stalled from None
        self._heard = True
        if message is grpc.aio.EOF:
            return None
        self.bytes_in += len(message)
        return bytes(message)

    async def receive_envelope(self, seconds: float | None = None) -> Envelope:
        """The first message, whose announced body is small enough."""
        first = await self.receive(seconds)
        if first is None:
            raise Refused("the stream ended before its header")
        envelope = decode(first, self._limits.header_bytes)
        most = self._limits.body_bytes(envelope.kind)
        if envelope.size is not None and envelope.size > most:
            raise Refused(
                f"a body of {envelope.size:,} bytes is too large for '{envelope.kind}', "
                f"allowed are {most:,}"
            )
        return envelope

    async def receive_body(self, size: int | None) -> bytes | None:
        """The body, as long as announced and in whole chunks: many small ones would cost memory."""
        if size is None:
            return None
        parts: list[bytes] = []
        for start in range(0, size, CHUNK):
            due = min(CHUNK, size - start)
            part = await self.receive()
            if part is None:
                raise Refused(f"the body ended after {start:,} of {size:,} bytes")
            if len(part) != due:
                raise Refused(f"the body has a chunk of {len(part):,} bytes where {due:,} are due")
            parts.append(part)
        return b"".join(parts)

    async def send(self, message: bytes) -> None:
        """One message; a reader that stops reading does not hold us for ever."""
        try:
            async with asyncio.timeout(self._limits.chunk_seconds):
                await self._stream.write(message)
        except TimeoutError:
            raise Stalled from None
        self.bytes_out += len(message)

    async def send_body(self, body: bytes | None) -> None:
        for chunk in chunks(body or b""):
            await self.send(chunk)

    async def hear_out(self) -> None:
        """Let the caller finish its first message, if it has one, before the call is ended."""
        if not self._heard:
            with suppress(Stalled, grpc.aio.BaseError):
                await self.receive(min(1.0, self._limits.chunk_seconds))
