"""Mixing that quasi-global momentum bears: weights that swing too much are made lazier.

Where nothing trains, an eigenvector of the mixing weights with eigenvalue w goes x := w (x + b q),
q := b q + (1 - b) (x - last x). Some weights swing (w below 0: what is above the mean is then below
it, as with the paper's weights on a ring), and momentum, which expects them to go on, pushes them
further. Lazier weights, (W + c I) / (1 + c), swing less, but let servers agree more slowly, so c is
the one with which they agree fastest.
"""

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.arrays import Bools, Floats
from sdfeel.core.sparse import Sparse

MARGIN = 1e-6  # as near as this to the border, swings hardly ever end, and rounding would decide
TIE = 1e-9
MANY = 500  # servers: for more, eigenvalues are bounded, row by row, instead of computed
LAZIER = (*(n / 16 for n in range(1, 17)), *(2.0**n for n in range(1, 11)))  # the choices of c

Complexes = NDArray[np.complex128]


def least_borne(momentum: float) -> float:
    """The eigenvalue of mixing weights below which x grows from round to round.

    >>> least_borne(0.5), least_borne(0.0)
    (-0.75, -1.0)
    """
    return -(1 + momentum) / (1 + 3 * momentum - 2 * momentum**2)


def calm(weights: Sparse, hops: int, momentum: float) -> Sparse:
    """The same mixing, lazier if momentum would drive servers apart that mix so `hops` times.

    >>> swinging = Sparse.of([[0.0, 1.0], [1.0, 0.0]])
    >>> calm(swinging, 1, 0.5).dense.tolist(), calm(swinging, 2, 0.5) is swinging
    ([[0.5, 0.5], [0.5, 0.5]], True)
    """
    if not momentum:
        return weights
    if len(weights) > MANY:
        return weights if _surely_borne(weights, hops, momentum) else _lazier(weights, 1.0)
    found = np.linalg.eigvals(weights.dense).astype(complex)
    apart = found[abs(found - 1) > TIE]  # what all agree on stays as it is
    if not len(apart) or _borne(apart**hops, momentum):
        return weights
    left = np.array([_left(_lazy(apart, c) ** hops, momentum) for c in LAZIER])
    return _lazier(weights, LAZIER[int((left <= left.min() + TIE).argmax())])


def _lazy(eigenvalues: Complexes, c: float) -> Complexes:
    found: Complexes = (eigenvalues + c) / (1 + c)
    return found


def _borne(eigenvalues: Complexes, momentum: float) -> bool:
    swinging = eigenvalues.real.min() < least_borne(momentum) + MARGIN
    return not swinging and _left(eigenvalues, momentum) <= 1 + MARGIN


def _left(eigenvalues: Complexes, momentum: float) -> float:
    """How much of a disagreement is left after a round, at most: x and what is kept of its moves
    have two roots with each eigenvalue."""
    half = (momentum + eigenvalues * (1 + momentum - momentum**2)) / 2
    apart = np.sqrt(half**2 - momentum * eigenvalues * (2 - momentum))
    return float(max(abs(half + apart).max(), abs(half - apart).max()))


def _surely_borne(weights: Sparse, hops: int, momentum: float) -> bool:
    own, others = _parts(weights)
    far = np.bincount(weights.rows[others], abs(weights.values[others]), len(own))
    return hops % 2 == 0 or bool((own - far).min() >= least_borne(momentum) + MARGIN)


def _lazier(weights: Sparse, c: float) -> Sparse:
    """(W + c I) / (1 + c)."""
    own, others = _parts(weights)
    every = np.arange(len(own))
    return Sparse.at(
        np.concatenate([weights.rows[others], every]),
        np.concatenate([weights.columns[others], every]),
        np.concatenate([weights.values[others], own + c]) / (1 + c),
        weights.shape,
    )


def _parts(weights: Sparse) -> tuple[Floats, Bools]:
    """(D,) the weight of each server's own model, and which entries are those of others."""
    others = weights.rows != weights.columns
    own = np.zeros(len(weights))
    own[weights.rows[~others]] = weights.values[~others]
    return own, others
