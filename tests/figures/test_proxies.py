"""The figures' orderings on quadratic losses with exact gradients: seconds, no images, no noise.

F_i(w) = 1/2 (w - c_i)' diag(a_i) (w - c_i) with curvatures between 0.2 and 2. Equal curvatures
would be useless: the mean model would not depend on the schedule at all. What is compared is the
squared gradient of the global loss where a scheme ends.
"""

from functools import cache

import numpy as np
import torch

from sdfeel.core.decide import Decisions
from sdfeel.core.graphs import links
from sdfeel.core.network import Network, clustered
from sdfeel.schemes import HierFavg, SDFeel
from sdfeel.sim.simulate import Simulation
from tests.quadratic import QuadraticEngine
from tests.sim.test_simulate import cost

CLIENTS, SERVERS, DIMENSION, SEEDS = 50, 10, 30, 1


def network(graph: str = "ring", gamma: int = 0) -> Network:
    sizes = [5] * 4 + [5 - gamma] * 3 + [5 + gamma] * 3
    home = np.repeat(np.arange(SERVERS), sizes)
    return clustered(np.ones(CLIENTS), home, links(graph, SERVERS))


def engine(seed: int, rate: float, unlike: float) -> QuadraticEngine:
    draws = np.random.default_rng(seed)
    shares = torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64)
    centres = torch.from_numpy(5 + unlike * draws.normal(size=(CLIENTS, DIMENSION)))
    curvature = torch.from_numpy(draws.uniform(0.2, 2, size=(CLIENTS, DIMENSION)))
    return QuadraticEngine(centres, rate, shares, curvature)


@cache
def gradient(
    tau1: int = 5,
    tau2: int = 1,
    alpha: int = 1,
    graph: str = "ring",
    gamma: int = 0,
    rate: float = 0.05,
    unlike: float = 1.0,
    iterations: int = 300,
) -> float:
    """The squared norm of the global gradient at the end, a mean over seeds."""
    found = []
    for seed in range(SEEDS):
        own = engine(seed, rate, unlike)
        scheme = HierFavg(tau1, tau2) if graph == "cloud" else SDFeel(tau1, tau2, alpha)
        net = network("ring" if graph == "cloud" else graph, gamma)
        simulation = Simulation(Decisions.of(scheme, net, cost(CLIENTS)), own)
        for _ in range(iterations // tau1):
            next(simulation)
        gaps = torch.as_tensor(own.curvature) * (simulation.model() - own.centres)
        found.append(float((own.weights @ gaps).square().sum()))
    return float(np.mean(found))


def test_averaging_less_often_is_worse_per_iteration() -> None:
    """Figure 7, remark 1."""
    assert gradient(tau1=1) < gradient(tau1=3) < gradient(tau1=20)
    assert gradient(tau2=1) < gradient(tau2=2) < gradient(tau2=5)


def test_better_connected_servers_are_better() -> None:
    """Figure 8, remark 2; the star is worst although its zeta is smaller than the ring's."""
    full, ring, star = (gradient(5, 5, graph=g) for g in ("complete", "ring", "star"))
    assert full < ring < star
    assert network("star").zeta < network("ring").zeta


def test_exchanges_help_within_odd_and_within_even_numbers() -> None:
    """Figure 8; even numbers do not let one kind of disagreement cancel."""
    ring = {alpha: gradient(5, 5, alpha) for alpha in (1, 2, 3, 4, 5)}
    assert ring[1] > ring[3] > ring[5]
    assert ring[2] > ring[4]
    assert ring[1] < ring[2]
    assert ring[3] < ring[4]


def test_the_cloud_needs_no_more_iterations() -> None:
    """Remark 3."""
    assert gradient(5, 5, graph="cloud") <= gradient(5, 5, graph="ring")


def test_unlike_clients_slow_training_down() -> None:
    """Figure 9."""
    assert gradient(unlike=0.5) < gradient(unlike=1.0) < gradient(unlike=2.0)


def test_larger_steps_are_faster_until_they_diverge() -> None:
    """Figure 11(a)."""
    slow, middle, fast = (gradient(rate=rate, iterations=100) for rate in (1e-4, 1e-3, 1e-2))
    assert slow > middle > fast
    assert gradient(rate=1.3, iterations=100) > 1e6


def test_unequal_clusters_are_worse() -> None:
    """Figure 11(b)."""
    assert gradient(gamma=0) < gradient(gamma=2) < gradient(gamma=3)
