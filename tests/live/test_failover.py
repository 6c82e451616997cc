"""To which server a client turns when its own is dead, and when it returns."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from sdfeel.core.errors import Diverged
from sdfeel.live.client import Client
from sdfeel.live.failover import Failover
from sdfeel.live.protocol import Header, Link
from sdfeel.live.transport import Reply
from sdfeel.live.transport.errors import NotTrusted, Refused, Unreachable
from sdfeel.live.transport.tensors import MODEL, Schema, digest, pack
from tests.live import timeless
from tests.live.village import Answering

QUESTION: Header = {"samples": 1, "wait": 0.05, "taken": 0}
WORK: Header = {"round": 4}


@dataclass
class House:
    """A server that gives the same answer to everything, or none."""

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
    """The answers in this many attempts."""
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


START = np.zeros(3, dtype=np.float32)
BODY = pack({MODEL: START})
LONG = 1000  # steps, which take 10 s
OFFER: Header = {
    **{"round": 0, "steps": 1, "first": 0, "rate": 1.0, "sha256": digest(BODY)},
    **{"sources": [0], "weights": [1.0]},
}
LIES: dict[str, Header | Exception] = {
    "idle": {"idle": True},
    "an epoch": {"epoch": 9},
    "nonsense": {**OFFER, "round": "many"},
    "another model": {**OFFER, "sha256": "0" * 64},
    "endless work": {**OFFER, "steps": LONG + 1},
    "long work": {**OFFER, "steps": LONG},
    "the same again": OFFER,
    "refusals": Refused("no"),
    "distrust": NotTrusted("another authority"),
    "silence": OFFER,
    "a shift of nothing": {**OFFER, "shift": [[[], 1.0]]},
    "rows that nobody sent": {**OFFER, "rows": [1]},
    "the same model a thousand times": {
        **OFFER,
        "sources": [0] * 1000,
        "weights": [0.001] * 1000,
    },
    "work that diverges": {**OFFER, "rate": 1e30},
}


def trained(task: Any) -> Any:
    if task.rate > 1e9:
        raise Diverged("the model is not finite")
    return START


@dataclass
class OneOfTwo:
    """One of a client's two servers: an honest one, or one that answers whatever it likes."""

    number: int
    mischief: str
    kept: int = 0

    async def call(
        self,
        kind: str,
        header: Header,
        body: bytes | None = None,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> Reply:
        liar = self.number == 0
        await asyncio.sleep(0.001 if liar else 0.02)  # it is the nearer one
        if liar and kind == "result" and self.mischief == "silence":
            await asyncio.sleep(timeout)
            raise Unreachable("no answer in time")
        if kind == "result":
            self.kept += 1
            return Reply({"kept": True}, None)
        if kind == "start":
            return Reply({"sha256": digest(BODY)}, BODY)
        if liar:
            told = LIES[self.mischief]
            if isinstance(told, Exception):
                raise told
            return Reply(told, BODY)
        both = {"sources": [0, 1], "weights": [0.5, 0.5]} if self.mischief == "silence" else {}
        return Reply({**OFFER, "round": self.kept, "sources": [1], **both}, BODY)


@pytest.mark.parametrize("mischief", LIES)
def test_one_of_several_servers_cannot_keep_a_client_from_the_others(mischief: str) -> None:
    """Whatever it answers, it gets hardly more than half of the client's time."""
    servers = {d: OneOfTwo(d, mischief) for d in range(2)}
    links = {d: Link(f"edge-{d}", each, "") for d, each in servers.items()}
    life = 300.0 if mischief == "silence" else 40.0
    spent = [0.0]  # on work of the liar's alone

    async def story() -> None:
        clock = asyncio.get_running_loop().time
        client = Client(Schema.of({MODEL: START}), 0, 1, Failover(links), trained)
        client.most, end = LONG, clock() + life
        real = client._work

        async def work(k: int, header: Header, bodies: dict[int, bytes]) -> set[int]:
            alone, begin = 1 not in bodies, clock()
            await asyncio.sleep(0.01 * header["steps"])  # it trains
            served = await real(k, header, bodies)
            spent[0] += alone * (clock() - begin)
            return served

        client._work = work  # type: ignore[method-assign]
        while end - clock() > 0.001:
            with suppress(TimeoutError):
                await asyncio.wait_for(client.run(), end - clock())
            if client.outdated is not None:  # as `proven` does
                client.disbelieve(client.outdated, "it has no proof")

    run(story())
    assert spent[0] < 0.6 * life, spent
    assert servers[1].kept > (1 if mischief == "silence" else 20), servers


@dataclass
class Neighbour:
    """A host that answers whatever it likes, or a dead server that comes back later."""

    mischief: str
    back: float = 0.0  # when it answers; before, it is dead
    kept: int = 0

    async def call(
        self,
        kind: str,
        header: Header,
        body: bytes | None = None,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> Reply:
        await asyncio.sleep(0.01)
        if asyncio.get_running_loop().time() < self.back:
            raise Unreachable("nobody there")
        if kind == "here":
            return Reply({"round": 3, "over": False}, None)
        if self.mischief == "none":
            self.kept += kind == "result"
            return Reply(
                {"kept": True} if kind == "result" else {**OFFER, "round": self.kept}, BODY
            )
        lie = GUESTS_LIES[self.mischief]
        if kind == "result" and self.mischief == "silence":
            await asyncio.sleep(timeout)
            raise Unreachable("no answer in time")
        if kind == "result" and self.mischief == "distrust later":
            raise NotTrusted("another authority")
        if isinstance(lie, Exception):
            raise lie
        return Reply({**lie, "sources": [1]} if lie.get("sources") == [0] else lie, BODY)


GUESTS_LIES: dict[str, Header | Exception] = {
    **LIES,
    "the end": {"over": True},
    "models of others": {**OFFER, "sources": [1, 2], "weights": [0.5, 0.5]},
    "distrust later": OFFER,
}


@pytest.mark.parametrize("mischief", GUESTS_LIES)
def test_a_host_cannot_keep_a_guest_from_its_own_server(mischief: str) -> None:
    """Whatever the host answers, the guest works for its own server once that is back."""
    home, host = Neighbour("none", back=timeless.BEGIN + 8.0), Neighbour(mischief)
    witness = Neighbour("idle")  # of the rounds, which continue
    servers = dict(enumerate((home, host, witness)))
    links = {d: Link(f"edge-{d}", each, "") for d, each in servers.items()}

    async def story() -> None:
        ways = Failover({0: links.pop(0)}, links)
        client = Client(Schema.of({MODEL: START}), 0, 1, ways, trained)
        client.most = LONG
        real = client._work

        async def work(k: int, header: Header, bodies: dict[int, bytes]) -> set[int]:
            await asyncio.sleep(0.01 * header["steps"])  # it trains
            return await real(k, header, bodies)

        client._work = work  # type: ignore[method-assign]

        async def life() -> None:
            while True:
                await client.run()
                assert client.outdated is not None, "the client has ended"
                client.disbelieve(client.outdated, "it has no proof")  # as `proven` does
                await asyncio.sleep(1.0)

        with suppress(TimeoutError):
            await asyncio.wait_for(life(), 24.0)

    run(story())
    assert home.kept > 20, servers
