"""One certificate, or one address, cannot take the connections that others need."""

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdfeel.live.health import Health, HealthPage
from sdfeel.live.transport import Caller, NotTrusted, Peer, Server
from sdfeel.live.transport.connections import _own_sockets, parsed
from sdfeel.live.transport.diagnosis import probe
from sdfeel.live.transport.limits import Limits
from sdfeel.live.trust.identity import Identity, revoke
from tests.live.parties import Federation, echo, run, serving, until

LIMITS = Limits(
    bodies={"echo": 1 << 20},
    connections=60,
    connections_per_caller=4,
    fresh_per_address=12,
    first_call_seconds=30.0,
    handshake_seconds=300.0,  # on a busy machine gRPC would end them, and nobody could be cut
)


async def idle_tls(address: str, identity: Identity) -> asyncio.StreamWriter:
    """A connection with a complete handshake and a good certificate, but without a call."""
    context = ssl.create_default_context(cadata=identity.ca.decode())
    context.check_hostname = False
    context.load_cert_chain(identity.directory / "cert.pem", identity.directory / "key.pem")
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    return writer


async def plain(address: str, identity: Identity) -> asyncio.StreamWriter:
    host, _, port = address.rpartition(":")
    return (await asyncio.open_connection(host, int(port)))[1]


@pytest.mark.parametrize("knock", [idle_tls, plain], ids=["TLS", "plain"])
def test_idle_connections_beyond_the_limit_lock_nobody_out(
    knock: Callable[[str, Identity], Any], tmp_path: Path
) -> None:
    federation = Federation.create(tmp_path)
    bad, good = federation.issue("client/0"), federation.issue("client/1")

    async def story() -> None:
        async with serving(federation, limits=LIMITS) as (address, server):
            knocks = [knock(address, bad) for _ in range(2 * LIMITS.connections)]
            found = await asyncio.gather(*knocks, return_exceptions=True)
            writers = [each for each in found if not isinstance(each, BaseException)]
            async with Peer(address, good, "edge/0", LIMITS) as peer:
                reply = await peer.call("echo", {"text": "hello"}, timeout=120)
                assert reply.header["text"] == "hello"
            few, cut = LIMITS.fresh_per_address, server.counts
            await until(lambda: cut["cut"] > 0 and len(server._guard.known) <= few)
            for writer in writers:
                writer.transport.abort()

    run(story())


def test_a_certificate_keeps_only_some_connections_and_those_with_calls(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)
    greedy, good = federation.issue("client/0"), federation.issue("client/1")
    gate = asyncio.Event()

    async def handler(
        caller: Caller, kind: str, header: dict[str, Any], body: bytes | None
    ) -> tuple[dict[str, Any], bytes | None]:
        if header.get("long"):
            await gate.wait()
        return {}, None

    async def story() -> None:
        async with (
            serving(federation, handler, LIMITS) as (address, server),
            AsyncExitStack() as stack,
        ):
            peers = [
                await stack.enter_async_context(Peer(address, greedy, "edge/0", LIMITS))
                for _ in range(12)
            ]
            first = asyncio.ensure_future(peers[0].call("echo", {"long": True}, timeout=50))
            await until(lambda: server.counts["calls"] == 1)
            for peer in peers[1:]:
                await peer.call("echo", {}, timeout=120)
            await until(lambda: len(server._guard.known) <= LIMITS.connections_per_caller)
            async with Peer(address, good, "edge/0", LIMITS) as peer:
                await peer.call("echo", {}, timeout=120)
            assert not first.done()
            gate.set()
            await first

    run(story())


def test_a_revoked_certificate_loses_its_connections_and_calls_at_once(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)
    bad = federation.issue("client/0")

    async def handler(
        caller: Caller, kind: str, header: dict[str, Any], body: bytes | None
    ) -> tuple[dict[str, Any], bytes | None]:
        await asyncio.Event().wait()
        return {}, None

    async def story() -> None:
        async with serving(federation, handler, LIMITS) as (address, server):
            async with Peer(address, bad, "edge/0", LIMITS) as peer:
                call = asyncio.ensure_future(peer.call("echo", {}, timeout=50))
                await until(lambda: server.counts["calls"] == 1)
                await until(lambda: len(server._guard.known) == 1)
                revoke(federation.list, bad.serial)
                with pytest.raises(NotTrusted, match="it was revoked"):
                    await call
            await until(lambda: not server._guard.known)

    run(story())


def test_sockets_of_others_are_left_alone(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)

    async def story() -> None:
        ours, theirs = socket.socketpair()
        async with serving(federation, limits=LIMITS) as (_, server):
            for _ in range(3):
                server._guard.look()
            assert not server._guard.known
            ours.send(b"x")
            assert theirs.recv(1) == b"x"
        with suppress(OSError):
            ours.close()
            theirs.close()

    run(story())


def test_addresses_are_read_in_every_spelling() -> None:
    assert parsed("ipv6:%5B::ffff:10.0.0.5%5D:7") == parsed("ipv4:10.0.0.5:7") == ("10.0.0.5", 7)
    assert parsed("unix:") == ("", 0)


def test_refused_calls_are_logged_but_not_every_one(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)
    told: list[str] = []

    async def story() -> None:
        me, bad = federation.issue("edge/0"), federation.issue("client/5")
        revoke(federation.list, bad.serial)
        server = Server(told.append)
        port = await server.start("127.0.0.1:0", me, federation.allow, echo, LIMITS)
        async with Peer(f"127.0.0.1:{port}", bad, "edge/0", LIMITS) as peer:
            for _ in range(3):
                with pytest.raises(NotTrusted):
                    await peer.call("echo", {}, timeout=120)
        await server.stop(0)

    run(story())
    assert len(told) == 1
    assert "denied: a call from ipv4:127.0.0.1" in told[0]
    assert "client/5: it was revoked" in told[0]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_both_ends_of_a_connection_notice_soon_that_packets_get_lost(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)
    limits = replace(LIMITS, silence_seconds=3.0)

    def patience() -> list[int]:
        found = []
        for descriptor in _own_sockets().values():
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
                copy.getpeername()  # the connected ones
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                    found.append(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        return found

    async def story() -> None:
        async with (
            serving(federation, limits=limits) as (address, _),
            Peer(address, federation.issue("client/0"), "edge/0", limits) as peer,
        ):
            await peer.call("echo", {}, timeout=120)
            await until(lambda: patience().count(3000) >= 2)

    run(story())


def _has_version_6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not _has_version_6(), reason="no IPv6 here")
def test_nodes_talk_and_are_guarded_and_probed_over_ipv6(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)

    async def story() -> None:
        server = Server()
        edge, good = federation.issue("edge/0"), federation.issue("client/0")
        port = await server.start("[::1]:0", edge, federation.allow, echo, LIMITS)
        async with Peer(f"[::1]:{port}", good, "edge/0", LIMITS, federation.allow) as peer:
            assert (await peer.call("echo", {"text": "six"}, timeout=120)).header["text"] == "six"
            server._guard.look()
            owners = {one.owner for one in server._guard.known.values()}
            assert (good.serial, good.name) in owners
            serial = await probe(f"[::1]:{port}", good, peer.name, 30)
            assert serial == edge.serial
        await server.stop(0)
        page = HealthPage(Health("edge-0", "edge", dict))
        address = await page.start("[::1]:0")
        reader, writer = await asyncio.open_connection("::1", int(address.rpartition(":")[2]))
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.0 200")
        writer.close()
        await page.stop()
        assert address.startswith("[::1]:")

    run(story())
