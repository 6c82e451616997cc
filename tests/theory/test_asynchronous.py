"""Theorem 2: constants that fit its lemmas, and where print and derivation part."""

from dataclasses import replace
from math import isinf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.mixing import star
from sdfeel.core.network import clustered
from sdfeel.theory import asynchronous
from sdfeel.theory.asynchronous import ClusterPace
from sdfeel.theory.problem import Problem

PROBLEM = Problem(smoothness=2.0, noise=3.0, divergence=0.7, gap=2.0, concentration=0.05)
PACE = ClusterPace(theta_min=2, theta_max=5, age=4, rho=0.8)


@given(
    rate=st.floats(1e-5, 0.05),
    slope=st.floats(0, 10),
    gradient=st.floats(0, 10),
    rho=st.floats(0, 0.9),
)
def test_the_three_lemmas_add_up_to_the_sixth(
    rate: float, slope: float, gradient: float, rho: float
) -> None:
    pace = replace(PACE, rho=rho)
    old = asynchronous.staleness(PROBLEM, rate, pace, gradient)
    apart = asynchronous.spread(PROBLEM, rate, pace, gradient)
    local = asynchronous.local_drift(PROBLEM, rate, pace, slope, old, apart)
    error = PROBLEM.smoothness**2 * (2 * old + 4 * apart + 4 * local)
    found = asynchronous.weights(PROBLEM, rate, pace)
    together = found.a * PROBLEM.noise + found.b * PROBLEM.divergence
    together += found.c * gradient + found.d * slope
    assert error == pytest.approx(together, rel=1e-9)


def test_the_rest_of_the_descent_is_what_the_gradient_term_leaves() -> None:
    for y in (0.0, 0.001, 0.01):
        assert asynchronous.u1(y) == pytest.approx(1 - 48 * y / (1 - 2 * y))


@given(rate=st.floats(1e-4, 1e-2))
def test_print_and_derivation_part_where_the_errata_say_so(rate: float) -> None:
    printed = asynchronous.weights(PROBLEM, rate, PACE, printed=True)
    corrected = asynchronous.weights(PROBLEM, rate, PACE)
    assert printed.a == corrected.a
    assert printed.b < corrected.b  # kappa is not noise that averages out
    assert printed.c < corrected.c  # theta_max once, where it belongs twice
    assert printed.d == 0 < corrected.d
    assert asynchronous.u1(1e-3, printed=True) == pytest.approx((1 - 0.014) / (1 - 0.002))
    for lemma in (asynchronous.staleness, asynchronous.spread):
        assert lemma(PROBLEM, rate, PACE, 1.0, True) < lemma(PROBLEM, rate, PACE, 1.0)
    assert asynchronous.bound(PROBLEM, 1e-4, 1e6, PACE, printed=True) < asynchronous.bound(
        PROBLEM, 1e-4, 1e6, PACE
    )
    assert asynchronous.largest_step(PROBLEM, PACE) < asynchronous.largest_step(
        PROBLEM, PACE, printed=True
    )


def test_one_step_each_and_no_delay_is_plain_descent() -> None:
    alone = ClusterPace(theta_min=1, theta_max=1, age=0, rho=0)
    assert asynchronous.largest_step(PROBLEM, alone) == pytest.approx(1 / PROBLEM.smoothness)
    assert asynchronous.bound(PROBLEM, 0.1, 100, alone) == pytest.approx(
        2 * 2.0 / (0.1 * 100) + 0.1 * 2.0 * 3.0 * 0.05
    )


@given(share=st.floats(0.01, 0.9))
def test_older_models_longer_rounds_and_slower_mixing_cost_more(share: float) -> None:
    worst = replace(PACE, age=6, theta_max=8, rho=0.9)
    rate = share * asynchronous.largest_step(PROBLEM, worst)
    here = asynchronous.bound(PROBLEM, rate, 1000, PACE)
    for changed in (replace(PACE, age=6), replace(PACE, theta_max=8), replace(PACE, rho=0.9)):
        assert asynchronous.bound(PROBLEM, rate, 1000, changed) > here
    assert asynchronous.bound(PROBLEM, rate, 2000, PACE) < here


def test_outside_the_regime_nothing_is_promised() -> None:
    largest = asynchronous.largest_step(PROBLEM, PACE)
    assert not isinf(asynchronous.bound(PROBLEM, largest * 0.999, 10, PACE))
    assert isinf(asynchronous.bound(PROBLEM, largest * 1.001, 10, PACE))
    assert isinf(asynchronous.bound(PROBLEM, 10.0, 10, PACE))
    with pytest.raises(InputError, match="theta_max must be at least 3, got 2"):
        ClusterPace(3, 2, 0, 0)
    with pytest.raises(InputError, match="rho must be at least 0 and below 1, got 1"):
        ClusterPace(1, 1, 0, 1.0)


@given(periods=st.lists(st.floats(0.5, 20), min_size=2, max_size=7))
def test_no_model_gets_older_than_the_corrected_bound(periods: list[float]) -> None:
    events = sorted((n * each, d) for d, each in enumerate(periods) for n in range(1, 60))
    horizon = min(59 * each for each in periods)
    last, worst = dict.fromkeys(range(len(periods)), 0), 0
    for number, (moment, d) in enumerate(events, start=1):
        if moment > horizon:
            break
        worst = max(worst, number - last[d] - 1)
        last[d] = number
    assert worst <= asynchronous.oldest(periods)
    assert asynchronous.oldest(periods, printed=True) < asynchronous.oldest(periods)


def test_products_of_star_mixings_shrink_disagreement() -> None:
    ring = clustered(np.ones(10), range(10), links("ring", 10))
    order = np.random.default_rng(1).integers(0, 10, size=160)
    matrices = []
    for centre in order:
        matrix = np.eye(10)
        mixing = star(ring, int(centre), np.ones(10))
        matrix[mixing.rows] = mixing.dense(10)
        matrices.append(matrix)
    assert 0.9 < asynchronous.envelope(matrices) < 1
    assert asynchronous.envelope([np.full((4, 4), 0.25)]) == pytest.approx(0, abs=1e-12)


def test_the_descent_lemma_is_the_synchronous_one_for_single_steps() -> None:
    from sdfeel.theory import synchronous

    alone = ClusterPace(1, 1, 0, 0)
    theirs = synchronous.descent(PROBLEM, 0.1, 2.0, 3.0, 0.5)
    # There the error is L^2 times the deviation.
    error = PROBLEM.smoothness**2 * 0.5
    assert asynchronous.descent(PROBLEM, 0.1, alone, 2.0, 3.0, error) == pytest.approx(theirs)
