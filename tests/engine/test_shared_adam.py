"""Adam with averaged moments, against torch's Adam and a textbook average."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.network import clustered
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Training, Workload
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.shared_adam import read_shared_adam
from sdfeel.schemes import FedAvg
from sdfeel.sim.simulate import Simulation
from tests.sim.test_simulate import RATES

X = torch.tensor([[1.0, 0.5], [0.3, -1.0], [-0.7, 0.8]], dtype=torch.float64)
Y = torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)


def model() -> nn.Linear:
    module = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.2, -0.1]]))
    return module


def federated(parts: list[list[int]], rounds: int, tau1: int) -> Tensor:
    training = Training(0.05, 99, "shared-adam", loss=nn.functional.mse_loss)
    data, rows = Examples(X, Y), [np.array(part) for part in parts]
    engine = LoopEngine(Workload(model(), data, rows, data, training, seed=0))
    net = clustered([len(part) for part in parts], [0] * len(parts), links("ring", 1))
    cost = Cost(np.full(len(parts), 0.01), 1e3, RATES)  # type: ignore[arg-type]
    simulation = Simulation(Decisions.of(FedAvg(tau1), net, cost), engine)
    for _ in islice(simulation, rounds):
        pass
    return simulation.model()[:2]


def test_alone_it_is_torchs_adam_that_is_never_interrupted() -> None:
    module = model()
    adam = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(12):
        adam.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(module(X), Y))
        adam.step()
    torch.testing.assert_close(
        federated([[0, 1, 2]], rounds=4, tau1=3), module.weight.detach().flatten()
    )


def test_moments_are_averaged_like_the_model() -> None:
    """Textbook: after each round, model and both moments are means weighted by data."""
    parts, share = [[0], [1, 2]], torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    state = torch.zeros(3, 2, dtype=torch.float64)  # model, first and second moment
    state[0] = torch.tensor([0.2, -0.1])
    steps = 0
    for _ in range(4):
        ends = []
        for part in parts:
            w, m, v = state.clone()
            for t in range(steps + 1, steps + 4):
                gradient = 2 * ((X[part] @ w - Y[part, 0])[:, None] * X[part]).mean(dim=0)
                m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
                w = w - 0.05 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
            ends.append(torch.stack([w, m, v]))
        state, steps = (share[:, None, None] * torch.stack(ends)).sum(dim=0), steps + 3
    torch.testing.assert_close(federated(parts, rounds=4, tau1=3), state[0])


def test_unknown_options_and_bad_decays_are_refused() -> None:
    with pytest.raises(
        InputError, match="shared-adam has no option betas: its options are beta1, beta2"
    ):
        read_shared_adam({"betas": (0.9, 0.9)})
    with pytest.raises(InputError, match="beta2 must be at least 0 and below 1, got 1"):
        read_shared_adam({"beta2": 1})
