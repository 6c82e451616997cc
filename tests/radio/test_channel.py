"""Fading against its closed forms, and the same bits whoever asks, in whatever order."""

from itertools import islice
from math import factorial, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.arrays import Floats
from sdfeel.core.cost import Channel, Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.radio.channel import Fading, Trace, at_least, efficiency
from sdfeel.schemes import SDFeel
from sdfeel.sim.simulate import Simulation
from tests.examples import examples
from tests.sim.test_simulate import cost, ring_of_four, uneven

SNR = 10**1.5


def fading(clients: int = 40, m: float = 1.0, correlation: float = 0.0, seed: int = 5) -> Fading:
    return Fading(np.ones(clients), np.full(clients, SNR), m, correlation, seed)


def history(channel: Fading, rounds: int) -> Floats:
    return np.array([channel.gains(k) for k in range(rounds)])


def exponential_integral(x: float) -> float:
    """E1(x) by its power series."""
    terms = ((-1) ** (k + 1) * x**k / (k * factorial(k)) for k in range(1, 20))
    return float(-np.euler_gamma - log(x) + sum(terms))


def test_the_mean_rate_at_fifteen_decibels_is_the_closed_form() -> None:
    closed = np.exp(1 / SNR) * exponential_integral(1 / SNR) / log(2)
    assert closed == pytest.approx(4.3302, abs=5e-5)
    x = np.linspace(0, 60, 600_001)
    y = efficiency(SNR * x) * np.exp(-x)
    assert ((y[1:] + y[:-1]) / 2 @ np.diff(x)) == pytest.approx(closed, rel=1e-6)
    rates = [fading(2000).at(k, 0.0)[0].mean() for k in range(100)]
    assert np.mean(rates) * efficiency(np.array([SNR]))[0] == pytest.approx(closed, rel=3e-3)


@pytest.mark.parametrize("m", [0.5, 1.0, 2.5, 4.0])
def test_nakagami_gains_have_mean_one_and_variance_one_over_m(m: float) -> None:
    gains = history(fading(2000, m), 40)
    assert gains.mean() == pytest.approx(1, rel=0.02)
    assert gains.var() == pytest.approx(1 / m, rel=0.04)
    for level in (0.1, 0.7, 1.5):
        assert at_least(np.array([level]), m)[0] == pytest.approx((gains >= level).mean(), abs=0.01)


def test_a_gains_correlation_is_the_square_of_the_amplitudes() -> None:
    gains = history(fading(3000, correlation=0.9), 30)
    for lag in (1, 3):
        found = np.corrcoef(gains[:-lag].ravel(), gains[lag:].ravel())[0, 1]
        assert found == pytest.approx(0.81**lag, abs=0.02)


@examples(20)
@given(asked=st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_a_round_has_the_same_channel_in_whatever_order_it_is_asked_for(asked: list[int]) -> None:
    in_order = history(fading(4, 1.5, 0.8), 61)
    channel = fading(4, 1.5, 0.8)
    for k in asked:
        np.testing.assert_array_equal(channel.gains(k), in_order[k])


def test_what_was_forgotten_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    in_order = history(fading(3, correlation=0.7), 30)
    monkeypatch.setattr("sdfeel.radio.channel.REMEMBERED", 2)
    channel = fading(3, correlation=0.7)
    for k in (29, 3, 4, 28, 2):
        np.testing.assert_array_equal(channel.gains(k), in_order[k])


def test_a_clients_channel_does_not_depend_on_how_many_there_are() -> None:
    np.testing.assert_array_equal(fading(9, 2.0, 0.5).gains(4)[:3], fading(3, 2.0, 0.5).gains(4))


def test_the_chance_of_a_rate_is_how_often_it_occurs() -> None:
    channel = fading(500, 2.0, 0.5)
    rates = np.array([channel.at(k, 0.0)[0] for k in range(200)])
    for needed in (0.6, 0.9, 1.1):
        expected = channel.chance(np.full(500, needed))
        assert expected[0] == pytest.approx((rates >= needed).mean(), abs=0.01)
    assert channel.chance(np.full(500, 1e9)).max() == 0
    assert channel.chance(np.full(500, np.inf)).max() == 0
    assert channel.chance(np.zeros(500)).min() == 1


@pytest.mark.parametrize(
    ("m", "correlation", "message"),
    [(0.7, 0.0, "nakagami_m must be 0.5, 1"), (0.0, 0.0, "nakagami_m"), (1.0, 1.0, "correlation")],
)
def test_impossible_fading_is_refused(m: float, correlation: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fading(2, m, correlation)


def seconds(channel: Channel | None) -> list[float]:
    from dataclasses import replace

    price: Cost = replace(cost(12), channel=channel)
    simulation = Simulation(
        Decisions.of(SDFeel(tau1=2, tau2=2, alpha=3), ring_of_four(), price), uneven()
    )
    return [done.seconds for done in islice(simulation, 10)]


def test_a_constant_channel_is_the_closed_formula_exactly() -> None:
    steady = Trace(np.ones((3, 12)), 5e6, 1e6)
    assert seconds(steady) == seconds(None)
    step, upload, hop = 0.01, 1e6 / 5e6, 1e6 / 50e6
    closed = 20 * (step + upload / 2 + 3 * hop / 4)
    assert seconds(steady)[-1] == pytest.approx(closed, rel=1e-12)


def test_the_worst_channel_decides_a_round() -> None:
    channel = fading(12, seed=1)
    slowest = [1 / channel.at(k, 0.0)[0].min() for k in range(4)]
    upload = 1e6 / 5e6
    expected = np.cumsum([0.02 + upload * slow + (k % 2) * 0.06 for k, slow in enumerate(slowest)])
    np.testing.assert_allclose(seconds(channel)[:4], expected, rtol=1e-12)


def test_a_trace_has_a_row_per_round_and_begins_again() -> None:
    trace = Trace(np.array([[1.0, 0.5], [2.0, 0.25]]), 5e6, 1e6)
    assert [trace.at(k, 0.0)[0].tolist() for k in range(3)] == [[1, 0.5], [2, 0.25], [1, 0.5]]
    assert trace.at(0, 0.0)[1][0] == pytest.approx(2**5 - 1)
    assert trace.chance(np.array([1.5, 0.2])).tolist() == [0.5, 1.0]


def test_a_trace_may_go_by_the_clock() -> None:
    trace = Trace(np.array([[1.0], [2.0], [3.0]]), 5e6, 1e6, np.array([0.0, 1.0, 4.0]))
    at = [0.0, 0.99, 1.0, 3.9, 4.0, 6.9, 7.0, 8.5]  # the last row lasts three seconds, too
    assert [trace.at(0, t)[0][0] for t in at] == [1, 1, 2, 2, 3, 3, 1, 2]
    assert trace.chance(np.array([2.0]))[0] == pytest.approx(6 / 7)
    alone = Trace(np.array([[2.0]]), 5e6, 1e6, np.array([0.0]))
    assert alone.at(3, 17.3)[0].tolist() == [2.0]
