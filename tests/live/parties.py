"""A small federation with real certificates and real sockets on loopback, for tests."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from sdfeel.live.transport import Authorise, Caller, Handler, Peer, Server
from sdfeel.live.transport.envelope import METHOD
from sdfeel.live.transport.errors import Unreachable
from sdfeel.live.transport.limits import Limits
from sdfeel.live.trust.identity import AllowList, Identity, create_authority, issue

T = TypeVar("T")
LIMITS = Limits(bodies={"echo": 4 << 20})


@dataclass(frozen=True)
class Federation:
    """An authority in a directory; every identity gets a directory of its own."""

    root: Path
    numbers: "count[int]" = field(default_factory=count)

    @classmethod
    def create(cls, root: Path, name: str = "sdfeel", days: float = 3650) -> "Federation":
        create_authority(root / "authority", name, days)
        return cls(root)

    @property
    def list(self) -> Path:
        return self.root / "authority" / "allow.txt"

    @property
    def allow(self) -> AllowList:
        return AllowList(self.list)

    def issue(self, name: str, *, expired: bool = False) -> Identity:
        now = datetime.now(UTC) - timedelta(days=3 if expired else 0)
        out = self.root / f"{name.replace('/', '-')}-{next(self.numbers)}"
        return issue(self.root / "authority", name, ["127.0.0.1"], out, days=2, now=now)


async def echo(
    caller: Caller, kind: str, header: dict[str, Any], body: bytes | None
) -> tuple[dict[str, Any], bytes | None]:
    """Answer with the caller's name, its header and its body."""
    return {"caller": f"{caller.role}/{caller.number}", **header}, body


@asynccontextmanager
async def serving(
    federation: Federation,
    handler: Handler = echo,
    limits: Limits = LIMITS,
    identity: Identity | None = None,
    authorise: Authorise | None = None,
) -> AsyncIterator[tuple[str, Server]]:
    """A running edge server: its address and itself."""
    server = Server()
    me = identity or federation.issue("edge/0")
    port = await server.start("127.0.0.1:0", me, federation.allow, handler, limits, authorise)
    try:
        yield f"127.0.0.1:{port}", server
    finally:
        await server.stop(0)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test that must not hang: it fails after a while."""
    return asyncio.run(asyncio.wait_for(work, 300))


@asynccontextmanager
async def raw(address: str, identity: Identity) -> AsyncIterator[Callable[[], Any]]:
    """A caller with a good certificate that ignores the protocol: it opens bare streams."""
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.cert)
    options = [
        ("grpc.ssl_target_name_override", "edge-0.sdfeel.sdfeel"),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.bdp_probe", 0),  # buffers that grow on a busy machine would take a whole body
    ]
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        yield lambda: channel.stream_stream(METHOD)(timeout=120)


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status with which the server ended a call, after everything that it sent."""
    with suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code(), await call.details()


async def outage(peer: Peer, kind: str, words: str) -> str:
    """The words of an outage at a caller; a busy machine gets more time until they come."""
    for seconds in (0.5, 2.0, 8.0, 30.0):
        with pytest.raises(Unreachable) as caught:
            await peer.call(kind, {}, timeout=seconds)
        told = str(caught.value)
        if re.search(words, told):
            break
    assert re.search(words, told), told
    return told


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another task's effect; `run` bounds the wait."""
    while not condition():  # noqa: ASYNC110  (counters have no event)
        await asyncio.sleep(0.01)
