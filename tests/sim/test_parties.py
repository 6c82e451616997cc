"""What the simulator computes in one place, parties that share nothing compute by messages."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Begun, Decisions
from sdfeel.core.network import Network
from sdfeel.core.rules import Clipped, Geometric, Median, Trimmed
from sdfeel.core.scheme import Local, Scheme
from sdfeel.core.scheme_needs import Needs
from sdfeel.core.tolerance import YES
from sdfeel.schemes import (
    SCHEMES,
    AsyncSDFeel,
    DSquared,
    FedAsync,
    FedAvg,
    FedNova,
    HierFavg,
    SDFeel,
)
from sdfeel.schemes.sampling import Sampling, sampled
from sdfeel.schemes.server_optimizers import ServerStep, stepped
from sdfeel.sim.simulate import Simulation
from sdfeel.sim.state import LaneState
from tests.schemes.test_contract import networks
from tests.sim.parties import Parties
from tests.sim.test_simulate import cost, uneven
from tests.sim.variants import Momentum, Own, Personal, Robust, Scaffold, SlowlyFollowing

ROUNDS = 6  # several of each lane, and two periods of two
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "sd-feel": [{"tau2": 2, "alpha": 3}],
    "hierfavg": [{"tau2": 2}],
    "fedavg": [{"participants": 3}],
    "async-sd-feel": [{"staleness": "hearsay", "psi": "polynomial"}],
    "safa": [{"crash_chance": 0.3, "fraction": 0.3}],
    "fedsa": [{"quota": 2}],
    "d2": [{"tau1": 3}],
    "scaffold": [{"participants": 4}],
    "mtgc": [{"tau2": 2}],
    "mtgc-gossip": [{"tau2": 2, "alpha": 2}],
    "k-gt": [{"alpha": 2}, {"trust": 0.01}],
    "sd-gt": [{"subnets": 1, "alpha": 2}],
    "feddyn": [{"participants": 3, "pull": 0.5}],
    "free-tracking": [{"alpha": 2}],
}
DRAWN = {name for name in SCHEMES if SCHEMES[name].tolerates.sampling == YES}
CASES = [
    (name, options)
    for name in SCHEMES
    for options in ({}, *OPTIONS.get(name, []), *[{"share": 0.5}] * (name in DRAWN))
]
every_case = pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(CASES)]
)
every_network = pytest.mark.parametrize("net", networks(), ids=["ring", "star", "one", "single"])


def both(name: str, options: dict[str, Any], net: Network) -> tuple[Simulation, Parties]:
    clients = len(net.samples)
    own = {key: value for key, value in options.items() if key != "share"}
    scheme = sampled(SCHEMES[name](**own), Sampling(share=options.get("share", 1.0)))
    decisions = Decisions.of(scheme, net, prices(clients), seed=5)
    engine = replace(uneven(clients=clients), start=0.5)  # unlike shelves that begin at zero
    return Simulation(decisions, engine), Parties(decisions, engine)


def prices(clients: int) -> Cost:
    """A byte for each message."""
    return replace(cost(clients), model_bits=8.0, step_seconds=np.linspace(0.01, 0.05, clients))


@every_case
@every_network
def test_parties_that_share_nothing_compute_the_same_bits_by_the_messages_that_are_billed(
    name: str, options: dict[str, Any], net: Network
) -> None:
    simulation, parties = both(name, options, net)
    billed = {"up": 0, "across": 0}
    broadcasts = sum(decided(simulation, lane).work.broadcasts or 0 for lane in lanes(simulation))
    for _ in range(ROUNDS):
        first = lanes(simulation)[0]
        mix = decided(simulation, first).mix
        billed["up"] += mix.up.messages
        billed["across"] += sum(stage.crossings for stage in mix.stages)
        next(simulation)
        broadcasts += decided(simulation, first).work.broadcasts or 0
        parties.round()
        assert parties.sent == billed
    # FedAsync's and FedBuff's clients get their models one by one; FedSA's slow ones have not
    # reported yet; SAFA's continue from models of their own, which the cloud knows, too.
    assert name in ("fedasync", "fedbuff", "fedsa", "safa") or len(parties.told) == broadcasts
    servers = torch.stack([parties.row(d) for d in simulation.net.servers])
    assert torch.equal(servers, simulation.state.servers)
    assert parties.seconds == simulation.state.seconds


def lanes(simulation: Simulation) -> list[LaneState]:
    """The lanes, in the order in which their rounds end."""
    return sorted(simulation.state.lanes, key=lambda each: (each.ends, each.number))


def decided(simulation: Simulation, lane: LaneState) -> Begun:
    return simulation._decided(lane)


VARIANTS: dict[str, Scheme] = {
    "median": Robust(SDFeel(tau1=2), up=Median()),
    "trimmed": Robust(FedAvg(tau1=2), up=Trimmed(0.2)),
    "median of updates": Robust(AsyncSDFeel(), up=Median()),
    "votes": Robust(FedNova(), up=Geometric()),
    "server momentum": FedNova(server_momentum=0.5),
    "clipped gossip": Robust(SDFeel(tau1=2, alpha=2), across=Clipped(0.1)),
    "momentum": Momentum(SDFeel(tau1=2)),
    "momentum on d2": Momentum(DSquared()),
    "momentum out of step": Momentum(AsyncSDFeel()),
    "adam": stepped(SDFeel(tau1=2), ServerStep("adam")),
    "yogi on d2": stepped(DSquared(), ServerStep("yogi")),
    "adagrad": stepped(HierFavg(tau1=2, tau2=2), ServerStep("adagrad")),
    "quasi-global": stepped(SDFeel(tau1=2, alpha=2), ServerStep("quasi-global")),
    "momentum of the cloud": stepped(FedAsync(), ServerStep("momentum")),
    "personal": Personal(SDFeel(tau1=2)),
    "scaffold": Scaffold(tau1=3),
    "following slowly": SlowlyFollowing(SDFeel(tau1=2)),
    "clients' own models": Own(SDFeel(tau1=2)),
}


@pytest.mark.parametrize("name", VARIANTS)
@every_network
def test_methods_beyond_averaging_need_nothing_shared(name: str, net: Network) -> None:
    clients = len(net.samples)
    local = Local(0.05)
    decisions = Decisions.of(VARIANTS[name], net, prices(clients), seed=5, local=local)
    engine = uneven(clients=clients)
    simulation, parties = Simulation(decisions, engine), Parties(decisions, engine)
    billed = {"up": 0, "across": 0}
    for _ in range(ROUNDS):
        mix = decided(simulation, lanes(simulation)[0]).mix
        billed["up"] += mix.up.messages
        billed["across"] += sum(stage.crossings for stage in mix.stages)
        next(simulation)
        parties.round()
    rows = range(-simulation.net.kept, len(simulation.net.servers))
    held = torch.stack([parties.row(n) for n in rows])
    assert torch.equal(held, torch.stack([simulation.state.models[n] for n in rows]))
    assert parties.sent == billed


def test_rows_that_clients_hold_and_a_run_returns_are_not_deployed() -> None:
    """A server could not tell what the run returns."""
    net = networks()[0]
    for scheme, held in ((Own(SDFeel(tau1=2)), True), (SlowlyFollowing(SDFeel(tau1=2)), False)):
        needs = Needs.of(Decisions.of(scheme, net, prices(len(net.samples))))
        assert needs.client_rows == held
