"""Servers that meet few others at a time: exact agreement, the weighted mean, and refusals."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import sdfeel
from sdfeel.core.arrays import Floats
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.graphs import links
from sdfeel.core.mixing import meeting
from sdfeel.core.network import Network, clustered
from sdfeel.core.peers import NAMES, Peers, exchanges, named, period
from sdfeel.experiment.build import prepare
from sdfeel.experiment.build_network import build_mixing
from sdfeel.experiment.loading import load
from sdfeel.schemes import SCHEMES, SDFeel
from sdfeel.sim.simulate import Simulation
from tests.sim.parties import Parties
from tests.sim.test_simulate import cost, uneven

EXACT = [*(Peers("base", k) for k in (1, 2, 3, 4)), Peers("one-peer-exponential")]
DRAWN = [Peers("epidemic", 1), Peers("epidemic", 3), Peers("pairwise")]


def masses(servers: int) -> list[Floats]:
    drawn = np.random.default_rng(servers).uniform(0.2, 3, servers)
    return [np.full(servers, 1 / servers), drawn / drawn.sum()]


def everyone(servers: int) -> Floats:
    return 1 - np.eye(servers)


@pytest.mark.parametrize("servers", range(1, 41))
def test_one_pass_gives_everyone_the_weighted_mean(servers: int) -> None:
    for peers in EXACT:
        count = period(peers, servers)
        for mass in masses(servers) if count else ():
            product = np.eye(servers)
            for weights in exchanges(peers, mass, everyone(servers), 0, count or 0):
                assert_allclose(weights.sum(axis=1), 1, atol=1e-12)
                assert (weights >= 0).all()
                assert (weights != 0).sum(axis=1).max() <= peers.degree + 1
                product = weights @ product
            assert_allclose(product, np.tile(mass, (servers, 1)), atol=1e-12)


@pytest.mark.parametrize("servers", [2, 3, 5, 8, 13])
def test_every_other_exchange_keeps_the_weighted_mean_by_itself(servers: int) -> None:
    for peers in [*EXACT, *DRAWN]:
        if peers.kind == "epidemic" and peers.degree >= servers:
            continue
        for mass in masses(servers):
            for number in range(1, 7):
                (weights,) = exchanges(peers, mass, everyone(servers), number, 1)
                assert_allclose(mass @ weights, mass, atol=1e-12)
                assert_allclose(weights.sum(axis=1), 1, atol=1e-12)
                assert (weights > -1e-12).all()


@pytest.mark.parametrize("servers", [5, 8, 12])
def test_in_an_epidemic_each_server_sends_to_as_many_others_as_its_name_says(servers: int) -> None:
    mass = np.full(servers, 1 / servers)
    seen = set()
    for number in range(20):
        (weights,) = exchanges(Peers("epidemic", 2, seed=3), mass, everyone(servers), number, 1)
        assert ((weights != 0).sum(axis=0) == 3).all()
        assert ((weights != 0).sum(axis=1) == 3).all()
        seen.add(weights.tobytes())
    assert len(seen) > 10  # drawn anew every time


def test_pairs_are_drawn_among_existing_links() -> None:
    ring = links("ring", 7)
    for number in range(20):
        (weights,) = exchanges(Peers("pairwise"), np.full(7, 1 / 7), ring, number, 1)
        assert (ring[(weights != 0) & ~np.eye(7, dtype=bool)] == 1).all()
        assert (weights != 0).sum(axis=1).max() == 2


def net(servers: int, name: str, graph: str = "complete") -> Network:
    samples = np.arange(1.0, 2 * servers + 1)
    whole = clustered(samples, np.arange(2 * servers) % servers, links(graph, servers))
    return replace(whole, peers=named(name, 0))


@pytest.mark.parametrize("name", ["one-peer-exponential", "base-2", "base-3", "epidemic-2"])
def test_pairs_without_a_link_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"network.mixing is {name}, in which servers"):
        net(7, name, "ring")
    assert net(7, "pairwise", "ring").peers == Peers("pairwise")
    with pytest.raises(InputError, match="epidemic-3, but there are only 2 other servers"):
        net(3, "epidemic-3")


@pytest.mark.parametrize("name", ["one-peer-exponential", "base-2", "epidemic-2", "pairwise"])
@pytest.mark.parametrize("alpha", [1, 5])
def test_parties_that_share_nothing_meet_the_same_peers(name: str, alpha: int) -> None:
    """Five exchanges are a whole pass of base-2 among five servers."""
    whole, engine = net(5, name), uneven(clients=10)
    prices = replace(cost(10), model_bits=8.0)
    decisions = Decisions.of(SDFeel(2, 2, alpha), whole, prices)
    simulation, parties = Simulation(decisions, engine), Parties(decisions, engine)
    billed = 0
    for _ in range(8):
        mix = simulation._decided(simulation.state.lanes[0]).mix
        billed += sum(stage.crossings for stage in mix.stages)
        next(simulation)
        parties.round()
    servers = torch.stack([parties.row(d) for d in whole.servers])
    assert torch.equal(servers, simulation.state.servers)
    assert parties.sent["across"] == billed > 0


def test_a_whole_pass_leaves_no_disagreement_and_costs_less_than_all_links() -> None:
    whole, engine = net(8, "base-2"), uneven(clients=16)
    simulation = Simulation(Decisions.of(SDFeel(2, 1, 3), whole, cost(16)), engine)
    for _ in islice(simulation, 4):
        assert simulation.spread() < 1e-12 or simulation.state.number == 0
    assert sum(stage.crossings for stage in meeting(whole, 3)) == 3 * 8


def settings(*more: str) -> list[str]:
    small = ("network.clients=8", "network.servers=4", "network.graph=complete")
    return [*small, "model.name=logistic", "training.engine=loop", *more]


def test_schemes_that_need_a_constant_matrix_refuse_sequences() -> None:
    for name, kind in SCHEMES.items():
        verdict = kind.tolerates.verdict("peers")
        if verdict not in ("yes", "ignored"):
            asked = settings(f"scheme.name={name}", "network.mixing=base-2")
            with pytest.raises(InputError, match=f"{name} {verdict}, but network.mixing = base-2"):
                prepare(load(None, asked))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("network.link_chance=0.9", "is pairwise, which plans its exchanges ahead, but network"),
        ("compression.backhaul=uniform", "but network.mixing is pairwise, in which they meet"),
    ],
)
def test_what_does_not_go_with_sequences_is_refused(more: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        prepare(load(None, settings("network.mixing=pairwise", more)))


@pytest.mark.parametrize("name", [*GOSSIP_RULES, *NAMES, "base-4", "epidemic-3"])
def test_a_program_and_a_file_know_the_same_rules_by_the_same_names(name: str) -> None:
    x = torch.zeros(40, 2)
    data = sdfeel.federate((x, x[:, 0].long()), (x, x[:, 0].long()), clients=8)
    made = sdfeel.network(data, servers=4, graph="complete", mixing=name, seed=3)
    section = ["network.clients=8", "network.servers=4", f"network.mixing={name}", "seed=3"]
    wanted = build_mixing(load(None, section), replace(made, weights=None, peers=None))
    assert made.peers == wanted.peers
    np.testing.assert_array_equal(made.mixing, wanted.mixing)


@pytest.mark.parametrize(("name", "meant"), [("base2", "base-2"), ("metroplis", "metropolis")])
def test_an_unknown_rule_is_refused_with_a_list_of_those_that_exist(name: str, meant: str) -> None:
    x = torch.zeros(40, 2)
    data = sdfeel.federate((x, x[:, 0].long()), (x, x[:, 0].long()), clients=8)
    with pytest.raises(sdfeel.InputError, match=f"did you mean '{meant}'") as caught:
        sdfeel.network(data, servers=4, graph="complete", mixing=name)
    assert all(each in str(caught.value) for each in [*GOSSIP_RULES, *NAMES])
