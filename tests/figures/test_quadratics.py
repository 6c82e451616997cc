"""The figure of the theorems: its own small simulations are those of the library."""

import numpy as np
import pytest
import torch
from torch import Tensor

from sdfeel.core.decide import Decisions
from sdfeel.figures.beyond.quadratics import (
    CLIENTS,
    everyones,
    losses,
    network,
    sweeps,
    waiting,
)
from sdfeel.schemes import SDFeel
from sdfeel.sim.simulate import Simulation
from tests.quadratic import QuadraticEngine
from tests.sim.test_simulate import cost


class FromTheBest(QuadraticEngine):
    """Starts where the mean of all losses is least."""

    def initial(self) -> Tensor:
        return torch.tensor(losses()[2])


@pytest.mark.parametrize(("tau1", "tau2", "alpha"), [(1, 1, 1), (5, 1, 1), (5, 4, 3)])
def test_the_figures_runs_are_the_librarys(tau1: int, tau2: int, alpha: int) -> None:
    rate, iterations = 0.01, 60
    centres, curved, _ = losses()
    shares = torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64)
    engine = FromTheBest(torch.tensor(centres), rate, shares, torch.tensor(curved))
    decisions = Decisions.of(SDFeel(tau1, tau2, alpha), network(), cost(CLIENTS))
    simulation = Simulation(decisions, engine)
    for _ in range(iterations // tau1):
        next(simulation)
    theirs = float((everyones(simulation.model().numpy()) ** 2).sum())
    ours = waiting(tau1, tau2, alpha, rate=rate, iterations=iterations).last
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_every_setting_is_one_that_the_theorem_covers() -> None:
    bounds = [each.bound for sweep in sweeps().values() for each in sweep.values()]
    assert np.isfinite(bounds).all()


def test_noise_has_the_variance_that_the_bound_is_told() -> None:
    quiet, loud = (waiting(1, iterations=200, noise=noise).gradient for noise in (0.0, 1.0))
    louder = waiting(1, iterations=200, noise=4.0).gradient
    assert (louder - quiet) / (loud - quiet) == pytest.approx(4, rel=0.05)
