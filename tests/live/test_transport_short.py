"""Calls whose bodies are short enough to travel with their envelopes: one message each way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

from sdfeel.live.transport import Caller, NotTrusted, Peer
from sdfeel.live.transport.envelope import METHOD, Envelope
from sdfeel.live.transport.errors import Refused, Unreachable
from sdfeel.live.transport.limits import INLINE, Limits
from tests.live.parties import Federation, echo, outage, run, serving, until

Answer = tuple[dict[str, Any], bytes | None]
SHORT = Limits(bodies={"echo": INLINE})
LONG = Limits(bodies={"echo": INLINE + 1})  # may be longer, so the caller must be ready for chunks


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("short"))


@pytest.mark.parametrize("size", [None, 0, 1, 87_400, INLINE])
@pytest.mark.parametrize("limits", [SHORT, LONG], ids=["one message", "a conversation"])
def test_bodies_arrive_unchanged_by_either_way(
    federation: Federation, limits: Limits, size: int | None
) -> None:
    body = None if size is None else bytes(n * n % 251 for n in range(size))

    async def story() -> None:
        async with (
            serving(federation, limits=LONG) as (address, server),
            Peer(address, federation.issue("client/7"), "edge/0", limits) as peer,
        ):
            reply = await peer.call("echo", {"text": "two\nlines"}, body, timeout=120)
            assert reply.header == {"caller": "client/7", "text": "two\nlines"}
            assert reply.body == body
            assert server.counts["answered"] == 1

    run(story())


def test_a_short_message_is_still_refused_by_who_sends_it(federation: Federation) -> None:
    def nobody(caller: Caller, kind: str, header: dict[str, Any]) -> None:
        raise Refused("nobody may")

    async def story() -> None:
        async with (
            serving(federation, limits=SHORT, authorise=nobody) as (address, server),
            Peer(address, federation.issue("client/7"), "edge/0", SHORT) as peer,
        ):
            with pytest.raises(Refused, match="nobody may"):
                await peer.call("echo", {}, b"x", timeout=120)
            assert server.counts["answered"] == 0

    run(story())


def test_a_stranger_is_not_trusted_by_this_way_either(
    federation: Federation, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Federation.create(tmp_path_factory.mktemp("other"))

    async def story() -> None:
        async with (
            serving(federation, limits=SHORT) as (address, _),
            Peer(address, other.issue("client/7"), "edge/0", SHORT) as peer,
        ):
            with pytest.raises(NotTrusted):
                await peer.call("echo", {}, b"x", timeout=120)

    run(story())


def test_a_handler_may_wait_and_is_told_when_the_caller_gives_up(federation: Federation) -> None:
    async def story() -> None:
        gone = asyncio.Event()

        async def waiting(caller: Caller, kind: str, header: dict[str, Any], body: Any) -> Answer:
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()
            raise AssertionError

        async with (
            serving(federation, waiting, SHORT) as (address, server),
            Peer(address, federation.issue("client/7"), "edge/0", SHORT) as peer,
        ):
            call = asyncio.create_task(peer.call("wait", {}, timeout=50))
            await until(lambda: server.counts["calls"] > 0)
            call.cancel()
            await gone.wait()
            gone.clear()
            while not gone.is_set():  # time may be up before the handler has begun
                await outage(peer, "wait", "it did not answer")

    run(story())


def test_many_short_calls_share_a_connection(federation: Federation) -> None:
    async def story() -> None:
        async with (
            serving(federation, echo, SHORT) as (address, _),
            Peer(address, federation.issue("client/7"), "edge/0", SHORT) as peer,
        ):
            bodies = [bytes([n]) * 10_000 for n in range(30)]
            calls = [
                peer.call("echo", {"n": n}, body, timeout=120) for n, body in enumerate(bodies)
            ]
            replies = await asyncio.gather(*calls)
            assert [reply.body for reply in replies] == bodies

    run(story())


@asynccontextmanager
async def malicious(federation: Federation, messages: list[bytes]) -> AsyncIterator[str]:
    """A server with a good certificate that answers with these messages."""

    async def behave(_requests: object, context: Any) -> None:
        await context.read()
        for message in messages:
            await context.write(message)

    class Routes(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            handler: Callable[..., Any] = grpc.stream_stream_rpc_method_handler
            return handler(behave) if details.method == METHOD else None

    me = federation.issue("edge/0")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Routes(),))
    pair = [(me.key, me.cert)]
    credentials = grpc.ssl_server_credentials(pair, me.ca, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("messages", "error", "why"),
    [
        ([Envelope("other").encode()], Refused, "answered 'other' to 'echo'"),
        ([Envelope("echo", {}, 9).encode()], Refused, "announced 9 bytes and did not send them"),
        ([Envelope("echo", {}, INLINE + 1).encode()], Refused, "too large for 'echo'"),
        ([Envelope("echo", {}, 2).encode(b"abc")], Refused, "3 bytes came with the header"),
        ([b"{"], Refused, "not JSON"),
        ([], Refused, "the stream ended before its header"),
        ([bytes(2 << 20)], Unreachable, "within 1 s"),
    ],
    ids=["kind", "no body", "size", "surplus", "nonsense", "nothing", "huge"],
)
def test_a_malicious_server_gains_nothing(
    federation: Federation, messages: list[bytes], error: type[Exception], why: str
) -> None:
    async def story() -> None:
        async with (
            malicious(federation, messages) as address,
            Peer(address, federation.issue("client/7"), "edge/0", SHORT) as peer,
        ):
            with pytest.raises(error, match=why):
                await peer.call("echo", {}, b"x", timeout=1 if error is Unreachable else 30)

    run(story())


def test_a_server_that_goes_on_after_its_answer_holds_a_caller_no_longer_than_its_deadline(
    federation: Federation,
) -> None:
    endless = [Envelope("echo", {"n": 1}).encode(), *[bytes(1 << 20)] * 50]
    limits = replace(SHORT, chunk_seconds=1)

    async def story() -> None:
        async with (
            malicious(federation, endless) as address,
            Peer(address, federation.issue("client/7"), "edge/0", limits) as peer,
        ):
            with pytest.raises(Unreachable, match="within 1 s"):
                await peer.call("echo", {}, timeout=1)

    run(story())
