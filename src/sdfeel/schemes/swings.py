"""Mixing that quasi-global momentum bears: weights that swing too much are made lazy.

Where nothing trains, an eigenvector of the mixing weights with eigenvalue w goes x := w (x + b q),
q := b q + (1 - b) (x - last x). Some weights swing (w below 0: what is above the mean is then below
it, as with the paper's weights on a ring), and momentum, which expects them to go on, pushes them
further.
"""

import numpy as np

from sdfeel.core.arrays import Bools, Floats
from sdfeel.core.sparse import Sparse

MARGIN = 1e-6  # as near as this to the border, swings hardly ever end, and rounding would decide
MANY = 500  # servers: for more, eigenvalues are bounded, row by row, instead of computed


def least_borne(momentum: float) -> float:
    """The eigenvalue of mixing weights below which x grows from round to round.

    >>> least_borne(0.5), least_borne(0.0)
    (-0.75, -1.0)
    """
    return -(1 + momentum) / (1 + 3 * momentum - 2 * momentum**2)


def calm(weights: Sparse, hops: int, momentum: float) -> Sparse:
    """The same mixing, made lazy if momentum would drive servers apart that mix so `hops` times.

    >>> swinging = Sparse.of([[0.0, 1.0], [1.0, 0.0]])
    >>> calm(swinging, 1, 0.5).dense.tolist(), calm(swinging, 2, 0.5) is swinging
    ([[0.5, 0.5], [0.5, 0.5]], True)
    """
    while momentum and not _borne(weights, hops, momentum):
        weights = _lazy(weights)
    return weights


def _borne(weights: Sparse, hops: int, momentum: float) -> bool:
    if len(weights) > MANY:
        own, others = _parts(weights)
        far = np.bincount(weights.rows[others], abs(weights.values[others]), len(own))
        return hops % 2 == 0 or bool((own - far).min() >= least_borne(momentum) + MARGIN)
    found = np.linalg.eigvals(weights.dense).astype(complex) ** hops
    if found.real.min() < least_borne(momentum) + MARGIN:
        return False
    # x and q have two roots with each eigenvalue; neither may be above 1.
    half = (momentum + found * (1 + momentum - momentum**2)) / 2
    apart = np.sqrt(half**2 - momentum * found * (2 - momentum))
    return bool(max(abs(half + apart).max(), abs(half - apart).max()) <= 1 + MARGIN)


def _lazy(weights: Sparse) -> Sparse:
    """Half of what others are given, and one's own model for the rest."""
    own, others = _parts(weights)
    every = np.arange(len(own))
    return Sparse.at(
        np.concatenate([weights.rows[others], every]),
        np.concatenate([weights.columns[others], every]),
        np.concatenate([weights.values[others] / 2, (1 + own) / 2]),
        weights.shape,
    )


def _parts(weights: Sparse) -> tuple[Floats, Bools]:
    """(D,) the weight of each server's own model, and which entries are those of others."""
    others = weights.rows != weights.columns
    own = np.zeros(len(weights))
    own[weights.rows[~others]] = weights.values[~others]
    return own, others
