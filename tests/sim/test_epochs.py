"""Networks that change from epoch to epoch: servers and clients join, leave and move."""

from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.membership import Epoch, heirs
from sdfeel.core.network import Network, clustered
from sdfeel.experiment.build_network import on_another
from sdfeel.schemes import SCHEMES
from sdfeel.sim.simulate import Simulation
from tests.sim.parties import Parties
from tests.sim.test_parties import prices
from tests.sim.test_simulate import uneven

CLIENTS, SERVERS, ROUNDS = 10, 5, 12
# Schemes that can continue on a changed network; the others say why they cannot.
CHANGING: list[tuple[str, dict[str, Any]]] = [
    ("sd-feel", {"tau1": 2, "tau2": 2, "alpha": 2}),
    ("hierfavg", {"tau1": 1, "tau2": 2}),
    ("fogfl", {"tau1": 1}),
    ("fedmes", {"tau1": 1}),
    ("multi-level", {"tau1": 3}),
    ("fedavg", {"tau1": 2, "participants": 2}),
    ("fednova", {"theta_min": 1, "server_momentum": 0.5}),
    ("fedcs", {"tau1": 1}),
    ("d2", {"tau1": 1}),
    ("scaffold", {"tau1": 2, "participants": 2}),
    ("scaffnew", {"tau1": 2}),
    ("mtgc", {"tau1": 1, "tau2": 2}),
    ("mtgc-gossip", {"tau1": 1, "tau2": 2, "alpha": 2}),
    ("k-gt", {"tau1": 1}),
    ("free-tracking", {"tau1": 1}),
]
every_scheme = pytest.mark.parametrize(("name", "options"), CHANGING, ids=[n for n, _ in CHANGING])


def schedule_of(seed: int) -> list[tuple[int, Network]]:
    """A first network and three that follow it, drawn until each is possible."""
    draws = np.random.default_rng(seed)
    net = clustered(
        draws.integers(1, 9, CLIENTS).astype(float),
        [*range(SERVERS), *draws.integers(0, SERVERS, CLIENTS - SERVERS)],
        nx.to_numpy_array(nx.cycle_graph(SERVERS)),
    )
    found = [(0, net)]
    for begins in sorted(draws.choice(np.arange(1, ROUNDS), size=3, replace=False).tolist()):
        while found[-1][0] != begins:
            try:
                then = Epoch.parse(begins, _words(draws, net)).applied(net)
                heirs(net, then)
            except InputError:
                continue
            if len(then.clients) >= 2:  # as many as schemes draw
                found.append((begins, then))
                net = then
    return found


def _words(draws: np.random.Generator, net: Network) -> list[str]:
    words = []
    for d in draws.permutation(SERVERS)[: draws.integers(1, 3)]:
        others = [o for o in range(SERVERS) if o != d]
        near = draws.permutation(others)[: draws.integers(1, 4)]
        leaves = d not in net.out and draws.random() < 0.6
        words.append(f"edge-{d}=" + ("none" if leaves else "+".join(f"edge-{o}" for o in near)))
    for n in draws.permutation(CLIENTS)[: draws.integers(1, 6)]:
        goes = draws.random() < 0.2
        words.append(f"client-{n}=" + ("none" if goes else f"edge-{draws.integers(SERVERS)}"))
    return words


def decisions_of(name: str, options: dict[str, Any], nets: list[tuple[int, Network]]) -> Decisions:
    scheme = SCHEMES[name](**options)
    first = Decisions.of(scheme, nets[0][1], prices(CLIENTS), seed=5)
    later = [(k, on_another(first, before, net)) for (_, before), (k, net) in pairwise(nets)]
    return replace(first, epochs=tuple(later))


@every_scheme
def test_parties_that_share_nothing_follow_every_change_of_the_network(
    name: str, options: dict[str, Any]
) -> None:
    for seed in range(5):
        decisions = decisions_of(name, options, schedule_of(seed))
        engine = replace(uneven(clients=CLIENTS), start=0.5)
        simulation, parties = Simulation(decisions, engine), Parties(decisions, engine)
        for _ in islice(simulation, ROUNDS):
            parties.round()
            for d in simulation.net.present.tolist():
                assert torch.equal(parties.row(d), simulation.state.servers[d]), seed


