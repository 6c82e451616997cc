"""The authentication matrix: every stranger is refused, and every refusal says why."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from sdfeel.core.errors import DataError
from sdfeel.live.transport import NotTrusted, Peer, Unreachable
from sdfeel.live.transport.diagnosis import GREETING
from sdfeel.live.trust import allow_list
from sdfeel.live.trust.identity import AllowList, Identity, revoke
from tests.live.parties import LIMITS, Federation, outage, run, serving

GO_AWAY = 7  # the type of HTTP/2's frame that ends a connection
METHOD = "/sdfeel.live.Node/Call"
Story = Callable[[], Awaitable[None]]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("theirs"))


async def refused(address: str, me: Identity, why: str, name: str = "edge/0") -> None:
    """The call ends at once, although it could last a minute."""
    async with Peer(address, me, name, LIMITS) as peer:
        with pytest.raises(NotTrusted, match=why):
            await peer.call("echo", {}, timeout=60)


def test_a_node_without_a_certificate_does_not_even_start(ours: Federation) -> None:
    one = ours.issue("client/0")
    (one.directory / "cert.pem").unlink()
    with pytest.raises(DataError, match=r"cannot read .*cert\.pem: No such file"):
        Identity.load(one.directory)


def test_a_stranger_without_a_certificate_is_refused_by_tls(ours: Federation) -> None:
    async def story() -> None:
        async with serving(ours) as (address, server):
            name = [("grpc.ssl_target_name_override", "edge-0.sdfeel.sdfeel")]
            credentials = grpc.ssl_channel_credentials(ours.issue("client/0").ca)
            async with grpc.aio.secure_channel(address, credentials, name) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.stream_stream(METHOD)(timeout=120).read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert server.counts["calls"] == 0

    run(story())


def test_a_stranger_in_plaintext_is_refused(ours: Federation) -> None:
    async def story() -> None:
        async with serving(ours) as (address, server):
            async with grpc.aio.insecure_channel(address) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.stream_stream(METHOD)(timeout=120).read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert server.counts["calls"] == 0

    run(story())


def test_a_client_of_another_authority_is_refused(ours: Federation, theirs: Federation) -> None:
    async def story() -> None:
        stranger = theirs.issue("client/0")
        trusting = replace(stranger, ca=ours.issue("client/0").ca)
        async with serving(ours) as (address, server):
            await refused(address, stranger, "is not from our authority, so it cannot be")
            await refused(
                address,
                trusting,
                "edge/0 at .* does not accept our certificate, .*client/0: it must",
            )
            assert server.counts["calls"] == 0

    run(story())


def test_an_expired_client_knows_it_and_is_refused_anyway(ours: Federation) -> None:
    async def story() -> None:
        old = ours.issue("client/1", expired=True)
        unaware = replace(old, expires=ours.issue("client/1").expires)
        async with serving(ours) as (address, server):
            await refused(address, old, "our own certificate, .*client/1, expired on 20")
            await refused(address, unaware, "does not accept our certificate, .* not have expired")
            assert server.counts["calls"] == 0

    run(story())


def test_a_server_with_an_expired_certificate_is_refused(ours: Federation) -> None:
    async def story() -> None:
        async with serving(ours, identity=ours.issue("edge/0", expired=True)) as (address, _):
            await refused(address, ours.issue("client/0"), "certificate of .*edge/0 .* has expired")

    run(story())


def test_a_server_with_another_name_is_refused(ours: Federation) -> None:
    async def story() -> None:
        async with serving(ours) as (address, server):
            me = ours.issue("client/0")
            await refused(address, me, "is sdfeel://sdfeel/edge/0, not .*edge/1: check", "edge/1")
            assert server.counts["calls"] == 0

    run(story())


def test_a_client_cannot_pose_as_an_edge_server(ours: Federation) -> None:
    async def story() -> None:
        async with serving(ours, identity=ours.issue("client/5")) as (address, _):
            await refused(address, ours.issue("client/0"), "is not from our authority|not .*edge/0")

    run(story())


def test_a_node_of_another_federation_is_refused_even_if_its_authority_is_trusted(
    ours: Federation, tmp_path: Path
) -> None:
    async def story() -> None:
        edge = ours.issue("edge/0")
        visitor = Federation.create(tmp_path, "other").issue("client/0")
        async with serving(ours, identity=replace(edge, ca=edge.ca + visitor.ca)) as (address, s):
            me = replace(visitor, ca=edge.ca)
            why = "belongs to another federation than"
            await refused(address, me, why, "sdfeel://sdfeel/edge/0")
            assert s.counts["denied"] == 1

    run(story())


def test_revocation_ends_a_client_in_the_middle_of_a_connection(ours: Federation) -> None:
    async def story() -> None:
        me = ours.issue("client/2")
        async with serving(ours) as (address, server):
            async with Peer(address, me, "edge/0", LIMITS) as peer:
                await peer.call("echo", {}, timeout=60)
                revoke(ours.list, me.serial)
                with pytest.raises(NotTrusted, match=f"{me.serial} of .*client/2: it was revoked"):
                    await peer.call("echo", {}, timeout=60)
                assert server.counts["denied"] >= 1
            await refused(address, me, "it was revoked")

    run(story())


def test_revocation_ends_a_server_in_the_middle_of_a_connection(ours: Federation) -> None:
    async def story() -> None:
        edge = ours.issue("edge/3")
        async with serving(ours, identity=edge) as (address, server):
            me = ours.issue("client/0")
            async with Peer(address, me, "edge/3", LIMITS, ours.allow) as peer:
                await peer.call("echo", {}, timeout=60)
                revoke(ours.list, edge.serial)
                with pytest.raises(NotTrusted, match=r"no certificate of .*edge/3 is on our allow"):
                    await peer.call("echo", {}, timeout=60)
                ours.issue("edge/3")  # its successor runs elsewhere, the old key is stolen
                with pytest.raises(NotTrusted, match=f"shows certificate {edge.serial}, which is"):
                    await peer.call("echo", {}, timeout=60)
            assert server.counts["calls"] == 1

    run(story())


@pytest.mark.parametrize("whose", ["the server's", "ours"])
def test_whoever_lacks_the_allow_list_trusts_nobody_and_revokes_nobody(
    ours: Federation, whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that takes long must not end all nodes: they wait until the list is back."""
    monkeypatch.setattr(allow_list, "GONE", 0.0)
    me, other = ours.issue("client/2"), tmp_path / "allow.txt"

    async def story() -> None:
        async with serving(ours) as (address, _):
            other.write_bytes(ours.list.read_bytes())
            async with Peer(address, me, "edge/0", LIMITS, AllowList(other)) as peer:
                await peer.call("echo", {}, timeout=30)
                gone = ours.list if whose == "the server's" else other
                content = gone.read_bytes()
                gone.unlink()
                words = r"allow-list.*(nobody is trusted|it trusts nobody)"
                try:
                    await outage(peer, "echo", words)
                    none = grpc.aio.Metadata()
                    cut = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "cut")
                    assert await peer._judged(cut, 1.0) == "cut"  # in the middle of a call
                finally:
                    gone.write_bytes(content)
                await peer.call("echo", {}, timeout=30)

    run(story())


