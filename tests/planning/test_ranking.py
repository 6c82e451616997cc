"""Stage 1's law: what it owes to the bound, and that runs can correct it."""

from math import inf

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sdfeel.planning.candidates import Candidate
from sdfeel.planning.ranking import GOAL, Entry, Law, Pace, drift, fitted, proven
from sdfeel.run.loss_estimates import LossShape
from sdfeel.theory.problem import Problem

MEASURED = LossShape(Problem(3.0, 1.0, 6.0, 2.3, 0.05), between=0.3, slope=0.5, steps=60)


def entry(tau1: int, rate: float, scheme: str = "sd-feel", seconds: float = 0.01) -> Entry:
    candidate = Candidate(scheme, (("tau1", tau1),), rate, "ring", "paper")
    return Entry(
        candidate, Pace(seconds, 0, 0, seconds * tau1, tau1), 0.0, drift(tau1, 1, 0.4, 0.3), 0.01
    )


@given(rate=st.floats(1e-6, 10), tau1=st.integers(2, 50))
def test_the_law_is_the_bound_up_to_a_factor_of_two(rate: float, tau1: int) -> None:
    """Without noise, and with the best learning rate up to the given one."""
    problem, epsilon = MEASURED.problem, GOAL * MEASURED.slope
    here = entry(tau1, rate)
    apart = 8 * problem.smoothness**2 * problem.divergence * here.drift**2
    rates = np.geomspace(rate * 1e-9, rate, 20_000)
    left = epsilon - rates**2 * apart
    bound = np.where(left > 0, 2 * problem.gap / (rates * np.maximum(left, 1e-300)), inf).min()
    assert bound <= proven(MEASURED).iterations(here) * 1.001
    assert proven(MEASURED).iterations(here) <= 2 * bound


@given(
    tau1=st.integers(1, 40),
    tau2=st.integers(1, 5),
    contraction=st.floats(0, 0.9),
    between=st.floats(0, 1),
)
def test_drift_grows_with_both_periods_and_with_disagreement(
    tau1: int, tau2: int, contraction: float, between: float
) -> None:
    here = drift(tau1, tau2, contraction, between)
    assert drift(tau1 + 1, tau2, contraction, between) > here or tau1 == 0
    assert drift(tau1, tau2 + 1, contraction, between) >= here
    assert drift(tau1, tau2, contraction + 0.05, between) >= here
    assert drift(tau1, 1, 0.0, between) == pytest.approx(drift(tau1, 1, 0.0, 0.0))


@given(a=st.floats(0.1, 50), b=st.floats(0.1, 50))
def test_runs_that_follow_a_law_give_it_back(a: float, b: float) -> None:
    truth = Law(a, b)
    ran = [entry(tau1, rate) for tau1 in (1, 5, 20) for rate in (0.05, 0.4)]
    found = fitted(ran, [truth.iterations(each) for each in ran], proven(MEASURED))
    for each in ran:
        assert found.iterations(each) == pytest.approx(truth.iterations(each), rel=0.15)


def test_a_scheme_that_behaves_otherwise_gets_a_factor() -> None:
    truth = Law(4.0, 6.0)
    ran = [entry(tau1, rate) for tau1 in (1, 5, 20) for rate in (0.05, 0.4)]
    odd = [entry(tau1, 0.1, "async-sd-feel") for tau1 in (1, 5, 20)]
    needed = [truth.iterations(e) for e in ran] + [3 * truth.iterations(e) for e in odd]
    factors = dict(fitted([*ran, *odd], needed, proven(MEASURED)).factors)
    assert factors["async-sd-feel"] > 1.5 > factors["sd-feel"]


@given(
    needed=st.lists(st.floats(1, 1e4), min_size=2, max_size=6),
    draws=st.randoms(use_true_random=False),
)
def test_no_runs_whatever_make_a_law_with_negative_parts(
    needed: list[float], draws: object
) -> None:
    ran = [entry(2 + n * n, 0.05 * (1 + n % 3)) for n in range(len(needed))]
    found = fitted(ran, needed, proven(MEASURED))
    assert found.a >= 0
    assert found.b >= 0
    assume(found.a + found.b > 0)
    assert all(found.seconds(each) > 0 for each in ran)


def test_a_model_exists_only_after_a_whole_round() -> None:
    assert Law(1e-9, 1e-9).seconds(entry(50, 0.1, seconds=0.01)) == pytest.approx(0.5)
