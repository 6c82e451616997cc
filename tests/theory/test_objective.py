"""The planner's objective: the specification's example, and the best learning rate."""

from itertools import product
from math import inf, isinf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.theory import asynchronous, objective, synchronous
from sdfeel.theory.asynchronous import ClusterPace
from sdfeel.theory.problem import Problem

RING10 = 0.825664548621
TAU1, TAU2, ALPHA = (1, 2, 3, 5, 8, 10, 15, 20, 30, 50), (1, 2, 5), (1, 2, 3, 5, 8, 10, 15, 20)
MILD = Problem(smoothness=1, noise=10, divergence=0.01, gap=2.3, concentration=1 / 50)
MNIST, CIFAR = (21_840, 487_540), (5_852_170, 138.4e6)


def optimum(
    problem: Problem,
    epsilon: float,
    model: tuple[float, float],
    zeta: float,
    mbps: float,
    alphas: tuple[int, ...] = (1,),
) -> tuple[float, tuple[int, int, int]]:
    """Seconds and (tau1, tau2, alpha) of the best setting with the paper's constants."""
    bits, compute = 32 * model[0], model[1] / 1e10
    return min(
        (
            objective.seconds(
                problem,
                epsilon,
                tau1 * tau2,
                zeta**alpha,
                compute + bits / 5e6 / tau1 + alpha * bits / (mbps * 1e6) / (tau1 * tau2),
            ),
            (tau1, tau2, alpha),
        )
        for tau1, tau2, alpha in product(TAU1, TAU2, alphas)
    )


@pytest.mark.parametrize(
    ("model", "ring", "cloud", "complete"),
    [(MNIST, 2126, 2027, 1122), (CIFAR, 5.70e5, 5.43e5, 3.01e5)],
)
def test_the_example_of_the_specification(
    model: tuple[float, float], ring: float, cloud: float, complete: float
) -> None:
    seconds, setting = optimum(MILD, 0.01, model, RING10, 50, ALPHA)
    assert setting == (50, 1, 8)
    assert seconds == pytest.approx(ring, rel=2e-3)
    assert optimum(MILD, 0.01, model, 0.0, 5)[0] == pytest.approx(cloud, rel=2e-3)
    assert optimum(MILD, 0.01, model, 0.0, 50)[0] == pytest.approx(complete, rel=2e-3)


def test_iterations_and_rate_of_the_example() -> None:
    best = objective.fastest(MILD, 0.01, 50, RING10**8)
    assert best.steps == pytest.approx(4.19e5, rel=2e-3)
    assert best.rate == pytest.approx(1.57e-3, rel=0.02)  # the cost is flat there
    assert best.steps % 50 == 0


HARSH = Problem(smoothness=1, noise=1, divergence=1, gap=2.3, concentration=1 / 50)


def test_very_different_clients_must_average_after_every_step_and_agree_well() -> None:
    """The specification names alpha = 15 for this case, which its own formula does not give.

    With tau1 = tau2 = 1 the time still falls from 15 to 20 exchanges, the end of its list, by a
    quarter, and without an end the best number is 45. 15 is right for a list that ends there.
    """
    for model in (MNIST, CIFAR):
        assert optimum(HARSH, 0.05, model, RING10, 50, ALPHA)[1] == (1, 1, 20)
        assert optimum(HARSH, 0.05, model, RING10, 50, ALPHA[:-1])[1] == (1, 1, 15)
        assert optimum(HARSH, 0.05, model, RING10, 50, tuple(range(43, 48)))[1] == (1, 1, 45)
    early, late = (optimum(HARSH, 0.05, MNIST, RING10, 50, (alpha,))[0] for alpha in (15, 20))
    assert late / early == pytest.approx(0.752, abs=0.001)


@given(period=st.integers(1, 30), contraction=st.floats(0, 0.9), epsilon=st.floats(0.01, 1))
def test_no_admissible_rate_beats_the_best(period: int, contraction: float, epsilon: float) -> None:
    best = objective.fastest(MILD, epsilon, period, contraction)
    top = synchronous.largest_step(1.0, period, contraction)
    tried = [
        objective.needed(MILD, epsilon, rate, period, contraction)
        for rate in np.geomspace(top * 1e-4, top * (1 - 1e-9), 60)
    ]
    assert best.steps <= min(tried) * (1 + 1e-3) + period
    if not isinf(best.steps):
        reached = synchronous.bound(MILD, best.rate, best.steps, period, contraction)
        assert reached <= epsilon * (1 + 1e-9)


def test_a_target_below_the_noise_takes_for_ever_at_a_fixed_rate_only() -> None:
    assert objective.needed(MILD, 1e-4, 0.005, 1, 0.0) == inf
    assert objective.fastest(MILD, 1e-4, 1, 0.0).steps < inf


def test_asynchronous_events_reach_the_target_exactly() -> None:
    pace = ClusterPace(theta_min=2, theta_max=4, age=3, rho=0.7)
    best = objective.fastest_asynchronous(MILD, 0.1, pace)
    assert asynchronous.bound(MILD, best.rate, best.steps, pace) == pytest.approx(0.1)
    slower = objective.fastest_asynchronous(MILD, 0.1, ClusterPace(2, 4, 9, 0.7))
    assert slower.steps > best.steps
