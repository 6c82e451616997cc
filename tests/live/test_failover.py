"""Where a client turns to when its server is dead, and when it goes home."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from sdfeel.live.failover import Failover
from sdfeel.live.protocol import Header, Link
from sdfeel.live.transport import Reply
from sdfeel.live.transport.errors import NotTrusted, Refused, Unreachable
from tests.live import timeless
from tests.live.village import Answering

QUESTION: Header = {"samples": 1, "wait": 0.05, "taken": 0}
WORK: Header = {"round": 4}


@dataclass
class House:
    """A server that answers everything with this, or does not answer at all."""

    work: Header | Exception
    asked: list[str] = field(default_factory=list)
    here: Exception | None = None

    def answer(self, kind: str, header: Header) -> Reply:
        self.asked.append("leaving" if header.get("leaving") else kind)
        answer = self.here if kind == "here" and self.here else self.work
        if isinstance(answer, Exception):
            raise answer
        return Reply(answer, None)


def dead() -> House:
    return House(Unreachable("nobody there"), here=Unreachable("nobody there"))


def failover(home: House, *others: House) -> Failover:
    links = [
        Link(f"edge-{d}", Answering(house.answer), "") for d, house in enumerate((home, *others))
    ]
    return Failover({0: links[0]}, dict(enumerate(links[1:], start=1)), doubt=0.02)


async def answers(where: Failover, times: int = 2) -> list[dict[int, Header]]:
    """What is heard in so many turns."""
    heard = [await where.work([0], QUESTION) for _ in range(times)]
    return [{d: header for d, (header, _) in found.items()} for found in heard]


def run(work: Any) -> Any:
    return timeless.run(work)


def test_a_living_server_is_never_left() -> None:
    home, other = House(WORK), House(WORK)
    assert run(answers(failover(home, other))) == [{0: WORK}, {0: WORK}]
    assert other.asked == []


def test_the_first_living_neighbour_is_asked() -> None:
    houses = [dead(), House(WORK), House(WORK)]
    assert run(answers(failover(dead(), *houses))) == [{}, {2: WORK}]
    assert houses[2].asked == []


def test_a_neighbour_that_refuses_or_cannot_be_trusted_is_passed_over() -> None:
    closed = House(Refused("nobody is taken in"), here=None)
    closed.here = NotTrusted("another authority")
    assert run(answers(failover(dead(), closed, House(WORK)))) == [{}, {2: WORK}]
    refusing = House({}, here=None)

    async def story() -> list[dict[int, Header]]:
        where = failover(dead(), refusing, House(WORK))
        await where.work([0], QUESTION)
        refusing.work = Refused("nobody is taken in")
        return await answers(where, 3)

    assert run(story()) == [{}, {}, {2: WORK}]


def test_without_others_a_client_waits_for_its_server() -> None:
    home = dead()

    async def story() -> Any:
        asked = asyncio.ensure_future(failover(home).work([0], QUESTION))
        await asyncio.sleep(0.1)
        home.work = WORK
        return {d: header for d, (header, _) in (await asked).items()}

    assert run(story()) == {0: WORK}


def test_a_guest_goes_home_and_says_goodbye_as_soon_as_its_server_answers() -> None:
    home, other = dead(), House(WORK)

    async def story() -> list[dict[int, Header]]:
        where = failover(home, other)
        first = await answers(where)
        home.work, home.here = {"round": 9}, None
        while where.host is not None:
            await where.work([0], QUESTION)
            await asyncio.sleep(0.01)
        return [*first, *await answers(where, 1)]

    assert run(story()) == [{}, {1: WORK}, {0: {"round": 9}}]
    assert other.asked[-1] == "leaving"


def test_a_guest_whose_host_is_done_looks_once_more_whether_it_is_needed_at_home() -> None:
    home, other = dead(), House({"over": True})
    assert run(answers(failover(home, other))) == [{}, {1: {"over": True}}]
    home = dead()

    async def story() -> list[dict[int, Header]]:
        where = failover(home, other)
        await where.work([0], QUESTION)
        home.work, home.here = WORK, None
        return await answers(where)

    assert run(story()) == [{}, {0: WORK}]