@every_scheme
def test_servers_that_are_out_might_as_well_not_exist(name: str, options: dict[str, Any]) -> None:
    """Numbered anew, the servers that are left decide the same."""
    for seed in range(5):
        _, net = schedule_of(seed)[-1]
        there = net.present.tolist()
        alone = Network(
            net.samples,
            tuple(tuple(there.index(d) for d in servers) for servers in net.reach),
            net.linked.among(net.present),
        )
        engine = uneven(clients=CLIENTS)
        runs = [
            Simulation(Decisions.of(SCHEMES[name](**options), each, prices(CLIENTS), 5), engine)
            for each in (net, alone)
        ]
        for run in runs:
            list(islice(run, ROUNDS))
        assert torch.allclose(runs[0].model(), runs[1].model(), rtol=1e-12, atol=1e-15), seed
        assert runs[0].state.bytes == runs[1].state.bytes
        assert runs[0].state.seconds == runs[1].state.seconds


def test_mixing_keeps_the_weighted_mean_in_every_epoch() -> None:
    for seed in range(50):
        for _, net in schedule_of(seed):
            assert net.mass @ net.mixing == pytest.approx(net.mass)
            assert net.mixing.sum(axis=1) == pytest.approx(1.0)
            assert net.zeta < 1


def test_a_server_joins_with_the_model_of_the_nearest_that_stays() -> None:
    line = clustered([1] * 4, range(4), nx.to_numpy_array(nx.path_graph(4)))
    first = Epoch.parse(0, ["edge-2=none", "edge-3=none"]).applied(line)
    assert heirs(first, line) == {2: 1, 3: 1}
    decisions = decisions_of("sd-feel", {"tau1": 1, "tau2": 9}, [(0, first), (3, line)])
    engine = replace(uneven(clients=4), start=0.5)
    simulation = Simulation(replace(decisions, cost=prices(4)), engine)
    list(islice(simulation, 3))
    models = simulation.state.servers
    assert torch.equal(models[2], models[1])
    assert torch.equal(models[3], models[1])
    assert not torch.equal(models[0], models[1])
    assert simulation.news() == [
        "server 2 joins with the model of server 1",
        "server 3 joins with the model of server 1",
    ]


def test_corrections_that_must_cancel_do_so_in_every_epoch() -> None:
    """What all clients are shifted by, weighted by their data, is nothing."""
    for seed in range(5):
        decisions = decisions_of("scaffnew", {"tau1": 2}, schedule_of(seed))
        simulation = Simulation(decisions, replace(uneven(clients=CLIENTS), start=0.5))
        for _ in islice(simulation, ROUNDS):
            net, models = simulation.net, simulation.state.models
            now = simulation.decisions.at(simulation.state.lanes[0].k).net
            who = now.clients
            variates = models[now.shelf("variate")[who].tolist()].double()
            weights = torch.tensor(now.samples[who] / now.samples[who].sum())
            direction = models[int(now.shelf("direction")[0])].double()
            assert torch.allclose(weights @ variates, direction, atol=1e-5), (seed, net.out)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("adaptive", "remembers what clients did or measured"),
        ("safa", "remembers what clients did or measured"),
        ("fedsa", "remembers what clients did or measured"),
        ("joint", "remembers what clients did or measured"),
        ("fedasync", "needs a common round"),
        ("async-sd-feel", "needs a common round"),
    ],
)
def test_schemes_that_cannot_change_their_network_say_why(name: str, why: str) -> None:
    (_, first), (_, then), *_ = schedule_of(0)
    decisions = Decisions.of(SCHEMES[name](), first, prices(CLIENTS))
    with pytest.raises(InputError, match=why):
        on_another(decisions, first, then)
