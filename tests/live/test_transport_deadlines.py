"""A call's deadline grows with its body: a slow link is not an outage."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from sdfeel.live.transport import Peer
from sdfeel.live.transport.errors import Unreachable
from sdfeel.live.transport.limits import CHUNK, Limits, for_both
from tests.live.parties import LIMITS, Federation, run, serving

PIECE, PAUSE = 1 << 16, 0.02  # bytes and seconds: about 3 MB per second
BODY = bytes(2 * CHUNK)
IMPATIENT = 0.2  # seconds, of both sides: the body alone takes several times as long
SLOWER = (1, 5, 25)  # of link and patience alike, where the machine itself is the slowest link


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    root: Path = tmp_path_factory.mktemp("deadlines")
    return Federation.create(root)


@asynccontextmanager
async def slow_link(address: str, most: float, slower: int) -> AsyncIterator[str]:
    """Another address of the same server, over a link that carries little, and breaks at `most`."""
    host, port = address.split(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carried = 0
        try:
            while carried < most and (data := await reader.read(PIECE)):
                carried += len(data)
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(slower * PAUSE * len(data) / PIECE)
        except OSError:
            pass  # one end hung up
        finally:
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        try:
            with suppress(asyncio.CancelledError):  # the test is over
                await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
        finally:
            for end in (writer, far_writer):
                end.close()

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as relay:
        yield f"127.0.0.1:{relay.sockets[0].getsockname()[1]}"


async def sent_there_and_back(
    federation: Federation, limits: Limits, most: float = inf, slower: int = 1
) -> bytes | None:
    me = federation.issue("client/1")
    async with (
        serving(federation, limits=limits) as (address, _),
        slow_link(address, most, slower) as slow,
        Peer(slow, me, "edge/0", limits) as peer,
    ):
        await peer.call("echo", {}, timeout=120)  # the handshake is not what is tried here
        return (await peer.call("echo", {}, BODY, timeout=slower * IMPATIENT)).body


def test_a_body_may_take_as_long_as_its_size_on_a_slow_link(federation: Federation) -> None:
    for slower in SLOWER:
        patient = replace(LIMITS, call_seconds=slower * IMPATIENT, chunk_seconds=60.0)
        with suppress(Unreachable):
            assert run(sent_there_and_back(federation, patient, slower=slower)) == BODY
            return
    pytest.fail("the body never arrived")


def test_a_link_below_the_slowest_tolerated_rate_is_an_outage(federation: Federation) -> None:
    hasty = replace(LIMITS, chunk_seconds=0.01)
    with pytest.raises(Unreachable, match=r"no answer from .*edge/0 at .* within 0\.2 s"):
        run(sent_there_and_back(federation, hasty))


def test_a_link_that_breaks_while_a_body_is_sent_is_an_outage(federation: Federation) -> None:
    with pytest.raises(Unreachable, match=r"no answer from .*edge/0 at .* within 0\.2 s"):
        run(sent_there_and_back(federation, LIMITS, most=CHUNK))


@pytest.mark.parametrize(("body", "seconds"), [(0, 5), (CHUNK // 12, 10), (25_000_000, 65)])
def test_a_ping_may_wait_behind_what_is_buffered_of_a_body(body: int, seconds: float) -> None:
    options = dict(for_both(Limits(bodies={"model": body})))
    assert options["grpc.keepalive_timeout_ms"] == pytest.approx(1000 * seconds, rel=1e-3)
    assert options["grpc.http2.ping_timeout_ms"] > options["grpc.keepalive_timeout_ms"]


def test_a_25_mb_model_has_time_at_140_kbit_per_second() -> None:
    limits = Limits()
    assert limits.transfer_seconds(25_000_000) == pytest.approx(25_000_000 * 8 / 139_810, rel=1e-3)
    assert limits.transfer_seconds(0) == 0
    assert limits.transfer_seconds(CHUNK) == limits.chunk_seconds