def test_a_server_is_found_again_while_its_certificate_is_rotated(ours: Federation) -> None:
    async def story() -> None:
        certificates = sorted((ours.issue("edge/4") for _ in range(3)), key=lambda one: one.serial)
        me = ours.issue("client/0")
        for certificate in (*certificates, *reversed(certificates)):
            async with (
                serving(ours, identity=certificate) as (address, _),
                Peer(address, me, "edge/4", LIMITS, ours.allow) as peer,
            ):
                assert (await peer.call("echo", {"n": 1}, timeout=60)).header["n"] == 1

    run(story())


def test_nodes_of_two_authorities_talk_while_one_replaces_the_other(
    ours: Federation, theirs: Federation
) -> None:
    async def story() -> None:
        old, new = ours.issue("edge/0"), theirs.issue("client/0")
        both = old.ca + new.ca
        ours.list.write_text(ours.list.read_text() + f"{new.serial} {new.name}\n")
        async with (
            serving(ours, identity=replace(old, ca=both)) as (address, _),
            Peer(address, replace(new, ca=both), "edge/0", LIMITS, ours.allow) as peer,
        ):
            assert (await peer.call("echo", {}, timeout=60)).header["caller"] == "client/0"

    run(story())


async def _say_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


def test_a_server_in_plaintext_is_refused(ours: Federation) -> None:
    async def story() -> None:
        me = ours.issue("client/0")
        http = await asyncio.start_server(_say_http, "127.0.0.1", 0)
        async with http:
            port = http.sockets[0].getsockname()[1]
            await refused(f"127.0.0.1:{port}", me, "answers without TLS, so it cannot be")
        plain = grpc.aio.server()
        port = plain.add_insecure_port("127.0.0.1:0")
        await plain.start()
        await refused(f"127.0.0.1:{port}", me, "answers without TLS, so it cannot be")
        await plain.stop(0)

    run(story())


