"""Clients of a dead server work for a neighbour of it, with their weight, where that is allowed."""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.mixing import gossip
from sdfeel.core.network import Network
from sdfeel.core.scheme import View
from sdfeel.core.sparse import Sparse
from sdfeel.core.staleness import Clocks
from sdfeel.live.edge.policy import Policy
from sdfeel.live.failover import refuges_of
from sdfeel.live.federation import Turn, grown, heavier, joined, without
from sdfeel.live.protocol import Who
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import Refused
from sdfeel.schemes import AsyncSDFeel, SDFeel
from tests.live import timeless
from tests.live.village import PATH, RING, Village, network

DROP = Policy(dead_edge="drop", edge_deadline=0.5, client_deadline=1.0)


def records(directory: Path, server: int) -> list[dict[str, Any]]:
    store = Store(directory / f"edge-{server}")
    found = store.records()
    store.close()
    return found


@pytest.mark.parametrize(
    "scheme", [SDFeel(tau1=2, alpha=2), AsyncSDFeel(theta_min=2, staleness="hearsay")]
)
def test_clients_of_a_dead_server_move_to_its_neighbour(scheme: Any, tmp_path: Path) -> None:
    village = Village(scheme, network(), tmp_path, 14, DROP, away={"edge-2"}, moving=True)
    assert torch.isfinite(village.go()).all()
    found = records(tmp_path, 1)
    assert found[0]["guests"] == []  # first it must be given up
    assert found[-1]["away"] == [2]
    assert found[-1]["guests"] == [4, 5]
    assert set(found[-1]["steps"]) == {"2", "3", "4", "5"}
    assert all(record["guests"] == [] for record in records(tmp_path, 0))  # not a neighbour of it


def test_a_server_that_waits_for_another_one_is_not_given_up_for_that(tmp_path: Path) -> None:
    """Server 1 is late because of server 2, and server 0 finds out, though it is less patient."""
    hasty = Policy(dead_edge="drop", edge_deadline=0.2)
    village = Village(SDFeel(tau1=2, alpha=2), network(), tmp_path, 6, DROP, away={"edge-2"})
    village.policies = {0: hasty}
    village.go()
    assert [record["away"] for record in records(tmp_path, 1)] == [[2]] * 3
    assert [record["away"] for record in records(tmp_path, 0)] == [[]] * 3


def test_nobody_moves_where_servers_are_waited_for(tmp_path: Path) -> None:
    village = Village(SDFeel(tau1=2, tau2=9), network(), tmp_path, 8, away={"edge-2"}, moving=True)
    village.go()
    assert all(record["guests"] == [] for record in records(tmp_path, 1))


def test_a_guest_goes_home_when_its_server_is_back(tmp_path: Path) -> None:
    village = Village(SDFeel(tau1=2), network(), tmp_path, 400, DROP, away={"edge-2"}, moving=True)

    async def story() -> None:
        def has(server: int, wanted: Callable[[dict[str, Any]], bool]) -> bool:
            edge = village.edges.get(server)
            return edge is not None and any(wanted(r) for r in edge.store.records()[-1:])

        async def until(server: int, wanted: Callable[[dict[str, Any]], bool]) -> None:
            while not has(server, wanted):  # noqa: ASYNC110  (the store has no event)
                await asyncio.sleep(0.01)

        others = asyncio.ensure_future(village.run())
        await until(1, lambda record: record["guests"] == [4, 5])
        village.start(2)
        await until(2, lambda record: set(record["steps"]) == {"4", "5"} and not record["away"])
        await until(1, lambda record: not record["guests"] and not record["away"])
        for d in (0, 1, 2):
            village.crash(d)
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)

    timeless.run(story())


@pytest.mark.parametrize("seed", [8])
def test_servers_that_were_apart_leap_over_no_round_that_nobody_else_did(
    seed: int, tmp_path: Path
) -> None:
    """Messages of some servers are lost for a while, and the clusters have paces of their own.

    Whoever is behind then leaps once to where the others are, and they wait for it there. Of two
    servers that both leap, each would find the other ahead again.
    """
    draw = random.Random(seed)
    pace = [draw.uniform(0.0, 0.03) for _ in range(3)]
    span = draw.uniform(0.6, 3.0)
    mute = set(draw.sample(["edge-0", "edge-1", "edge-2"], draw.choice([1, 2, 3])))
    policy = Policy(dead_edge="drop", edge_deadline=0.3)
    links = RING if seed % 2 else PATH
    village = _Paced(SDFeel(tau1=2), network(links), tmp_path, 300, policy)
    village.pace = pace

    def disturb(caller: str, kind: str) -> str:
        now = asyncio.get_running_loop().time() - village.began
        return "cut" if caller in mute and 0.5 < now < 0.5 + span else "deliver"

    village.disturb = disturb
    village.go()
    rounds = [[record["k"] for record in records(tmp_path, d)] for d in range(3)]
    assert [done[-1] for done in rounds] == [149] * 3
    assert all(records(tmp_path, d)[-1]["away"] == [] for d in range(3))
    skipped = [set(range(150)).difference(done) for done in rounds]
    assert any(not each for each in skipped)  # somebody did every round
    leaps = [sum(b > a + 1 for a, b in pairwise(done)) for done in rounds]
    assert max(leaps) in (1, 2)  # that there was one is the point of the test


