"""A good certificate and bad intentions: nothing is unbounded, and others continue."""

import asyncio
import json
import socket
from collections import Counter
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

from sdfeel.live.transport import Caller, NotTrusted, Peer, Refused, Unreachable
from sdfeel.live.transport.envelope import GO, VERSION, Envelope
from sdfeel.live.transport.limits import CHUNK, INLINE
from sdfeel.live.trust.identity import revoke
from tests.live.parties import LIMITS, Federation, echo, raw, run, serving, status, until

Answer = tuple[dict[str, Any], bytes | None]
CAP = 4 << 20
QUICK = replace(LIMITS, chunk_seconds=1.0)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("federation"))


async def honest_call(federation: Federation, address: str) -> None:
    async with Peer(address, federation.issue("client/0"), "edge/0", LIMITS) as peer:
        assert (await peer.call("echo", {}, b"honest", timeout=120)).body == b"honest"


async def for_ever(call: Any, message: bytes) -> None:
    while True:
        await call.write(message)


def test_an_oversized_body_is_refused_before_it_is_sent(federation: Federation) -> None:
    async def story() -> None:
        async with serving(federation) as (address, server):
            async with Peer(address, federation.issue("client/0"), "edge/0", LIMITS) as peer:
                why = "a body of 4,194,305 bytes is too large for 'echo', which may have 4,194,304"
                with pytest.raises(Refused, match=why):
                    await peer.call("echo", {}, bytes(CAP + 1), timeout=120)
                with pytest.raises(Refused, match="too large for 'status', which may have 0"):
                    await peer.call("status", {}, b"x", timeout=120)
            assert server.counts["bytes_in"] < 1000

    run(story())


@pytest.mark.parametrize(
    ("announced", "chunk"), [(CAP - 1, CHUNK), (100, CHUNK), (CAP, CHUNK - 7), (CAP, 1)]
)
def test_an_endless_stream_ends_within_the_cap_and_a_chunk(
    federation: Federation, announced: int, chunk: int
) -> None:
    async def story() -> None:
        async with serving(federation) as (address, server):
            async with raw(address, federation.issue("client/1")) as stream:
                call = stream()
                await call.write(Envelope("echo", {}, announced).encode())
                assert await call.read() == GO
                with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                    await for_ever(call, bytes(chunk))
            assert server.counts["refused"] == 1
            assert server.counts["bytes_in"] < CAP + CHUNK + 1000
            await honest_call(federation, address)

    run(story())


def test_a_body_that_ends_early_or_comes_in_tiny_chunks_is_refused(federation: Federation) -> None:
    async def story() -> None:
        async with (
            serving(federation) as (address, _),
            raw(address, federation.issue("client/1")) as stream,
        ):
            for part, why in (
                (None, "the body ended after 0 of 9 bytes"),
                (b"", "a chunk of 0 bytes where 9 are due"),
                (b"abc", "a chunk of 3 bytes where 9 are due"),
                (b"x" * 10, "a chunk of 10 bytes where 9 are due"),
            ):
                call = stream()
                await call.write(Envelope("echo", {}, 9).encode())
                assert await call.read() == GO
                if part is not None:
                    await call.write(part)
                await call.done_writing()
                code, reason = await status(call)
                assert code is grpc.StatusCode.FAILED_PRECONDITION
                assert why in reason

    run(story())


def test_a_single_huge_message_is_not_even_read(federation: Federation) -> None:
    async def story() -> None:
        async with (
            serving(federation) as (address, server),
            raw(address, federation.issue("client/1")) as stream,
        ):
            call = stream()
            await call.write(bytes(3 * CHUNK))
            assert (await status(call))[0] is not grpc.StatusCode.OK
            assert server.counts["bytes_in"] == 0
            await honest_call(federation, address)

    run(story())


