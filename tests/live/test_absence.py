"""A simulated outage predicts a deployed one: one rule for absent servers, to the last bit."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sdfeel.core.decide import Decisions
from sdfeel.core.network import Network
from sdfeel.core.outages import NetworkState, Outages, schedule
from sdfeel.core.rules import Clipped, Median
from sdfeel.core.scheme import Scheme
from sdfeel.core.sparse import Sparse
from sdfeel.engine.base import Task
from sdfeel.engine.messages import Compress, Packing, Uniform
from sdfeel.live.edge.policy import Policy
from sdfeel.schemes import (
    FedCS,
    FogFL,
    HierFavg,
    JointScheduling,
    MultiLevelSGD,
    SDFeel,
)
from sdfeel.sim.simulate import Simulation
from tests.live import timeless
from tests.live.parties import until
from tests.live.village import COST, LOCAL, PATH, RING, SIZE, NoisyEngine, Village, network
from tests.sim.variants import Momentum, Robust

DROP = Policy(dead_edge="drop")


SCHEMES: dict[str, tuple[Scheme, int]] = {
    "sd-feel": (SDFeel(tau1=2), 2),
    "several hops": (SDFeel(tau1=2, tau2=2, alpha=3), 2),
    "hierfavg": (HierFavg(tau1=2, tau2=1), 2),
    "fogfl": (FogFL(tau1=2), 2),
    "fedcs": (FedCS(tau1=2, alpha=2), 2),
    "joint": (JointScheduling(tau1=2, divergence=0.05), 2),
    "multi-level": (MultiLevelSGD(tau1=3, tau2=1), 3),
    "median of clients": (Robust(SDFeel(tau1=2), up=Median()), 2),
    "clipped gossip": (Robust(SDFeel(tau1=2), across=Clipped(0.1)), 2),
    "momentum": (Momentum(SDFeel(tau1=2)), 2),
}
PACKING = Packing((SIZE,), 7, (Compress(Uniform(width=6)),))


@pytest.mark.parametrize("links", [PATH, RING], ids=["path", "ring"])
@pytest.mark.parametrize("name", SCHEMES)
def test_servers_go_on_without_one_as_they_do_in_a_simulation(
    name: str, links: Any, tmp_path: Path
) -> None:
    scheme, steps = SCHEMES[name]
    net, packing = network(links), None if "hops" not in name else PACKING
    away = {"edge-2", "client-4", "client-5"}
    village = Village(
        *(scheme, net, tmp_path, 4 * steps, DROP), away=away, given_up={2}, packing=packing
    )
    village.go()
    how = Outages(schedule("round 0 server 2 down", "f"))
    engine = NoisyEngine(6)
    decisions = Decisions.of(scheme, net, COST, engine.seed, LOCAL, outages=how)
    simulation = Simulation(decisions, engine, packing=packing)
    assert village.ended[0].known.k > 1
    for _ in range(village.ended[0].known.k):
        next(simulation)
    for d in (0, 1):
        assert torch.equal(village.models[d], simulation.state.servers[d])


class Recorded(Outages):
    """Who took part in each round of a deployed run, by its servers' own records."""

    def __init__(self, records: dict[int, dict[int, Any]]) -> None:
        super().__init__()
        object.__setattr__(self, "records", records)

    def at(self, net: Network, number: int, seconds: float, moving: bool = False) -> NetworkState:
        records: dict[int, dict[int, Any]] = self.records  # type: ignore[attr-defined]
        links, up = np.array(net.links), [number in records[d] for d in net.servers]
        for d in net.servers:
            away = records[d][number]["away"] if up[d] else net.servers
            links[d, list(away)] = 0
        reach = tuple(tuple(d for d in own if up[d]) for own in net.reach)
        there = Network(net.samples, reach, net.linked, net.shares, net.shelves, sizes=net.mass)
        object.__setattr__(there, "linked", Sparse.of(links))  # one may miss the other alone
        return NetworkState(there)


def test_a_server_comes_back_with_its_own_model_as_it_does_in_a_simulation(tmp_path: Path) -> None:
    late = {"edge-2", "client-4", "client-5"}
    scheme, net = SDFeel(tau1=2), network(RING)
    engine, rounds = NoisyEngine(6), 120
    clients: list[asyncio.Future[None]] = []

    def train(task: Task) -> Tensor:
        if task.first == 10 and not clients:  # the others do not wait for it
            village.given_up = set()
            village.start(2)
            clients.extend(asyncio.ensure_future(village.client(n).run()) for n in (4, 5))
        return next(engine.train([task]))

    village = Village(scheme, net, tmp_path, 2 * rounds, DROP, away=late, given_up={2}, train=train)

    async def story() -> dict[int, dict[int, Any]]:
        run = asyncio.ensure_future(village.run())
        await until(lambda: run.done() and village.edges[2].known.over)
        village.models[2] = village.model(2)
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return {d: {r["k"]: r for r in found} for d, found in records.items()}

    records: dict[int, list[Any]] = {}

    async def keep() -> None:
        await until(lambda: village.edges[2].known.over)
        for d in net.servers:
            records[d] = village.edges[d].store.records()

    village.at_the_end = keep
    told = timeless.run(story())
    assert 5 <= min(told[2]) < rounds - 1  # it missed some rounds, and took part in others
    assert any(not record["away"] for record in told[0].values())
    decisions = Decisions.of(scheme, net, COST, engine.seed, outages=Recorded(told))
    simulation = Simulation(decisions, engine)
    for _ in range(rounds):
        next(simulation)
    for d in net.servers:
        assert torch.equal(village.models[d], simulation.state.servers[d])
