"""What a server does for a round grows with the number of its clients, and no faster."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.graphs import linked
from sdfeel.core.network import Network
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.edge.server import Edge
from sdfeel.live.protocol import Answer, Who
from sdfeel.live.store import Store
from sdfeel.live.transport.limits import Limits
from sdfeel.live.transport.tensors import digest
from sdfeel.schemes import SDFeel
from tests.live.village import LOCAL, RATES, SIZE, Village, network
from tests.waiting import completed

CLIENTS = 30
Seen = Counter[str]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """How often the work of a client was looked for, and how often the disk was written."""
    counts: Seen = Counter()

    def counted(kind: type[Any], name: str) -> None:
        made = getattr(kind, name)

        def call(*given: Any, **named: Any) -> Any:
            counts[name] += 1
            return made(*given, **named)

        monkeypatch.setattr(kind, name, call)

    counted(Store, "commit")
    counted(Cluster, "handed_out")
    return counts


def served(directory: Path, story: Callable[[Edge], Awaitable[None]]) -> None:
    """One server of many clients, in the first of two rounds."""
    net = Network(np.full(CLIENTS, 10), ((0,),) * CLIENTS, linked("ring", 1))
    scheme, cost = SDFeel(tau1=1), Cost(np.ones(CLIENTS), 32.0 * SIZE, RATES)
    federation = replace(
        Village(scheme, network(), directory, iterations=2).federation,
        decisions=Decisions.of(scheme, net, cost, 7, LOCAL),
    )

    async def run() -> None:
        store = Store(directory / "state")
        edge = Edge(federation, 0, store, {})
        rounds = asyncio.ensure_future(edge.run())
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(60):  # a mistake must not hang
                await story(edge)
        finally:
            rounds.cancel()
            await asyncio.gather(rounds, return_exceptions=True)
            store.close()

    completed(run())


def asked(edge: Edge, client: int) -> Awaitable[Answer]:
    header = {"federation": "f" * 64, "samples": 10, "taken": 0, "wait": 20}
    return edge.handle(Who("client", client), "work", header, None)


def handed_in(edge: Edge, client: int, work: Answer) -> Awaitable[Answer]:
    header, body = work
    assert body is not None
    told = {"round": header["round"], "steps": header["steps"], "sha256": digest(body)}
    told |= {"federation": "f" * 64, "seconds": 0.1}
    return edge.handle(Who("client", client), "result", told, body)


def test_results_that_come_together_share_a_commit(tmp_path: Path, seen: Seen) -> None:
    async def story(edge: Edge) -> None:
        work = await asyncio.gather(*(asked(edge, n) for n in range(CLIENTS)))
        before = seen["commit"]
        answers = await asyncio.gather(*(handed_in(edge, n, work[n]) for n in range(CLIENTS)))
        assert all(header == {"kept": True} for header, _ in answers)
        assert seen["commit"] - before <= 2  # of the results, and perhaps the round's own
        assert len(edge.store.notes("result", 0)) in (0, CLIENTS)  # 0: the next round is open

    served(tmp_path, story)


def test_waiting_clients_wake_when_there_is_work(tmp_path: Path, seen: Seen) -> None:
    async def story(edge: Edge) -> None:
        work = await asyncio.gather(*(asked(edge, n) for n in range(CLIENTS)))
        before = seen["handed_out"]
        ahead = []
        for n in range(CLIENTS):  # one after another, each waits for the next round at once
            await handed_in(edge, n, work[n])
            ahead.append(asyncio.ensure_future(asked(edge, n)))
            await asyncio.sleep(0)
        assert {header["round"] for header, _ in await asyncio.gather(*ahead)} == {1}
        assert seen["handed_out"] - before <= 4 * CLIENTS

    served(tmp_path, story)


def test_a_caller_that_goes_away_does_not_take_the_others_results_along(
    tmp_path: Path, seen: Seen
) -> None:
    async def story(edge: Edge) -> None:
        work = await asyncio.gather(*(asked(edge, n) for n in range(CLIENTS)))
        calls = [asyncio.ensure_future(handed_in(edge, n, work[n])) for n in range(CLIENTS - 1)]
        await asyncio.sleep(0)
        calls[0].cancel()  # the one that writes for all
        rest = await asyncio.gather(*calls[1:])
        assert all(header == {"kept": True} for header, _ in rest)
        assert len(edge.store.notes("result", 0)) == CLIENTS - 1

    served(tmp_path, story)


def test_limits_have_room_for_everyone_twice() -> None:
    assert Limits().with_room_for(10) == Limits()
    grown = Limits().with_room_for(1000)
    assert grown.connections // 2 >= 2 * 1000
    assert grown.fresh_per_address >= 1000
    assert grown.first_call_seconds > Limits().first_call_seconds
    assert grown.calls >= 1000