def envelope(**changes: object) -> bytes:
    record = {"version": VERSION, "kind": "echo", "header": {}, "size": None, **changes}
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b'{"a":' * 10_000, "not JSON"),
        (b"9" * 60_000, "not JSON"),
        (envelope(size=float("nan")), "not JSON"),
        (b"[1]", "not an envelope"),
        (b"{}", "not an envelope"),
        (envelope(more=1), "not an envelope"),
        (envelope(version=VERSION - 1), f"this node speaks protocol {VERSION}"),
        (envelope(kind=5), "kind must be a short word"),
        (envelope(kind="k" * 65), "kind must be a short word"),
        (envelope(kind="a\nb"), "kind must be a short word"),
        (envelope(header=[]), "its header an object"),
        (envelope(size=-1), "size must be null or a number"),
        (envelope(size=True), "size must be null or a number"),
        (envelope(size=1.0), "size must be null or a number"),
        (envelope(size=2**63 - 1), "too large for 'echo'"),
        (envelope(size=2**63), "not JSON"),
        (envelope(header={"x": 0}).replace(b"0", b"1e999"), "not JSON"),
        (envelope(header={"x": "\ud800"}), "not JSON"),
        (envelope(header={"x": "x" * 70_000}), "but may have 65,536"),
        (envelope() + b"\nabc", "3 bytes came with the header, which announces 0"),
        (envelope(size=0) + b"\nabc", "3 bytes came with the header, which announces 0"),
        (envelope(size=9) + b"\nabc", "3 bytes came with the header, which announces 9"),
        (envelope(size=9) + b"\n", "0 bytes came with the header, which announces 9"),
        (
            envelope(size=INLINE + 1) + b"\n" + bytes(INLINE + 1),
            "262,145 bytes came with the header, which announces 262,145: at most 262,144 may",
        ),
        (envelope(kind="status", size=3) + b"\nabc", "too large for 'status', which may have 0"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else repr(value)[:24],
)
def test_a_bad_envelope_is_refused_with_its_reason(
    federation: Federation, message: bytes, why: str
) -> None:
    async def story() -> None:
        async with (
            serving(federation) as (address, server),
            raw(address, federation.issue("client/1")) as stream,
        ):
            call = stream()
            await call.write(message)
            code, reason = await status(call)
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert why in reason
            assert server.counts["failed"] == 0

    run(story())


@pytest.mark.parametrize("stage", ["silent", "after the envelope", "in the body"])
def test_a_slow_sender_is_cut_off(federation: Federation, stage: str) -> None:
    async def story() -> None:
        async with (
            serving(federation, limits=QUICK) as (address, server),
            raw(address, federation.issue("client/1")) as stream,
        ):
            call = stream()
            if stage != "silent":
                await call.write(Envelope("echo", {}, CAP).encode())
            if stage == "in the body":
                assert await call.read() == GO
                await call.write(bytes(CHUNK))
            code, reason = await status(call)
            assert (code, reason) == (
                grpc.StatusCode.DEADLINE_EXCEEDED,
                "nothing moved for 1 s",
            )
            assert server.counts["slow"] == 1

    run(story())


def test_a_reader_that_does_not_read_is_cut_off(federation: Federation) -> None:
    limits = replace(QUICK, bodies={"pull": 64 << 20})

    async def generous(caller: Caller, kind: str, header: dict[str, Any], body: Any) -> Answer:
        return {}, bytes(64 << 20)

    async def story() -> None:
        async with serving(federation, generous, limits) as (address, server):
            async with raw(address, federation.issue("client/1")) as stream:
                call = stream()
                await call.write(Envelope("pull").encode())
                await until(lambda: server.counts["slow"] > 0)
                call.cancel()
            assert server.counts["bytes_out"] < 32 << 20

    run(story())


def test_a_connection_without_a_handshake_is_closed(federation: Federation) -> None:
    async def story() -> None:
        limits = replace(LIMITS, handshake_seconds=0.2)
        async with serving(federation, limits=limits) as (address, _):
            host, port = address.split(":")
            with socket.create_connection((host, int(port))) as silent:
                silent.settimeout(120)
                assert await asyncio.to_thread(silent.recv, 1) == b""

    run(story())


def test_a_call_that_takes_too_long_is_ended(federation: Federation) -> None:
    async def forever(caller: Caller, kind: str, header: dict[str, Any], body: Any) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async def story() -> None:
        limits = replace(LIMITS, call_seconds=0.2)
        async with (
            serving(federation, forever, limits) as (address, server),
            raw(address, federation.issue("client/1")) as stream,
        ):
            call = stream()
            await call.write(Envelope("echo").encode())
            assert await status(call) == (
                grpc.StatusCode.DEADLINE_EXCEEDED,
                "the call took more than 0.2 s",
            )
            assert server.counts["slow"] == 1

    run(story())


