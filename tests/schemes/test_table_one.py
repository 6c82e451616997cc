"""The systems in the paper's Table I other than SD-FEEL: FogFL, FedMes, multi-level local SGD."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from sdfeel.core.arrays import Floats
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.graphs import linked, links
from sdfeel.core.mixing import gossip
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Facts, Scheme
from sdfeel.schemes import SCHEMES, FedAvg, FedMes, FogFL, HierFavg, MultiLevelSGD, SDFeel
from sdfeel.schemes.fog_fl import averaged_at_a_server
from sdfeel.sim.simulate import Simulation
from tests.sim.test_simulate import RATES, after, cost, ring_of_four, uneven


def test_fogfl_computes_what_hierfavg_computes() -> None:
    ours = after(FogFL(2, 3), ring_of_four(), uneven(), 9)
    theirs = after(HierFavg(2, 3), ring_of_four(), uneven(), 9)
    assert torch.equal(ours.state.servers, theirs.state.servers)


@pytest.mark.parametrize(
    ("graph", "hops"), [("complete", 1), ("star", 1), ("ring", 2), ("path", 2)]
)
def test_fogfl_pays_two_ways_over_the_mesh(graph: str, hops: int) -> None:
    net = ring_of_four(graph)
    price = cost(12, step=0.01, bits=1e6)
    own = Simulation(Decisions.of(FogFL(2, 3), net, price), uneven())
    done = [next(own) for _ in range(6)][-1]
    expected = 12 * 0.01 + 6 * 0.2 + 2 * (2 * hops * 0.02)
    assert done.seconds == pytest.approx(expected)


def test_fogfl_counts_every_link_that_a_model_crosses() -> None:
    own = after(FogFL(1, 1), ring_of_four("path"), uneven(), 1)
    # path 0-1-2-3: the aggregator is 1, at distances 1, 0, 1, 2
    assert own.state.bytes == (12 + 4 + 2 * 4) * 125_000


def test_fogfl_goes_by_how_long_links_take_not_by_how_many_there_are() -> None:
    """On a full mesh all servers are one link away, but 0 and 1 have a bad one between them."""
    net = ring_of_four("complete")
    rates: Floats = net.links.copy()
    rates[0, 1] = rates[1, 0] = 0.02
    price = replace(cost(12, step=0.01, bits=1e6), server_rates=rates)
    done = next(Simulation(Decisions.of(FogFL(1), net, price), uneven()))
    assert done.phases["mix"] == pytest.approx(2 * 0.02)
    assert done.bytes == (12 + 4 + 2 * 3) * 125_000


def test_fogfl_chooses_as_a_search_over_all_paths_does() -> None:
    draws = np.random.default_rng(5)
    for _ in range(20):
        graph = links("ring", 6) + np.triu(draws.random((6, 6)) < 0.3, 2)
        graph = np.clip(graph + graph.T, 0, 1)
        np.fill_diagonal(graph, 0)
        rates = np.triu(draws.uniform(0.02, 1, (6, 6)))
        rates = graph * (rates + rates.T)

        def reach(a: int, b: int, seen: tuple[int, ...], rates: Floats = rates) -> float:
            if a == b:
                return 0.0
            on = [c for c in np.flatnonzero(rates[a]).tolist() if c not in seen]
            return min((1 / rates[a, c] + reach(c, b, (*seen, c)) for c in on), default=np.inf)

        soonest = min(max(reach(d, j, (d,)) for j in range(6)) for d in range(6))
        net = clustered(np.ones(12), [i % 6 for i in range(12)], graph)
        mixing = averaged_at_a_server(net, rates.tobytes())
        assert mixing.legs == pytest.approx(2 * soonest)


def overlapping(cells: int, per_cell: int, shared: int) -> Network:
    """Cells on a ring; the last `shared` clients of each reach the next cell, too."""
    reach = []
    for d in range(cells):
        for n in range(per_cell):
            both = n >= per_cell - shared
            reach.append((d, (d + 1) % cells) if both else (d,))
    samples = np.arange(1.0, cells * per_cell + 1)
    return Network(samples, tuple(reach), linked("ring", cells))


def test_fedmes_without_overlap_is_independent_servers() -> None:
    ours = after(FedMes(3), overlapping(4, 3, 0), uneven(), 5)
    engine = uneven()
    for d in range(4):
        mine = [3 * d, 3 * d + 1, 3 * d + 2]
        small = clustered(np.arange(1.0, 13.0)[mine], [0, 0, 0], links("ring", 1))
        part = uneven()
        part.centres = engine.centres[mine]
        part.curvature = torch.as_tensor(engine.curvature)[mine]
        theirs = after(FedAvg(3), small, part, 5)
        torch.testing.assert_close(ours.state.servers[d], theirs.model(), rtol=0, atol=1e-14)


def test_fedmes_with_everyone_everywhere_is_fedavg() -> None:
    everywhere = Network(
        np.arange(1.0, 13.0),
        ((0, 1, 2, 3),) * 4 + ((1, 0, 2, 3),) * 3 + ((2, 0, 1, 3),) * 3 + ((3, 0, 1, 2),) * 2,
        linked("ring", 4),
    )
    ours = after(FedMes(3), everywhere, uneven(), 6)
    theirs = after(FedAvg(3), everywhere, uneven(), 6)
    for model in ours.state.servers:
        torch.testing.assert_close(model, theirs.model(), rtol=0, atol=1e-14)


def test_fedmes_carries_models_from_cell_to_cell() -> None:
    apart = after(FedMes(3), overlapping(4, 3, 0), uneven(), 200).spread()
    joined = after(FedMes(3), overlapping(4, 3, 1), uneven(), 200).spread()
    assert joined < 0.8 * apart


def test_fedmes_waits_for_the_edge_of_the_cell() -> None:
    price = Cost(np.full(12, 0.01), 1e6, RATES, cell_edge_rate=2e6)  # type: ignore[arg-type]
    for shared, upload in ((0, 0.2), (1, 0.5)):
        own = Simulation(Decisions.of(FedMes(5), overlapping(4, 3, shared), price), uneven())
        assert next(own).seconds == pytest.approx(0.05 + upload)


def test_an_overlap_weight_counts_the_carriers_more() -> None:
    net = overlapping(2, 2, 1)
    mix = Simulation(
        Decisions.of(FedMes(1, overlap_weight=3.0), net, cost(4)), uneven(clients=4)
    )._decided
    own = Simulation(Decisions.of(FedMes(1, overlap_weight=3.0), net, cost(4)), uneven(clients=4))
    up = mix(own.state.lanes[0])[2].up
    assert up.row(0) == pytest.approx({0: 1 / 19, 1: 6 / 19, 3: 12 / 19})


def test_multi_level_with_equal_speeds_is_sd_feel_with_one_exchange() -> None:
    ours = after(MultiLevelSGD(3, 2), ring_of_four(), uneven(), 8)
    theirs = after(SDFeel(3, 2, 1), ring_of_four(), uneven(), 8)
    assert torch.equal(ours.state.servers, theirs.state.servers)
    assert ours.state.seconds == pytest.approx(theirs.state.seconds)


def test_multi_level_never_waits_and_slow_clients_step_less() -> None:
    steps = np.array([0.01] * 6 + [0.05] * 6)
    price = Cost(steps, 1e6, RATES)  # type: ignore[arg-type]
    own = Simulation(Decisions.of(MultiLevelSGD(10, 1), ring_of_four(), price), uneven())
    taken = own.state.taken
    for done in islice(own, 200):  # nobody computes longer than time passes
        drawn, taken = own.state.taken - taken, own.state.taken
        assert done.phases["compute"] == pytest.approx((drawn * steps).max())
    assert done.iterations == 2000
    rates = own.state.taken / 2000
    np.testing.assert_allclose(rates, [1.0] * 6 + [0.2] * 6, atol=0.02)


@pytest.mark.parametrize("scheme", [FogFL(), FedMes(), MultiLevelSGD()])
def test_one_server_is_enough(scheme: Scheme) -> None:
    alone = clustered(np.arange(1.0, 13.0), [0] * 12, links("ring", 1))
    ours = after(scheme, alone, uneven(), 4)
    theirs = after(FedAvg(5), alone, uneven(), 4)
    torch.testing.assert_close(ours.model(), theirs.model(), rtol=0, atol=1e-14)


def test_gossip_between_two_is_one_message_each_way() -> None:
    pair = clustered([1, 1], [0, 1], links("path", 2))
    assert gossip(pair, 3).crossings == 6
    assert gossip(pair, 3).legs == 3


def test_the_table_of_the_paper() -> None:
    expected = {
        "hierfavg": Facts(False, True, "high", True, True, True),
        "fogfl": Facts(True, True, "high", False, True, False),
        "fedmes": Facts(False, False, "low", True, False, False),
        "multi-level": Facts(True, False, "low", False, True, False),
        "sd-feel": Facts(True, False, "low", True, True, True),
    }
    assert {name: SCHEMES[name].facts for name in expected} == expected
