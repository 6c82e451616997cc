"""An operator puts the rounds of all servers in order, and waits for nobody who was left out."""

import json
from dataclasses import dataclass

import pytest

from sdfeel.deploy.records import Record, Records
from sdfeel.live.protocol import Header, Link
from sdfeel.live.transport import Reply
from sdfeel.live.transport.errors import Unreachable
from tests.live import timeless
from tests.live.village import Answering

PATH = {0: [1], 1: [0, 2], 2: [1]}


@dataclass(frozen=True)
class Told:
    """A server that tells these rounds, and then ends or falls silent."""

    rounds: list[Record]
    ends: bool = True

    def answer(self, kind: str, header: Header) -> Reply:
        left = [record for record in self.rounds if record["k"] >= header["first"]]
        if not left and not self.ends:
            raise Unreachable("nobody there")
        return Reply({"over": self.ends}, json.dumps(left).encode())


def rounds(server: int, *ks: int, away: tuple[int, ...] = ()) -> list[Record]:
    return [{"server": server, "k": k, "away": list(away), "guests": []} for k in ks]


def in_order(*servers: Told) -> list[dict[int, int]]:
    links = {d: Link(f"edge-{d}", Answering(told.answer), "") for d, told in enumerate(servers)}
    records = Records(links, synchronous=True, neighbours=PATH)

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


def test_a_dead_server_behind_a_dead_one_is_not_waited_for() -> None:
    dead = [Told(rounds(d, 0), ends=False) for d in (1, 2)]
    alone = Told(rounds(0, 0) + rounds(0, 1, 2, away=(1,)))
    assert in_order(alone, *dead) == [{0: 0, 1: 0, 2: 0}, {0: 1}, {0: 2}]


def test_without_a_word_that_it_was_left_out_a_silent_server_is_waited_for() -> None:
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
