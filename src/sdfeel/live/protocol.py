"""How nodes talk: what a call is, who may make it, and how long to go on trying."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, TypeVar

from sdfeel.live.transport.errors import Refused, Unreachable

T = TypeVar("T")
Header = dict[str, Any]
Answer = tuple[Header, bytes | None]
LONG_POLL = 20.0  # seconds that an answer may be waited for in one call
CALL = 60.0  # seconds for an answer: a long poll and more; bodies on their way have longer
RECORD_BYTES = 1 << 20  # of rounds in one answer, unless a single one is larger
MOST = 2**53  # no whole number in a message is larger
HERE = 1.0  # seconds for an answer that costs the other side nothing


@dataclass(frozen=True)
class Who:
    """A caller, as its certificate says."""

    role: str
    number: int

    def __str__(self) -> str:
        return f"{self.role}-{self.number}"


Handler = Callable[[Who, str, Header, bytes | None], Awaitable[Answer]]


class AnyReply(Protocol):
    """What a call brings back."""

    @property
    def header(self) -> Header: ...

    @property
    def body(self) -> bytes | None: ...


class Port(Protocol):
    """A way to one other node: gRPC, or memory in tests."""

    async def call(
        self,
        kind: str,
        header: Header,
        body: bytes | None = None,
        *,
        timeout: float,  # noqa: ASYNC109  (as gRPC calls it)
    ) -> AnyReply: ...


class Link:
    """A port that adds the federation's digest, and is patient with outages."""

    def __init__(self, name: str, port: Port, digest: str) -> None:
        self.name, self._port, self._digest = name, port, digest
        self.sent = self.received = 0  # bytes of bodies
        self.last_error = ""

    async def ask(
        self, kind: str, header: Header, body: bytes | None = None, seconds: float = CALL
    ) -> Answer:
        """One call; raises Unreachable, NotTrusted or Refused."""
        stamped = {**header, "federation": self._digest}
        reply = await self._port.call(kind, stamped, body, timeout=seconds)
        self.sent += len(body or b"")
        self.received += len(reply.body or b"")
        return reply.header, reply.body

    async def insist(
        self, kind: str, header: Header, body: bytes | None = None, seconds: float = CALL
    ) -> Answer:
        """Calls until there is an answer: outages pass, everything else is raised."""
        pause = 0.05
        while True:
            try:
                return await self.ask(kind, header, body, seconds)
            except Unreachable as error:
                self.last_error = f"{self.name}: {error}"
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, 0.5)  # the port itself waits between its tries


def check_federation(header: Header, digest: str) -> None:
    """Refuse a caller that carries out another experiment."""
    theirs = header.get("federation")
    if theirs != digest:
        shown = str(theirs)[:12] if isinstance(theirs, str) else "none"
        raise Refused(
            f"this federation's experiment is {digest[:12]}, yours is {shown}: give all nodes the "
            f"same experiment.toml and network.json"
        )


def whole(header: Header, key: str) -> int:
    """A whole number of a header; a caller may have sent anything."""
    value = header.get(key)
    if not is_whole(value):
        shown = f"{value!r:.80}"
        raise Refused(f"the message's '{key}' must be a whole number from 0, got {shown}")
    return value


def is_whole(value: object) -> TypeGuard[int]:
    """A whole number from 0 that every language and database can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def seconds(header: Header, key: str, most: float = LONG_POLL) -> float:
    """How long a caller is ready to wait, within our own limit."""
    value = header.get(key, 0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise Refused(f"the message's '{key}' must be seconds from 0, got {value!r:.80}")
    return float(min(value, most))


class Bell:
    """Wakes everyone who waits for something to change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """What `look` finds, as soon as it finds something; None after so many seconds."""
        end = asyncio.get_running_loop().time() + seconds
        while (found := look()) is None:
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return None
            try:
                async with asyncio.timeout(left):  # wait_for may lose a cancellation (Python 3.11)
                    await self._event.wait()
            except TimeoutError:
                continue
        return found
