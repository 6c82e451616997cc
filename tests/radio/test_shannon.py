import numpy as np
import pytest

from sdfeel.radio.channel import NEAREST, Cell, efficiency, scattered, snr_of


def test_a_megahertz_at_fifteen_decibels_is_the_papers_five_megabits() -> None:
    assert 1e6 * efficiency(np.array([10**1.5]))[0] == pytest.approx(5.028e6, rel=1e-4)


def test_the_link_budget_adds_up_in_decibels() -> None:
    cell = Cell(bandwidth_hz=2e6, power_dbm=20, noise_dbm_per_hz=-170, loss_db=120, exponent=4)
    noise = -170 + 10 * np.log10(2e6)
    for metres, loss in ((1000.0, 120), (100.0, 80), (10_000.0, 160)):
        found = 10 * np.log10(cell.snr(np.array([metres]))[0])
        assert found == pytest.approx(20 - noise - loss)


def test_rates_and_signal_to_noise_are_inverse() -> None:
    snr = np.array([0.01, 1.0, 31.6, 1e6])
    np.testing.assert_allclose(snr_of(efficiency(snr) * 3e6, 3e6), snr)


def test_clients_stand_anywhere_in_the_disc() -> None:
    metres = scattered(20_000, 500.0, np.random.default_rng(0))
    assert NEAREST <= metres.min() < metres.max() <= 500
    # Half of a disc's area lies within 1/sqrt(2) of its radius.
    assert np.median(metres) == pytest.approx(500 / np.sqrt(2), rel=0.01)
