"""Theorem 1: the specification's numbers, its shape, and quadratics on which it must hold."""

from dataclasses import replace
from math import inf, isinf

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import laplacian_weights, mixing_rate
from sdfeel.core.graphs import links
from sdfeel.theory import synchronous
from sdfeel.theory.problem import Problem, warning

EQUAL = np.full(10, 0.1)
RING = mixing_rate(laplacian_weights(links("ring", 10), EQUAL), EQUAL)
UNIT = Problem(smoothness=1, noise=1, divergence=1, gap=2.3, concentration=1 / 50)


@pytest.mark.parametrize(
    ("period", "alpha", "largest"),
    [(1, 1, 0.03478), (1, 5, 0.1477), (1, 10, 0.3027), (5, 1, 0.00673), (5, 5, 0.02406)],
)
def test_the_largest_step_of_the_specification(period: int, alpha: int, largest: float) -> None:
    assert synchronous.largest_step(1.0, period, RING**alpha) == pytest.approx(largest, rel=1e-3)


def test_one_step_and_full_agreement_allow_the_step_of_plain_descent() -> None:
    assert synchronous.v3(1, 0.0) == synchronous.v1(0.3, 4.0, 1, 0.0) == 0
    assert synchronous.largest_step(4.0, 1, 0.0) == 0.25


def test_drift_of_the_specification_falls_with_alpha() -> None:
    found = [synchronous.drift(UNIT, 1e-3, 5, RING**alpha) for alpha in (1, 2, 5, 10, 15, 30)]
    assert [round(value) for value in found] == [7483, 2303, 577, 258, 194, 166]
    assert round(synchronous.drift(UNIT, 1e-3, 5, 0.0)) == 164


@given(
    period=st.integers(1, 60),
    contraction=st.floats(0, 0.99),
    smoothness=st.floats(1e-3, 1e3),
)
def test_the_largest_step_is_where_both_conditions_end(
    period: int, contraction: float, smoothness: float
) -> None:
    largest = synchronous.largest_step(smoothness, period, contraction)
    assert synchronous.admissible(largest * (1 - 1e-9), smoothness, period, contraction)
    assert not synchronous.admissible(largest * (1 + 1e-6), smoothness, period, contraction)


@given(period=st.integers(1, 40), contraction=st.floats(0, 0.95), share=st.floats(0.01, 0.9))
def test_training_apart_for_longer_or_agreeing_less_costs_more(
    period: int, contraction: float, share: float
) -> None:
    rate = share * synchronous.largest_step(1.0, period + 1, min(contraction + 0.02, 0.99))
    here = synchronous.drift(UNIT, rate, period, contraction)
    assert synchronous.drift(UNIT, rate, period + 1, contraction) > here
    assert synchronous.drift(UNIT, rate, period, min(contraction + 0.02, 0.99)) > here
    more = replace(UNIT, divergence=2.0)
    assert synchronous.drift(more, rate, period, contraction) >= here
    assert synchronous.bound(UNIT, rate, 2000, period, contraction) < synchronous.bound(
        UNIT, rate, 1000, period, contraction
    )


def test_outside_the_regime_nothing_is_promised() -> None:
    assert isinf(synchronous.bound(UNIT, 1.0, 1000, 5, RING))
    assert synchronous.drift(UNIT, 1.0, 5, RING) == inf
    assert synchronous.v1(1.0, 1.0, 5, RING) == synchronous.v2(1.0, 1.0, 5, RING) == inf


def test_the_corollary_falls_with_the_square_root_of_the_iterations() -> None:
    early, late = (synchronous.corollary(UNIT, k, 5, RING) for k in (1e12, 4e12))
    assert late == pytest.approx(early / 2, rel=0.05)


def test_servers_that_never_agree_are_refused() -> None:
    with pytest.raises(InputError, match=r"zeta \*\* alpha must be at least 0 and below 1, got 1"):
        synchronous.v3(5, 1.0)
    with pytest.raises(InputError, match="smoothness must be above 0"):
        Problem(0.0, 1, 1, 1, 1)
    with pytest.raises(InputError, match="noise must be a finite number of at least 0, got -1"):
        Problem(1.0, -1, 1, 1, 1)


