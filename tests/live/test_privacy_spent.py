"""A deployment counts every message that a server saw, even those that came too late."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from sdfeel.core.arrays import ints
from sdfeel.core.decide import Decisions
from sdfeel.core.graphs import linked
from sdfeel.core.network import Network
from sdfeel.core.scheme import Scheme
from sdfeel.deploy.privacy_spent import Releases
from sdfeel.deploy.records import is_record
from sdfeel.engine.messages import Clip, Noise, Packing
from sdfeel.engine.privacy import EPSILON, INSTALLED, OUTSIDE, Budget
from sdfeel.live.edge.policy import Policy
from sdfeel.live.protocol import Answer, Header, Who
from sdfeel.live.store import Store
from sdfeel.schemes import FedAvg, FedMes, SDFeel
from sdfeel.sim.simulate import Simulation
from tests.live.village import COST, LOCAL, SIZE, NoisyEngine, Village, network, sums_of

CLIP, DEVIATION = 0.5, 0.4
SINGLE = (CLIP / DEVIATION) ** 2
NOISY = Packing((SIZE,), 7, (Clip(CLIP), Noise(DEVIATION)))
CLIENTS = Budget("clients", CLIP, DEVIATION, 1e-5)
PER_PASS = ints(np.array([3, 1, 2, 4, 3, 2]))
EXAMPLES = Budget("examples", CLIP, DEVIATION, 1e-5, PER_PASS)
HASTY = Policy(dead_client="drop", client_deadline=0.5, dead_edge="drop", edge_deadline=2.0)


@dataclass
class Watched(Village):
    """Notes every result that reaches a server; some come late, and some servers are killed."""

    random: Random | None = None  # None: nothing happens
    seen: dict[tuple[int, int], int] = field(default_factory=dict)  # steps, by client and round

    async def deliver(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        if kind == "result":
            if self.random is not None and self.random.random() < 0.15:
                await asyncio.sleep(self.random.choice([0.3, 0.7, 3.0]))
            self.seen[who.number, header["round"]] = int(header["steps"])
            if self.random is not None and self.random.random() < 0.05:
                self.crash(target)
        return await super().deliver(who, target, kind, header, body)


def counted(village: Village, budget: Budget) -> Releases:
    """What an operator counts that reads all servers' records at the end."""
    found = Releases(budget, village.federation.net, village.iterations)
    rounds: dict[Any, list[dict[str, Any]]] = {}
    for d in village.federation.net.servers:
        store = Store(village.directory / f"edge-{d}")
        for record in store.records():
            assert is_record(record)
            rounds.setdefault(record["k"], []).append(record)
        store.close()
    for records in rounds.values():
        found.count(records)
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("budget", [CLIENTS, EXAMPLES], ids=["clients", "examples"])
def test_no_message_goes_uncounted(budget: Budget, seed: int, tmp_path: Path) -> None:
    """Whatever comes late, is lost or repeated, and whoever is killed."""
    packing = NOISY if budget is CLIENTS else None
    scheme: Scheme = SDFeel(tau1=2) if seed % 2 else FedAvg(tau1=2, participants=4)
    village = Watched(scheme, network(), tmp_path, 16, HASTY, packing=packing, random=Random(seed))
    village.federation = replace(village.federation, private=budget is EXAMPLES)
    village.go()
    found = counted(village, budget)
    dropped = 0
    for client in range(6):
        rounds = {k: steps for (n, k), steps in village.seen.items() if n == client}
        if budget is CLIENTS:
            dropped += round(found.spent[0, client] / SINGLE) - len(rounds)
            assert found.spent[0, client] >= SINGLE * len(rounds) - 1e-9
            assert found.spent[1, client] <= found.spent[0, client] + 1e-9
        else:
            late = sum(rounds.values()) - int(found.taken[client])
            least = budget.steps(found.taken)[client] + SINGLE * -(-late // PER_PASS[client])
            assert (budget.steps(found.taken) + found.spent[0])[client] >= least - 1e-9
    assert dropped < 40  # and not many more are counted than there were


@pytest.mark.parametrize(
    "scheme", [SDFeel(tau1=2), FedAvg(tau1=2, participants=4)], ids=["sd-feel", "fedavg"]
)
@pytest.mark.parametrize("masks", [False, True], ids=["messages", "masks"])
def test_without_faults_it_is_the_epsilon_of_the_simulator(
    scheme: Scheme, masks: bool, tmp_path: Path
) -> None:
    if masks and isinstance(scheme, FedAvg):
        pytest.skip("masks need all clients of a cluster")
    packing = replace(NOISY, up=(*NOISY.up, *([sums_of(network())] if masks else [])))
    budget = replace(CLIENTS, sums=masks)
    village = Watched(scheme, network(), tmp_path, 8, packing=packing)
    if masks:
        village.certify()
    village.go()
    decisions = Decisions.of(scheme, network(), COST, 7, LOCAL)
    simulation = Simulation(decisions, NoisyEngine(6), packing=packing, budget=budget)
    for _ in range(village.ended[0].known.k):
        next(simulation)
    found = counted(village, budget)
    assert found.spent == pytest.approx(simulation.state.spent)
    if INSTALLED:
        told = found.epsilons()
        assert told == pytest.approx(simulation.epsilons())
        assert masks or told[EPSILON] > told[OUTSIDE] > 0


def record(k: int, steps: dict[str, int], missing: tuple[int, ...] = (), **more: Any) -> Any:
    return {"server": 0, "k": k, "steps": steps, "missing": list(missing), **more}


def test_rounds_without_a_record_count_as_if_everybody_had_answered() -> None:
    found = Releases(CLIENTS, network(), 10)
    found.count([record(2, {"0": 2}, (1,))])  # two are gone, and it does not say who got work
    assert (found.spent[0] / SINGLE).tolist() == [3, 3, 2, 2, 2, 2]
    found.count([record(5, {"0": 2}, (1,), released={"0": [2, 0.25]})])
    assert (found.spent[0] / SINGLE).tolist() == [6, 5, 2, 2, 2, 2]
    assert found.spent[1, 0] / SINGLE == pytest.approx(5.25)
    net = network()
    grown = Network(np.append(net.samples, 5.0), (*net.reach, (3,)), linked("complete", 4))
    found.move(grown, 6)  # a server and a client join
    found.count([{**record(6, {"6": 2}, released={"6": [2, 1.0]}), "server": 3}])
    assert (found.spent[0] / SINGLE).tolist() == [6, 5, 2, 2, 2, 2, 1]


def test_a_client_of_several_servers_counts_as_seen_by_others() -> None:
    """Two sums with the same noises reveal more than each of them alone."""
    net = network(overlap=True)
    found = Releases(CLIENTS, net, 10)
    told = {"0": [2, 0.4], "1": [2, 0.4]}
    found.count([record(0, {"0": 2, "1": 2}, released=told)])
    assert (found.spent[:, :2] / SINGLE).tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("told", [[], {"0": 1}, {"0": [1, 2]}, {"0": [-1, 1]}, {"x": [1, 1]}])
def test_a_server_cannot_report_malformed_releases(told: Any, tmp_path: Path) -> None:
    village = Village(FedMes(tau1=2), network(), tmp_path, 2)
    village.go()
    store = Store(tmp_path / "edge-0")
    (own,) = store.records()
    store.close()
    assert is_record(own)
    assert not is_record({**own, "released": told})
