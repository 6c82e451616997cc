"""Damaged calls against a running server, by somebody whose certificate is good."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import grpc.aio

from sdfeel.core.run_files import ALLOW
from sdfeel.core.seeds import number
from sdfeel.live.transport import Caller, Peer, Server
from sdfeel.live.transport.envelope import GO, METHOD, Envelope
from sdfeel.live.transport.limits import Limits, for_peer
from sdfeel.live.trust.allow_list import AllowList
from sdfeel.live.trust.identity import Identity, create_authority, issue
from sdfeel.live.trust.names import Name
from tests.tools.fuzz.mutations import mutated
from tests.tools.fuzz.run import Found, Tally, memory
from tests.waiting import completed

_BODY = b"123456789"
_FIRST = Envelope("push", {"round": 1, "sha256": "ab" * 32}, len(_BODY))
_GOOD = (_FIRST.encode(), _BODY, GO, _FIRST.encode(_BODY))
_LIMITS = Limits(bodies={"push": 1 << 20}, chunk_seconds=5)


def attack_server(count: int, seed: int, first: int = 0) -> Tally:
    """Send damaged calls; raises `Found` if a handler failed or the server no longer answers."""
    return completed(_attack(range(first, first + count), seed), 60.0 + count)


@asynccontextmanager
async def _running() -> AsyncIterator[tuple[Server, str, Identity]]:
    """A server on loopback, its address and somebody whom it knows."""
    with TemporaryDirectory() as directory:
        root = Path(directory)
        authority = create_authority(root / "authority")
        edge = issue(authority, "edge/0", [], root / "edge")
        client = issue(authority, "client/0", [], root / "client")
        server = Server()
        allow = AllowList(authority / ALLOW)
        port = await server.start("127.0.0.1:0", edge, allow, _echo, _LIMITS)
        try:
            yield server, f"127.0.0.1:{port}", client
        finally:
            await server.stop(0)


async def _attack(cases: range, seed: int) -> Tally:
    async with _running() as (server, address, client):
        credentials = grpc.ssl_channel_credentials(client.ca, client.key, client.cert)
        options = for_peer(_LIMITS, Name.parse("edge/0", client.parsed.federation).dns)
        begun, before = time.perf_counter(), 0
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            for tried, index in enumerate(cases, 1):
                await _misbehave(channel, Random(number(seed, "fuzz frames", index)))
                if server.counts["failed"]:
                    raise Found(f"frames number {index} of seed {seed}: the server's log tells why")
                if tried == 1 + len(cases) // 10:
                    before = memory()
        seconds, grown = time.perf_counter() - begun, memory() - before
        accepted = server.counts["answered"]
        async with Peer(address, client, "edge/0", _LIMITS) as peer:
            if (await peer.call("push", {}, _BODY, timeout=120)).body != _BODY:
                raise Found(f"after {len(cases)} frames of seed {seed} the answers are wrong")
        return Tally("frames", len(cases), accepted, seconds, grown)


async def _misbehave(channel: grpc.aio.Channel, random: Random) -> None:
    """One call of up to four messages, most of them damaged, some in the wrong order."""
    open_stream: Any = channel.stream_stream(METHOD)
    call = open_stream(timeout=120)
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        first = random.choice((_GOOD[0], _GOOD[-1]))
        for message in (first, *random.choices(_GOOD, k=random.randint(0, 3))):
            damaged = random.random() < 0.5
            await call.write(mutated(message, _GOOD, random) if damaged else message)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    call.cancel()


async def _echo(
    caller: Caller, kind: str, header: dict[str, Any], body: bytes | None
) -> tuple[dict[str, Any], bytes | None]:
    return {}, body if kind == "push" else None
