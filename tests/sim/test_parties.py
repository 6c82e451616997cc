"""What the simulator computes in one place, parties that share nothing compute by messages."""

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.network import Network
from sdfeel.schemes import SCHEMES
from sdfeel.sim.simulate import Simulation
from tests.quadratic import NoisyEngine
from tests.schemes.test_contract import networks
from tests.sim.parties import Parties
from tests.sim.test_simulate import cost

ROUNDS = 12
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "sd-feel": [{"tau2": 2, "alpha": 3}],
    "hierfavg": [{"tau2": 2}],
    "fedavg": [{"participants": 3}],
    "async-sd-feel": [{"staleness": "hearsay", "psi": "polynomial"}],
    "safa": [{"crash_chance": 0.3, "fraction": 0.3}],
    "fedsa": [{"quota": 2}],
    "d2": [{"tau1": 3}],
}
CASES = [(name, options) for name in SCHEMES for options in ({}, *OPTIONS.get(name, []))]
every_case = pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(CASES)]
)
every_network = pytest.mark.parametrize("net", networks(), ids=["ring", "star", "one", "single"])


class Counting(Cost):
    """The same prices, and what was paid for."""


def both(name: str, options: dict[str, Any], net: Network) -> tuple[Simulation, Parties]:
    clients = len(net.samples)
    prices = replace(cost(clients), model_bits=8.0)  # a byte for each message
    scheme = SCHEMES[name](**options)
    decisions = Decisions.of(scheme, net, prices, seed=5)
    engine = NoisyEngine(clients)
    return Simulation(decisions, engine), Parties(decisions, NoisyEngine(clients))


@every_case
@every_network
def test_parties_that_share_nothing_compute_the_same_bits(
    name: str, options: dict[str, Any], net: Network
) -> None:
    simulation, parties = both(name, options, net)
    for _ in islice(simulation, ROUNDS):
        parties.round()
    servers = torch.stack([parties.row(d) for d in simulation.net.servers])
    assert torch.equal(servers, simulation.state.servers)
    assert parties.seconds == simulation.state.seconds