class _Paced(Village):
    """A village whose clients are slower at some servers than at others."""

    pace: Sequence[float] = (0.0, 0.0, 0.0)
    began: float = 0.0

    async def run(self) -> torch.Tensor:
        self.began = asyncio.get_running_loop().time()
        return await super().run()

    async def deliver(
        self, who: Who, target: int, kind: str, header: Any, body: bytes | None
    ) -> Any:
        if who.role == "client":
            await asyncio.sleep(self.pace[target])
        return await super().deliver(who, target, kind, header, body)


def test_a_guest_counts_by_its_examples(tmp_path: Path) -> None:
    net = network()
    seen = joined(net, 1, (4, 5))
    assert joined(net, 1, ()) is net
    row = SDFeel().mix(_view(seen), np.zeros(6, dtype=np.int64)).up.row(1)
    samples = net.samples[[2, 3, 4, 5]]
    assert row == pytest.approx(dict(zip([2, 3, 4, 5], samples / samples.sum(), strict=True)))
    across = [SDFeel().mix(_view(n), np.zeros(6, dtype=np.int64)).exchange for n in (net, seen)]
    assert across[0] is not None
    assert across[1] is not None
    np.testing.assert_array_equal(across[0].dense(3), across[1].dense(3))


def _view(net: Network) -> View:
    return View(net, (0, 1, 2), 0, Clocks.fresh(3), np.ones(6))


@given(
    st.lists(st.integers(1, 90), min_size=6, max_size=6),
    st.sampled_from([PATH.tolist(), RING.tolist()]),
    st.sampled_from([(), (0,), (0, 1)]),
)
def test_mixing_keeps_the_mean_weighted_by_the_clusters_as_they_are_now(
    samples: list[int], links: list[list[int]], guests: tuple[int, ...]
) -> None:
    """Server 0 is dead; its clients 0 and 1 may be with server 1."""
    net = Network(np.array(samples, dtype=float), network().reach, Sparse.of(links))
    rest = (1, 2)
    weights = np.zeros((2, 2))
    for d in rest:
        mine = guests if d == 1 else ()
        left = without(net, gossip(net, 1), d, [0] if net.links[d, 0] else [])
        left = heavier(left, d, grown(net, d, ()) / grown(net, d, mine))
        row = left.row(d) if d in left.rows else {d: 1.0}
        weights[d - 1] = [row.get(s, 0.0) for s in rest]
    mass = np.array([grown(net, 1, guests), grown(net, 2, ())])
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_allclose(mass @ weights, mass)


def test_a_client_turns_to_the_neighbours_of_its_server_in_their_order() -> None:
    assert refuges_of(network(), 2) == [0, 2]
    assert refuges_of(network(), 5) == [1]
    assert refuges_of(network(overlap=True), 1) == []  # it has another server of its own


@pytest.mark.parametrize(
    ("client", "policy", "told"),
    [
        (4, DROP, "client-4 does not belong to edge-0"),  # not a neighbour
        (2, Policy(), 'takes in no guests: that needs dead_edge = "drop"'),
    ],
)
def test_a_server_takes_in_only_clients_of_its_neighbours_and_only_if_allowed(
    client: int, policy: Policy, told: str, tmp_path: Path
) -> None:
    village = Village(SDFeel(), network(), tmp_path, policy=policy)

    async def story() -> None:
        village.start(0)
        samples = int(network().samples[client])
        header = {"samples": samples, "taken": 0, "federation": "f" * 64}
        try:
            await village.edges[0].handle(Who("client", client), "work", header, None)
        finally:
            village.crash(0)

    with pytest.raises(Refused, match=told):
        timeless.run(story())


def test_a_client_of_a_living_server_is_not_taken_in_however_often_it_asks(
    tmp_path: Path,
) -> None:
    village = Village(SDFeel(tau1=2), network(), tmp_path, 10, DROP)

    async def visit() -> None:
        header = {"samples": 20, "taken": 0, "wait": 20.0, "federation": "f" * 64}
        while True:
            if 0 in village.edges:
                await village.edges[0].handle(Who("client", 2), "work", header, None)
            await asyncio.sleep(0.01)

    async def story() -> None:
        visitor = asyncio.ensure_future(visit())
        await village.run()
        visitor.cancel()

    timeless.run(story())
    assert [record["guests"] for record in records(tmp_path, 0)] == [[]] * 5


def test_a_guest_gets_no_work_while_its_own_server_lives(tmp_path: Path) -> None:
    """Server 0 has not given up server 1, so server 1's client asks in vain, however often."""
    village = Village(SDFeel(tau1=2), network(), tmp_path, 4, DROP)
    answers: list[Any] = []

    async def visit() -> None:
        edge, who = village.edges[0], Who("client", 2)
        header = {"samples": 20, "taken": 0, "wait": 0.0, "federation": "f" * 64}
        edge.cluster.over, edge.cluster.turn = False, Turn.of(village.federation, 0, 9, {})
        answers.append(await edge.handle(who, "work", header, None))
        told = {"round": 9, "steps": 2, "sha256": "", "federation": "f" * 64}
        with pytest.raises(Refused, match="has no work in round 10 of edge-0"):
            await edge.handle(who, "result", told, b"")

    village.at_the_end = visit
    village.go()
    assert answers == [({"idle": True}, None)]
