"""An operator orders all servers' rounds, and waits for no server that was left out."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import RunError
from sdfeel.deploy.records import Record, Records, read
from sdfeel.deploy.status import LISTS, NUMBERS, TEXTS, as_told
from sdfeel.live.edge.journal import RoundTally, line_of, notices
from sdfeel.live.protocol import Header, Link
from sdfeel.live.transport import Reply
from sdfeel.live.transport.errors import Refused, Unreachable
from tests.live import timeless
from tests.live.village import Answering

PATH = {0: [1], 1: [0, 2], 2: [1]}
RECORD: Record = {
    **dict.fromkeys(("server", "k", "number", "total", "bytes"), 1),
    **dict.fromkeys(("iterations", "ended", "first", "compute", "upload", "mix"), 0.5),
    **{key: [] for key in ("away", "guests", "mixed", "missing")},
    **{"steps": {"0": 5}, "versions": {"0": 1}, "figures": {}, "over": None},
}


@dataclass(frozen=True)
class Told:
    """A server that reports these rounds, and then ends or falls silent."""

    rounds: list[Record]
    ends: bool = True

    def answer(self, kind: str, header: Header) -> Reply:
        left = [record for record in self.rounds if record["k"] >= header["first"]]
        if not left and not self.ends:
            raise Unreachable("nobody there")
        return Reply({"over": self.ends}, json.dumps(left).encode())


def rounds(server: int, *ks: int, away: tuple[int, ...] = ()) -> list[Record]:
    return [{**RECORD, "server": server, "k": k, "away": list(away)} for k in ks]


def in_order(*servers: Told, epochs: Any = None) -> list[dict[int, int]]:
    links = {d: Link(f"edge-{d}", Answering(told.answer), "") for d, told in enumerate(servers)}
    records = Records(links, synchronous=True, neighbours=PATH, members=epochs)

    async def collected() -> list[dict[int, int]]:
        return [{d: each["k"] for d, each in found.items()} async for found in records.in_order()]

    return timeless.run(collected())


def test_a_round_is_over_when_all_have_finished_it() -> None:
    servers = [Told(rounds(d, 0, 1, 2)) for d in range(3)]
    assert in_order(*servers) == [{0: k, 1: k, 2: k} for k in range(3)]


def test_a_server_that_was_left_out_is_not_waited_for() -> None:
    first = [Told(rounds(0, 0, 1, 2)), Told(rounds(1, 0) + rounds(1, 1, 2, away=(2,)))]
    assert in_order(*first, Told(rounds(2, 0), ends=False)) == [
        {0: 0, 1: 0, 2: 0},
        {0: 1, 1: 1},
        {0: 2, 1: 2},
    ]


def test_a_server_that_comes_back_counts_from_its_first_common_round() -> None:
    first = [Told(rounds(0, *range(4))), Told(rounds(1, 0, 1, away=(2,)) + rounds(1, 2, 3))]
    assert in_order(*first, Told(rounds(2, 2, 3))) == [
        {0: 0, 1: 0},
        {0: 1, 1: 1},
        {0: 2, 1: 2, 2: 2},
        {0: 3, 1: 3, 2: 3},
    ]


def test_one_server_alone_goes_on_no_longer_than_the_others() -> None:
    """Else its model alone would be the federation's."""
    told = in_order(*(Told(rounds(d, 0, 1)) for d in (0, 1)), Told(rounds(2, *range(9))))
    assert told == [{0: k, 1: k, 2: k} for k in range(2)]


def test_one_server_alone_cannot_announce_an_epoch() -> None:
    """Without a file, the operator ignores it; if most servers report it, the file is missing."""
    false = [{**record, "epoch": 10**6} for record in rounds(2, 0, 1)]
    known = {0: [0, 1, 2], 1: [0, 1]}.get
    honest = [Told(rounds(d, 0, 1)) for d in (0, 1)]
    assert in_order(*honest, Told(false), epochs=known) == [{0: k, 1: k, 2: k} for k in (0, 1)]
    later = [Told([{**r, "epoch": 1} for r in each.rounds]) for each in honest]
    assert in_order(*later, Told(rounds(2, 0, 1)), epochs=known)[-1] == {0: 1, 1: 1}
    with pytest.raises(RunError, match="are in epoch 1, of which there is no file here"):
        in_order(*later, Told([]), epochs={0: [0, 1, 2]}.get)