def run_quadratic(
    centres: np.ndarray,
    home: np.ndarray,
    tau1: int,
    tau2: int,
    alpha: int,
    rate: float,
    noise: float,
) -> tuple[list[np.ndarray], list[float], list[float]]:
    """SD-FEEL with losses |w - c_i|^2 / 2: mean models, deviations, squared mean gradients."""
    clients, dimension = centres.shape
    servers = int(home.max()) + 1
    mixing = laplacian_weights(links("ring", servers), np.full(servers, 1 / servers))
    draws = np.random.default_rng(0)
    models = np.zeros((clients, dimension))
    means, deviations, gradients = [], [], []
    for step in range(1, 401):
        mean = models.mean(axis=0)
        means.append(mean)
        deviations.append(float(((models - mean) ** 2).sum(axis=1).mean()))
        gradients.append(float(((models - centres).mean(axis=0) ** 2).sum()))
        jitter = draws.normal(0, np.sqrt(noise / dimension), size=models.shape)
        models = models - rate * (models - centres + jitter)
        if step % tau1 == 0:
            edge = np.array([models[home == d].mean(axis=0) for d in range(servers)])
            if step % (tau1 * tau2) == 0:
                edge = np.linalg.matrix_power(mixing, alpha) @ edge
            models = edge[home]
    return means, deviations, gradients


@pytest.mark.parametrize(("tau1", "tau2", "alpha"), [(1, 1, 1), (5, 1, 1), (2, 3, 2), (5, 2, 5)])
def test_theorem_and_lemmas_hold_on_quadratics(tau1: int, tau2: int, alpha: int) -> None:
    draws = np.random.default_rng(3)
    centres = draws.normal(size=(12, 4))
    home = np.repeat(np.arange(6), 2)
    away = centres - centres.mean(axis=0)
    contraction = 0.6**alpha
    problem = Problem(
        smoothness=1.0,
        noise=0.5,
        divergence=float((away**2).sum(axis=1).max()),
        gap=float((centres.mean(axis=0) ** 2).sum() / 2),
        concentration=1 / 12,
    )
    rate = synchronous.largest_step(1.0, tau1 * tau2, contraction)
    means, deviations, gradients = run_quadratic(centres, home, tau1, tau2, alpha, rate, 0.5)
    slopes = [float(((mean - centres.mean(axis=0)) ** 2).sum()) for mean in means]
    promised = synchronous.bound(problem, rate, len(means), tau1 * tau2, contraction)
    assert np.mean(slopes) <= promised
    apart = synchronous.deviation(
        problem, rate, tau1 * tau2, contraction, float(np.mean(gradients))
    )
    assert np.mean(deviations) <= apart
    # Lemma 3 speaks of expectations; summed over a run the noise averages out.
    allowed = [
        synchronous.descent(problem, rate, *each)
        for each in zip(slopes, gradients, deviations, strict=True)
    ]
    assert slopes[-1] / 2 - slopes[0] / 2 <= sum(allowed[:-1]) + 0.05


@given(
    rate=st.floats(1e-6, 10),
    tau1=st.integers(1, 20),
    tau2=st.integers(1, 5),
    zeta=st.floats(0, 0.9),
)
def test_the_warning_comes_exactly_outside_the_proven_regime(
    rate: float, tau1: int, tau2: int, zeta: float
) -> None:
    largest = synchronous.largest_step(2.0, tau1 * tau2, zeta**2)
    assume(abs(rate / largest - 1) > 1e-6)
    told = warning(rate, largest, 1, "alpha=2")
    assert (told is None) == synchronous.admissible(rate, 2.0, tau1 * tau2, zeta**2)
    if told is not None:
        assert told.startswith(f"learning rate {rate:g} is at least ")
        assert " times the largest step for which Theorem 1 proves" in told
        assert f"Theorem 1 proves convergence ({largest:.3g}, with alpha=2)" in told
