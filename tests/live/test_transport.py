"""Calls between nodes: what arrives, what is tried again, and what an error means."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sdfeel.core.errors import InputError
from sdfeel.live.transport import Caller, Peer, Refused, Server
from sdfeel.live.transport.limits import CHUNK, Limits
from tests.live.parties import LIMITS, Federation, echo, outage, run, serving, until

Answer = tuple[dict[str, Any], bytes | None]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("federation"))


def peer(federation: Federation, address: str, limits: Limits = LIMITS) -> Peer:
    return Peer(address, federation.issue("client/7"), "edge/0", limits)


def test_a_message_and_its_answer_arrive_with_the_callers_proved_name(
    federation: Federation,
) -> None:
    async def story() -> None:
        async with serving(federation) as (address, server), peer(federation, address) as caller:
            reply = await caller.call("echo", {"round": 3, "text": "größer"}, b"abc", timeout=120)
            assert reply.header == {"caller": "client/7", "round": 3, "text": "größer"}
            assert reply.body == b"abc"
            assert server.counts["answered"] == 1

    run(story())


@pytest.mark.parametrize("size", [None, 0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_bodies_of_every_length_arrive_unchanged(federation: Federation, size: int | None) -> None:
    body = None if size is None else os.urandom(size)

    async def story() -> None:
        async with serving(federation) as (address, _), peer(federation, address) as caller:
            assert (await caller.call("echo", {}, body, timeout=120)).body == body

    run(story())


def test_a_model_of_25_mb_arrives_bit_for_bit(federation: Federation) -> None:
    body = os.urandom(25 * 10**6)
    limits = Limits(bodies={"echo": len(body)})

    async def story() -> None:
        async with (
            serving(federation, limits=limits) as (address, server),
            peer(federation, address, limits) as caller,
        ):
            assert (await caller.call("echo", {}, body, timeout=120)).body == body
            assert server.counts["bytes_in"] - len(body) < 1000

    run(story())


def test_many_calls_share_a_connection(federation: Federation) -> None:
    limits = Limits(bodies={"echo": 100}, calls_per_caller=50, uploads_per_caller=50)

    async def story() -> None:
        async with (
            serving(federation, limits=limits) as (address, _),
            peer(federation, address, limits) as caller,
        ):
            calls = [caller.call("echo", {"n": n}, b"%d" % n, timeout=120) for n in range(200)]
            replies = await asyncio.gather(*calls)
            assert [reply.header["n"] for reply in replies] == list(range(200))
            assert [reply.body for reply in replies] == [b"%d" % n for n in range(200)]

    run(story())


def test_a_refusal_is_reported_once_with_its_reason(federation: Federation) -> None:
    asked = Counter[str]()

    async def refuse(caller: Caller, kind: str, header: dict[str, Any], body: Any) -> Answer:
        asked[kind] += 1
        raise Refused("round 3 is over:\n\ud800 the current one is 5")

    async def story() -> None:
        async with serving(federation, refuse) as (address, _), peer(federation, address) as caller:
            with pytest.raises(Refused, match=r"round 3 is over: .* the current one is 5"):
                await caller.call("push", {}, timeout=120)

    run(story())
    assert asked["push"] == 1


def test_a_claim_to_be_somebody_else_is_refused(federation: Federation) -> None:
    async def strict(caller: Caller, kind: str, header: dict[str, Any], body: Any) -> Answer:
        caller.must_be("client", header["client"])
        return {}, None

    async def story() -> None:
        async with serving(federation, strict) as (address, _), peer(federation, address) as caller:
            await caller.call("push", {"client": 7}, timeout=120)
            with pytest.raises(Refused, match="client/7 may not speak for client/8"):
                await caller.call("push", {"client": 8}, timeout=120)

    run(story())


def test_a_caller_without_permission_is_refused_before_its_body_is_read(
    federation: Federation,
) -> None:
    def nobody(caller: Caller, kind: str, header: dict[str, Any]) -> None:
        raise Refused(f"{caller.role}/{caller.number} is not of this cluster")

    async def story() -> None:
        async with (
            serving(federation, authorise=nobody) as (address, server),
            peer(federation, address) as caller,
        ):
            with pytest.raises(Refused, match="client/7 is not of this cluster"):
                await caller.call("echo", {}, bytes(4 * CHUNK), timeout=120)
            assert server.counts["bytes_in"] < 1000
            assert server.counts["answered"] == 0

    run(story())


def test_a_handler_may_wait_and_is_told_when_the_caller_gives_up(federation: Federation) -> None:
    async def story() -> None:
        ready, gone = asyncio.Event(), asyncio.Event()

        async def patient(caller: Caller, kind: str, header: dict[str, Any], body: Any) -> Answer:
            try:
                await ready.wait()
            except asyncio.CancelledError:
                gone.set()
                raise
            return {"open": True}, None

        async with (
            serving(federation, patient) as (address, _),
            peer(federation, address) as caller,
        ):
            while not gone.is_set():  # time may be up before the handler has begun
                await outage(caller, "wait", "it did not answer")
            call = asyncio.create_task(caller.call("wait", {}, timeout=120))
            await asyncio.sleep(0)
            ready.set()
            assert (await call).header == {"open": True}

    run(story())


def test_an_outage_is_reported_as_one(federation: Federation) -> None:
    async def story() -> None:
        async with serving(federation) as (address, _):
            pass
        async with peer(federation, address) as caller:
            await outage(caller, "echo", r"edge/0 .* within [\d.]+ s: Connection refused")

    run(story())


def test_a_call_outlives_a_restart_of_the_server(federation: Federation) -> None:
    async def story() -> None:
        me = federation.issue("edge/0")
        server = Server()
        port = await server.start("127.0.0.1:0", me, federation.allow, echo, LIMITS)
        async with peer(federation, f"127.0.0.1:{port}") as caller:
            await caller.call("echo", {}, timeout=120)
            await server.stop(0)
            call = asyncio.create_task(caller.call("echo", {"late": 1}, timeout=120))
            await asyncio.sleep(0)
            server = Server()
            await server.start(f"127.0.0.1:{port}", me, federation.allow, echo, LIMITS)
            assert (await call).header["late"] == 1
            await server.stop(0)

    run(story())


def test_a_message_is_sent_again_when_its_answer_was_lost(federation: Federation) -> None:
    """The same key arrives twice; keeping the first is all that a receiver must do."""
    kept: dict[int, bytes | None] = {}
    arrived = Counter[int]()

    async def keep(caller: Caller, kind: str, header: dict[str, Any], body: bytes | None) -> Answer:
        key = header["round"]
        arrived[key] += 1
        kept.setdefault(key, body)
        if arrived[key] < 3:
            raise ConnectionError("the process dies after it wrote and before it answered")
        return {"kept": len(kept)}, None

    async def story() -> None:
        async with serving(federation, keep) as (address, _), peer(federation, address) as caller:
            assert (await caller.call("echo", {"round": 1}, b"x", timeout=120)).header == {
                "kept": 1
            }

    run(story())
    assert arrived == {1: 3}
    assert kept == {1: b"x"}


class Cable:
    """A connection to a server that can die silently, as a radio link does."""

    def __init__(self, address: str) -> None:
        self._host, port = address.split(":")
        self._port = int(port)
        self.dead: set[asyncio.StreamWriter] = set()
        self.ends: list[asyncio.StreamWriter] = []

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self.ends += [writer, far_writer]
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the test is over
                both = self._carry(reader, far_writer), self._carry(far_reader, writer)
                await asyncio.gather(*both)
        finally:
            for end in (writer, far_writer):
                end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if writer not in self.dead:
                    writer.write(data)
        writer.close()


@pytest.mark.slow
def test_a_connection_that_dies_silently_is_noticed(federation: Federation) -> None:
    async def story() -> None:
        asked = 0
        arrived, never = asyncio.Event(), asyncio.Event()

        async def first_lost(caller: Caller, kind: str, header: Any, body: Any) -> Answer:
            nonlocal asked
            asked += 1
            arrived.set()
            if asked == 1:
                await never.wait()
            return {"asked": asked}, None

        limits = Limits(keepalive_seconds=1)
        async with serving(federation, first_lost, limits) as (address, _):
            cable = Cable(address)
            async with await asyncio.start_server(cable.connect, "127.0.0.1", 0) as proxy:
                end = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
                async with peer(federation, end, limits) as caller:
                    call = asyncio.create_task(caller.call("wait", {}, timeout=50))
                    await arrived.wait()
                    cable.dead.update(cable.ends)
                    assert (await call).header["asked"] >= 2

    run(story())


def test_a_failing_handler_tells_the_log_and_not_the_caller(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(caller: Caller, kind: str, header: dict[str, Any], body: Any) -> Answer:
        raise ValueError("a secret")

    async def story() -> None:
        async with serving(federation, broken) as (address, _), peer(federation, address) as caller:
            assert "secret" not in await outage(caller, "echo", "failed to handle the message")

    run(story())
    assert "a secret" in caplog.text


def test_a_taken_port_is_a_mistake_and_not_shared(federation: Federation) -> None:
    async def story() -> None:
        async with serving(federation) as (address, _):
            with pytest.raises(InputError, match=f"cannot listen on {address}"):
                await Server().start(
                    address, federation.issue("edge/1"), federation.allow, echo, LIMITS
                )

    run(story())


def test_limits_are_checked() -> None:
    with pytest.raises(InputError, match=r"limits\.calls must be more than 0, got 0"):
        Limits(calls=0)
    with pytest.raises(InputError, match=r"limits\.bodies\['push'\] must be at least 0"):
        Limits(bodies={"push": -1})


CALL = """
import asyncio, sys
from sdfeel.live.trust.identity import Identity
from sdfeel.live.transport import Limits, Peer

async def main(address, directory):
    async with Peer(address, Identity.load(directory), "edge/0", Limits()) as peer:
        print((await peer.call("echo", {}, timeout=120)).header["caller"])

asyncio.run(main(*sys.argv[1:]))
"""


def test_another_process_can_call_and_prints_nothing_but_its_answer(
    federation: Federation, tmp_path: Path
) -> None:
    async def story() -> subprocess.CompletedProcess[str]:
        async with serving(federation) as (address, _):
            directory = str(federation.issue("client/9").directory)
            command = [sys.executable, "-c", CALL, address, directory]
            return await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=False
            )

    done = run(story())
    assert (done.stdout, done.stderr, done.returncode) == ("client/9\n", "", 0)


def test_a_name_without_an_address_is_looked_up_again_at_every_try(federation: Federation) -> None:
    """gRPC itself would wait longer and longer, up to two minutes."""

    async def story() -> None:
        identity = federation.issue("client/1")
        async with Peer("nobody..invalid:1", identity, "edge/0", LIMITS) as peer:
            call = asyncio.ensure_future(peer.call("echo", {}, timeout=200))
            await until(lambda: len(peer._lost) > 2 or call.done())
            assert not call.done()
            call.cancel()

    run(story())