def test_a_dead_server_behind_a_dead_one_is_not_waited_for() -> None:
    dead = [Told(rounds(d, 0), ends=False) for d in (1, 2)]
    alone = Told(rounds(0, 0) + rounds(0, 1, 2, away=(1,)))
    assert in_order(alone, *dead) == [{0: 0, 1: 0, 2: 0}, {0: 1}, {0: 2}]


def test_a_silent_server_is_waited_for_unless_another_reports_that_it_was_left_out() -> None:
    living = [Told(rounds(d, 0, 1)) for d in (0, 1)]
    links = dict(enumerate([*living, Told(rounds(2, 0), ends=False)]))
    records = Records(
        {d: Link(f"edge-{d}", Answering(told.answer), "") for d, told in links.items()}, True, PATH
    )

    async def collected() -> None:
        async for _ in records.in_order():
            pass

    with pytest.raises(TimeoutError):
        timeless.run(collected(), seconds=60)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
BROKEN = st.builds(
    lambda changed, lost: {key: v for key, v in {**RECORD, **changed}.items() if key not in lost},
    st.dictionaries(st.sampled_from([*RECORD, "elapsed", "epoch", "index", "lane"]), PLAIN),
    st.sets(st.sampled_from(list(RECORD)), max_size=2),
)


@given(st.lists(BROKEN, min_size=1, max_size=3) | PLAIN, st.booleans())
def test_whatever_a_server_reports_is_a_record_or_refused(told: object, in_step: bool) -> None:
    """What passes can be counted and told."""
    try:
        found = read(json.dumps(told).encode(), 1, (0, 1), in_step)
    except Refused:
        return
    tally = RoundTally(2)
    for before, record in pairwise([None, *found]):
        assert record is not None
        assert all(line.isprintable() for line in notices(before, record))
        assert tally.round({1: record}).number >= 1
        assert line_of(record).startswith("round ")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"[" * 10_000, b'[{"k": NaN}]', b"\xff"])
def test_what_is_no_report_at_all_is_refused(body: bytes) -> None:
    with pytest.raises(Refused, match="edge-1 reports what cannot be its rounds"):
        read(body, 1, (0, 1), in_step=True)


@given(st.dictionaries(st.sampled_from([*TEXTS, *NUMBERS, *LISTS, "name", "x"]), PLAIN))
def test_what_a_server_says_about_itself_can_be_shown(told: dict[str, Any]) -> None:
    shown = as_told(told)
    assert "name" not in shown
    assert all(str(shown[key]).isprintable() for key in shown.keys() & {*TEXTS, *LISTS})
    assert all(float(shown[key]) is not None for key in shown.keys() & {*NUMBERS})
    assert all(", ".join(shown[key]).isprintable() for key in shown.keys() & {*LISTS})


def test_no_server_steers_the_operators_terminal() -> None:
    told = {"last_error": "\x1b[2Jall is well\n", "absent": ["\x1b]0;x\x07"], "name": "edge-0"}
    assert as_told(told) == {"last_error": " [2Jall is well ", "absent": [" ]0;x "]}


def test_a_server_that_answers_at_once_that_it_has_nothing_is_not_asked_in_a_loop() -> None:
    asked = []

    def nothing(kind: str, header: Header) -> Reply:
        asked.append(kind)
        return Reply({"over": False}, b"[]")

    records = Records({0: Link("edge-0", Answering(nothing), "")}, True)

    async def collected() -> None:
        async for _ in records.in_order():
            pass

    with pytest.raises(TimeoutError):
        timeless.run(collected(), seconds=10)
    assert 50 < len(asked) < 200
