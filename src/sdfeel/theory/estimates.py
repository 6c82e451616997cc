"""L, sigma^2 and kappa^2 from numbers that clients can measure while they train.

Secants as in Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing
Systems", 2019; mini-batches on both sides of a difference must be the same.
"""

import numpy as np

from sdfeel.core.arrays import Floats

FLATTEST = 1e-5  # an estimated smoothness below this is noise


def slope(loss_changes: Floats, distances: Floats, shares: Floats) -> float:
    """How fast losses change: each client's |F_i(a) - F_i(b)| / |a - b|, averaged by data."""
    return float(np.average(_ratios(np.abs(loss_changes), distances), weights=shares))


def smoothness(gradient_changes: Floats, distances: Floats, shares: Floats) -> float:
    """L: each client's |grad F_i(a) - grad F_i(b)| / |a - b|, averaged by data.

    A secant only ever shows a curvature that is really there: the true L may be larger.

    >>> smoothness(np.array([2.0, 6.0]), np.array([1.0, 2.0]), np.array([0.5, 0.5]))
    2.5
    """
    found = np.average(_ratios(gradient_changes, distances), weights=shares)
    return max(float(found), FLATTEST)


def noise(differences: Floats, shares: Floats) -> float:
    """sigma^2: half the squared distance between two mini-batch gradients, averaged by data.

    `differences[i]` is |g_i - g'_i| of client i, both at the same model.
    """
    return float(np.average(np.square(differences), weights=shares)) / 2


def divergence(
    distances: Floats, shares: Floats, noise: float = 0.0, batches: float = np.inf
) -> float:
    """kappa^2: squared distance of clients' gradients from everyone's, averaged by data.

    Gradients measured on few batches look further apart than they are: with the noise of one
    batch given, its share is taken off.
    """
    seen = float(np.average(np.square(distances), weights=shares))
    own = 1 - float(np.sum(np.square(shares)))  # a client's noise is also in everyone's mean
    return max(seen - own * noise / batches, 0.0)


def _ratios(changes: Floats, distances: Floats) -> Floats:
    return np.divide(changes, distances, out=np.zeros_like(changes), where=distances > 0)
