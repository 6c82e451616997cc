"""Estimates find the constants of problems whose constants are known."""

import numpy as np
import pytest

from sdfeel.run import loss_estimates as estimates

SHARES = np.full(8, 1 / 8)


def test_a_quadratic_gives_its_curvature() -> None:
    draws = np.random.default_rng(0)
    a, b = draws.normal(size=(2, 8, 5))
    distances = np.linalg.norm(a - b, axis=1)
    changes = np.linalg.norm(3.0 * (a - b), axis=1)
    assert estimates.smoothness(changes, distances, SHARES) == pytest.approx(3.0)


def test_where_nothing_moved_nothing_is_divided_by_zero() -> None:
    still = np.zeros(8)
    assert estimates.smoothness(still, still, SHARES) == estimates.FLATTEST


def test_two_batches_give_the_noise_and_few_batches_do_not_look_like_divergence() -> None:
    draws = np.random.default_rng(1)
    clients, dimension, batches, noise, kappa = 4000, 6, 4, 5.0, 2.0
    shares = np.full(clients, 1 / clients)
    directions = draws.normal(size=(clients, dimension))
    directions -= directions.mean(axis=0)
    away = kappa * directions / np.sqrt((directions**2).sum(axis=1).mean())
    gradients = away[:, None] + draws.normal(
        0, np.sqrt(noise / dimension), size=(clients, batches, dimension)
    )
    pairs = np.linalg.norm(gradients[:, 0] - gradients[:, 1], axis=1)
    assert estimates.noise(pairs, shares) == pytest.approx(noise, rel=0.05)
    means = gradients.mean(axis=1)
    distances = np.linalg.norm(means - means.mean(axis=0), axis=1)
    plain = estimates.divergence(distances, shares)
    assert plain == pytest.approx(kappa**2 + noise / batches, rel=0.05)
    found = estimates.divergence(distances, shares, noise, batches)
    assert found == pytest.approx(kappa**2, rel=0.05)
    assert estimates.divergence(np.zeros(8), SHARES, noise=1.0, batches=1) == 0
