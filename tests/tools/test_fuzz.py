"""A short part of the long run: no decoder crashes, accepts what is wrong, or keeps memory."""

import asyncio
import contextlib
import gc
import json
import tracemalloc
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.seeds import number
from sdfeel.live.transport import Peer
from sdfeel.live.transport.envelope import Envelope, decode
from sdfeel.live.transport.errors import Refused, Rejected
from sdfeel.live.transport.tensors import Schema, digest, pack, unpack
from tests.examples import examples
from tests.live.parties import LIMITS, Federation, run, serving
from tests.tools.fuzz.__main__ import main
from tests.tools.fuzz.frames import attack_server
from tests.tools.fuzz.run import Found, attack, case
from tests.tools.fuzz.targets import Target, targets

TARGETS = {target.name: target for target in targets()}
COUNT = 2000
MEGABYTE = 1 << 20
quickly = examples(25)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_refused_or_right(name: str) -> None:
    assert attack(TARGETS[name], range(COUNT), seed=1).cases == COUNT


@pytest.mark.parametrize("name", TARGETS)
def test_good_input_is_accepted_so_the_attack_means_something(name: str) -> None:
    assert TARGETS[name].accepts(TARGETS[name].good[0])
    assert 0 < attack(TARGETS[name], range(COUNT), seed=1).accepted < COUNT


def test_refused_bodies_leave_no_memory_behind() -> None:
    """80 bodies of a megabyte, and a decoder that keeps what it has seen."""
    model = {"model": np.zeros(MEGABYTE // 4, np.float32)}
    schema, kept = Schema.of(model), []

    def clean(data: bytes) -> bool:
        with contextlib.suppress(Rejected):
            unpack(data, schema, digest(data))
        return False

    def hoarding(data: bytes) -> bool:
        kept.append(data)
        return clean(data)

    good = (pack(model), pack({"model": np.ones(MEGABYTE // 4, np.float32)}))
    assert left_behind(Target("clean", good, clean)) < 4 * MEGABYTE
    assert left_behind(Target("hoarding", good, hoarding)) > 24 * MEGABYTE


def left_behind(target: Target) -> int:
    """Bytes that Python still holds after 80 cases: what the system gives it is another matter."""
    gc.collect()
    tracemalloc.start()
    try:
        attack(target, range(80), seed=1)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_mistake_is_found_and_can_be_repeated() -> None:
    """The negative control: a decoder that believes the length that it is told."""

    def careless(data: bytes) -> bool:
        return data[int.from_bytes(data[:8], "little")] > 0

    target = Target("careless", (bytes([3, 0, 0, 0, 0, 0, 0, 0, 1]),), careless)
    with pytest.raises(Found, match=r"careless number (\d+) of seed 1: IndexError") as found:
        attack(target, range(1000), seed=1)
    index = int(str(found.value).split()[2])
    with pytest.raises(Found, match=f"careless number {index} of seed 1"):
        attack(target, [index], seed=1)


def test_a_decoder_that_skips_a_check_is_found() -> None:
    """The negative control of the forgery: without the check of values, NaN gets in."""
    forgery = TARGETS["forgery"]
    body = forgery.good[0]
    with pytest.raises(AssertionError, match="is not sound"):
        _accepts_anything(forgery, body[:-8] + b"\xff" * 8)


def _accepts_anything(target: Target, data: bytes) -> None:
    """Run the target's own judgement on input that the decoder would have refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.tools.fuzz.targets._passes", lambda *_: True)
        target.accepts(data)


def test_the_command_prints_a_table_and_names_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--count", "20", "--target", "name", "--seed", "3"]) == 0
    assert "name                  20" in capsys.readouterr().out
    broken = Target("broken", (b"x",), lambda data: bool(1 // 0))
    monkeypatch.setattr("tests.tools.fuzz.__main__.targets", lambda: (broken,))
    assert main(["--count", "5", "--first", "7", "--target", "broken"]) == 1
    assert "broken number 7 of seed 0: ZeroDivisionError" in capsys.readouterr().err


def test_a_case_is_a_function_of_seed_and_number() -> None:
    target = TARGETS["envelope"]
    assert case(target, 1, 5) == case(target, 1, 5) != case(target, 2, 5)
    assert len({case(target, 1, index) for index in range(100)}) > 90


@quickly
@given(st.binary(max_size=300))
def test_any_bytes_are_an_envelope_or_refused(data: bytes) -> None:
    with contextlib.suppress(Refused):
        assert decode(decode(data, 1000).encode(), 10_000) == decode(data, 1000)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@quickly
@given(st.text(max_size=70), st.dictionaries(st.text(), _JSON), _JSON)
def test_any_envelope_is_taken_as_it_is_or_refused(kind: str, header: object, size: object) -> None:
    with contextlib.suppress(Refused, ValueError):
        data = Envelope(kind, header, size).encode()  # type: ignore[arg-type]
        assert decode(data, 10**6) == Envelope(kind, header, size)  # type: ignore[arg-type]


@quickly
@given(st.binary(max_size=400), st.binary(max_size=100))
def test_any_bytes_are_rejected_as_tensors(header: bytes, data: bytes) -> None:
    schema = Schema((("model", (5,), np.dtype(np.float32)),))
    body = len(header).to_bytes(8, "little") + header + data
    with pytest.raises(Rejected):
        unpack(body, schema, digest(body))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("federation"))


def test_a_running_server_survives_damaged_calls() -> None:
    tally = attack_server(150, seed=1)
    assert tally.cases == 150
    assert 10 < tally.accepted < 140


def test_a_server_that_fails_on_a_damaged_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a decoder that lets its own errors out."""

    def careless(message: bytes, most: int) -> Envelope:
        record = json.loads(message)
        return Envelope(record["kind"], record["header"], record["size"])

    monkeypatch.setattr("sdfeel.live.transport.envelope.decode", careless)
    with pytest.raises(Found, match=r"frames number \d+ of seed 1: the server's log"):
        attack_server(150, seed=1)


def test_a_running_server_survives_garbage_on_its_port(federation: Federation) -> None:
    async def story() -> None:
        async with serving(federation) as (address, server):
            host, port = address.split(":")
            for index in range(50):
                random = Random(number(1, "garbage", index))
                hello = bytes.fromhex("16030100c8010000c40303")
                data = random.choice([b"", hello, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(data + random.randbytes(random.randint(1, 3000)))
                with contextlib.suppress(OSError):
                    await writer.drain()
                writer.transport.abort()
            assert server.counts["calls"] == 0
            await still_answers(federation, address)

    run(story())


async def still_answers(federation: Federation, address: str) -> None:
    async with Peer(address, federation.issue("client/0"), "edge/0", LIMITS) as peer:
        assert (await peer.call("echo", {}, b"still there", timeout=120)).body == b"still there"
