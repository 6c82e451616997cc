"""One side of a call: messages in and out, with a bound on every wait and every byte."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import grpc.aio

from sdfeel.live.transport.envelope import Envelope, chunks, opened
from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.limits import CHUNK, Limits

T = TypeVar("T")


class CallStream(Protocol):
    """The part that a caller's call and a server's context have in common."""

    def read(self) -> Awaitable[Any]: ...
    def write(self, message: bytes, /) -> Awaitable[None]: ...


class Stalled(Exception):
    """The other side neither sent nor took anything for too long."""


class Conversation:
    """A stream and its limits; counts the bytes that pass."""

    def __init__(self, stream: CallStream, limits: Limits) -> None:
        self._stream, self._limits = stream, limits
        self.bytes_in = self.bytes_out = 0
        self.kind = ""  # of the call, once it is authorised
        self._heard = False

    async def receive(self, seconds: float | None = None) -> bytes | None:
        """The next message, or None at the end; waits for `seconds`, or as long as for a chunk."""
        message = await self._within(self._stream.read(), seconds)
        self._heard = True
        if message is grpc.aio.EOF:
            return None
        self.bytes_in += len(message)
        return bytes(message)

    async def receive_envelope(self, seconds: float | None = None) -> tuple[Envelope, bytes | None]:
        """The first message: an envelope, with its body if that is short. Checks its limits."""
        return opened(await self.receive(seconds), self._limits)

    async def receive_body(self, size: int) -> bytes:
        """The body, as long as announced, in full chunks: many small ones would cost memory."""
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

    async def send(self, message: bytes, seconds: float | None = None) -> None:
        """Send one message; raises `Stalled` if the other side stops reading."""
        await self._within(self._stream.write(message), seconds)
        self.bytes_out += len(message)

    async def send_body(self, body: bytes) -> None:
        for chunk in chunks(body):
            await self.send(chunk)

    async def _within(self, work: Awaitable[T], seconds: float | None) -> T:
        """Wait for the other side, by default as long as for one chunk."""
        try:
            async with asyncio.timeout(self._limits.chunk_seconds if seconds is None else seconds):
                return await work
        except TimeoutError:
            if seconds is None:
                raise Stalled(f"nothing moved for {self._limits.chunk_seconds:g} s") from None
            raise Stalled("it did not answer") from None

    async def hear_out(self) -> None:
        """Let the caller finish its first message, if it has one, before the call is ended."""
        if not self._heard:
            with suppress(Stalled, grpc.aio.BaseError):
                await self.receive(min(1.0, self._limits.chunk_seconds))