def test_a_flood_is_refused_at_once_and_others_go_on(federation: Federation) -> None:
    limits = replace(LIMITS, calls_per_caller=4)

    async def story() -> None:
        hold = asyncio.Event()

        async def waiting(caller: Caller, kind: str, header: dict[str, Any], body: Any) -> Answer:
            if caller.number == 66:
                await hold.wait()
            return await echo(caller, kind, header, body)

        async with serving(federation, waiting, limits) as (address, server):
            flooder = federation.issue("client/66")
            calls = []
            async with asyncio.timeout(120), _Many(address, flooder, 10) as streams:
                for stream in streams:
                    for _ in range(4):
                        calls.append(stream())
                        await calls[-1].write(Envelope("echo").encode())
                await until(lambda: server.counts["busy"] == 36)
                await honest_call(federation, address)
                assert (server.counts["busy"], server.counts["answered"]) == (36, 1)
                hold.set()
                codes = Counter([(await status(call))[0] for call in calls])
            assert codes == {grpc.StatusCode.OK: 4, grpc.StatusCode.RESOURCE_EXHAUSTED: 36}

    run(story())


class _Many:
    """Several connections of one identity."""

    def __init__(self, address: str, identity: Any, count: int) -> None:
        self._contexts = [raw(address, identity) for _ in range(count)]

    async def __aenter__(self) -> list[Any]:
        return [await context.__aenter__() for context in self._contexts]

    async def __aexit__(self, *error: Any) -> None:
        for context in self._contexts:
            await context.__aexit__(*error)


def test_more_calls_than_the_server_holds_are_refused_at_once(federation: Federation) -> None:
    async def story() -> None:
        hold = asyncio.Event()

        async def waiting(caller: Caller, kind: str, header: dict[str, Any], body: Any) -> Answer:
            await hold.wait()
            return {}, None

        async with (
            serving(federation, waiting, replace(LIMITS, calls=3)) as (address, server),
            raw(address, federation.issue("client/1")) as stream,
        ):
            held = [stream() for _ in range(3)]
            for call in held:
                await call.write(Envelope("echo").encode())
            await until(lambda: server.counts["calls"] == 3)
            code, _ = await status(stream())
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            hold.set()
            assert [(await status(call))[0] for call in held] == [grpc.StatusCode.OK] * 3

    run(story())


def test_one_caller_cannot_hold_many_uploads(federation: Federation) -> None:
    async def story() -> None:
        async with (
            serving(federation) as (address, _),
            raw(address, federation.issue("client/1")) as stream,
        ):
            held = [stream() for _ in range(LIMITS.uploads_per_caller)]
            for call in held:
                await call.write(Envelope("echo", {}, CAP).encode())
                assert await call.read() == GO
            more = stream()
            await more.write(Envelope("echo", {}, CAP).encode())
            code, reason = await status(more)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "has 2 uploads running: wait for one to end" in reason
            await honest_call(federation, address)
            for call in held:
                call.cancel()

    run(story())


def test_one_caller_cannot_hold_many_long_answers(federation: Federation) -> None:
    """Each would keep a model in memory for as long as its reader likes."""
    limits = replace(LIMITS, bodies={"pull": 16 << 20, "echo": CAP})

    async def generous(caller: Caller, kind: str, header: dict[str, Any], body: Any) -> Answer:
        return ({}, bytes(16 << 20)) if kind == "pull" else (header, body)

    async def story() -> None:
        async with (
            serving(federation, generous, limits) as (address, _),
            raw(address, federation.issue("client/1")) as stream,
        ):
            held = [stream() for _ in range(limits.downloads_per_caller)]
            for call in held:
                await call.write(Envelope("pull").encode())
                assert await call.read()  # its envelope; of the rest, what fits into buffers
            more = stream()
            await more.write(Envelope("pull").encode())
            code, reason = await status(more)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "has 4 downloads running: wait for one to end" in reason
            await honest_call(federation, address)
            for call in held:
                call.cancel()

    run(story())


def test_200_idle_connections_do_not_stop_an_honest_call(federation: Federation) -> None:
    async def story() -> None:
        async with serving(federation) as (address, _):
            host, port = address.split(":")
            idle = [socket.create_connection((host, int(port))) for _ in range(200)]
            await honest_call(federation, address)
            for connection in idle:
                connection.close()

    run(story())


def test_where_connections_are_too_many_the_one_used_least_recently_ends(
    federation: Federation,
) -> None:
    async def story() -> None:
        me = federation.issue("client/1")
        async with serving(federation, limits=replace(LIMITS, connections=2)) as (address, server):
            peers = [Peer(address, me, "edge/0", LIMITS) for _ in range(5)]
            for peer in peers:
                await peer.call("echo", {}, timeout=120)
            await until(lambda: len(server._guard.known) <= 2)
            for peer in peers:
                await peer.close()

    run(story())