def test_a_silent_server_is_an_outage_and_not_a_lack_of_trust(ours: Federation) -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            async with Peer(address, ours.issue("client/0"), "edge/0", LIMITS) as peer:
                with pytest.raises(Unreachable, match="it did not answer"):
                    await peer.call("echo", {}, timeout=0.5)

    run(story())


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


def test_a_server_that_hangs_up_before_tls_is_an_outage(ours: Federation) -> None:
    async def story() -> None:
        async with await asyncio.start_server(_hang_up, "127.0.0.1", 0) as rude:
            address = f"127.0.0.1:{rude.sockets[0].getsockname()[1]}"
            async with Peer(address, ours.issue("client/0"), "edge/0", LIMITS) as peer:
                with pytest.raises(Unreachable):
                    await peer.call("echo", {}, timeout=0.5)

    run(story())


def test_a_server_that_tells_by_an_alert_that_it_does_not_trust_us_is_heard(
    ours: Federation, theirs: Federation
) -> None:
    """TLS libraries other than gRPC's give the reason before they hang up."""

    async def story() -> None:
        edge, stranger = ours.issue("edge/0"), theirs.issue("client/0")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=edge.ca.decode())
        context.load_cert_chain(edge.directory / "cert.pem", edge.directory / "key.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])

        async def shake_hands(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with suppress(OSError):
                    await writer.start_tls(context)
            finally:  # a handshake that is still going on at the end does not outlive the test
                writer.transport.abort()

        async with await asyncio.start_server(shake_hands, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await refused(address, replace(stranger, ca=edge.ca), "does not accept our certificate")

    run(story())


async def connected(
    address: str, me: Identity
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A bare TLS connection that has begun to speak HTTP/2."""
    context = ssl.create_default_context(cadata=me.ca.decode())
    context.load_cert_chain(me.directory / "cert.pem", me.directory / "key.pem")
    context.set_alpn_protocols(["h2"])
    host, port = address.split(":")
    name = "edge-0.sdfeel.sdfeel"
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=context, server_hostname=name
    )
    writer.write(GREETING)
    return reader, writer


def test_tls_1_3_is_what_two_nodes_speak(ours: Federation) -> None:
    async def story() -> None:
        async with serving(ours) as (address, _):
            _, writer = await connected(address, ours.issue("client/0"))
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            writer.transport.abort()

    run(story())


def test_a_connection_does_not_outlive_its_certificate_for_long(ours: Federation) -> None:
    """Certificates are checked when a connection opens, so every connection ends at some time."""

    async def story() -> None:
        limits = replace(LIMITS, connection_seconds=0.2)
        async with serving(ours, limits=limits) as (address, _):
            reader, writer = await connected(address, ours.issue("client/0"))
            kind = None
            while kind != GO_AWAY:
                frame = await reader.readexactly(9)
                kind = frame[3]
                await reader.readexactly(int.from_bytes(frame[:3], "big"))
            writer.transport.abort()

    run(story())


def test_calls_continue_while_connections_are_remade(ours: Federation) -> None:
    async def story() -> None:
        limits = replace(LIMITS, connection_seconds=0.05)
        async with (
            serving(ours, limits=limits) as (address, _),
            Peer(address, ours.issue("client/0"), "edge/0", LIMITS) as peer,
        ):
            for number in range(100):
                reply = await peer.call("echo", {"n": number}, b"x", timeout=120)
                assert reply.header["n"] == number

    run(story())