def test_a_refusal_is_never_lost_while_the_caller_still_writes(federation: Federation) -> None:
    async def story() -> None:
        me = federation.issue("client/1")
        revoke(federation.list, me.serial)
        async with serving(federation) as (address, server):
            for body in (None, bytes(CAP)):
                for _ in range(25):
                    async with Peer(address, me, "edge/0", LIMITS) as peer:
                        with pytest.raises(NotTrusted, match="it was revoked"):
                            await peer.call("echo", {}, body, timeout=120)
            assert (server.counts["calls"], server.counts["denied"]) == (50, 50)

    run(story())


def test_hundreds_of_duplicates_change_nothing(federation: Federation) -> None:
    """What the transport promises a receiver: one key, one caller, the same bytes every time."""
    kept: dict[tuple[str, int], set[bytes | None]] = {}

    async def keep(caller: Caller, kind: str, header: dict[str, Any], body: bytes | None) -> Answer:
        kept.setdefault((caller.name, header["round"]), set()).add(body)
        return {}, None

    async def story() -> None:
        limits = replace(LIMITS, uploads_per_caller=16)
        async with (
            serving(federation, keep, limits) as (address, server),
            Peer(address, federation.issue("client/1"), "edge/0", limits) as peer,
        ):
            for _ in range(3):
                calls = [peer.call("echo", {"round": 1}, b"model", timeout=120) for _ in range(100)]
                await asyncio.gather(*calls)
            assert server.counts["answered"] == 300

    run(story())
    assert kept == {("sdfeel://sdfeel/client/1", 1): {b"model"}}


class _Malicious:
    """An edge server with a good certificate that answers whatever it likes."""

    def __init__(self, federation: Federation, messages: list[bytes], *, endless: bool) -> None:
        self._me, self._messages, self._endless = federation.issue("edge/0"), messages, endless

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._answer)

    async def _answer(self, requests: Any, context: Any) -> None:
        await context.read()
        for message in self._messages:
            await context.write(message)
        while self._endless:
            await context.write(bytes(CHUNK))

    async def __aenter__(self) -> str:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))  # type: ignore[arg-type]
        pair = (self._me.key, self._me.cert)
        credentials = grpc.ssl_server_credentials([pair], self._me.ca, True)
        port = self._server.add_secure_port("127.0.0.1:0", credentials)
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop(0)


@pytest.mark.parametrize(
    ("messages", "endless", "why"),
    [
        ([], False, "the stream ended before its header"),
        ([b"nonsense"], False, "the header is not JSON"),
        ([Envelope("echo", {}, CAP + 1).encode()], True, "too large for 'echo'"),
        ([Envelope("echo", {}, 10).encode()], True, "a chunk of 1,048,576 bytes where 10 are due"),
        ([Envelope("echo").encode()], True, "sent more than it announced"),
        ([Envelope("other").encode()], False, "answered 'other' to 'echo'"),
        ([Envelope("echo", {}, 10).encode()], False, "the body ended after 0 of 10"),
    ],
)
def test_a_malicious_server_cannot_flood_its_caller(
    federation: Federation, messages: list[bytes], endless: bool, why: str
) -> None:
    async def story() -> None:
        me = federation.issue("client/0")
        async with (
            _Malicious(federation, messages, endless=endless) as address,
            Peer(address, me, "edge/0", LIMITS) as peer,
        ):
            with pytest.raises(Refused, match=why):
                await peer.call("echo", {}, timeout=120)

    run(story())


@pytest.mark.parametrize("word", [b"gimme", GO], ids=["does not ask", "does not listen"])
def test_a_malicious_server_cannot_break_the_protocol_of_long_bodies(
    federation: Federation, word: bytes
) -> None:
    async def story() -> None:
        me = federation.issue("client/0")
        async with (
            _Malicious(federation, [word], endless=False) as address,
            Peer(address, me, "edge/0", LIMITS) as peer,
        ):
            for _ in range(3):  # the call may end before, in or after a write
                with pytest.raises(
                    (Refused, Unreachable),
                    match=r"before it had|no answer from|the stream ended before its header",
                ):
                    await peer.call("echo", {}, bytes(CAP), timeout=0.5)

    run(story())
