"""Mixing that stays stable with quasi-global momentum: weights that swing too much get lazier.

Let x be the part of the models along an eigenvector of the mixing weights, w its eigenvalue, and q
the momentum, of which each round keeps the share b. Without training, x := w (x + b q) and
q := b q + (1 - b) (x - last x). If w is below 0, x swings: a model above the mean is below it after
the exchange, as with the paper's weights on a ring. Momentum expects every move to go on, and so
pushes swings further. Lazier weights, (W + c I) / (1 + c), swing less, but servers agree more
slowly; c is chosen so that, with momentum, they agree fastest. Weights that pass models round in
circles may need so large a c that servers would hardly mix; they are refused then.

D² also corrects by its last step. Momentum amplifies that correction where servers agree slowly,
however lazy the weights are, so there is nothing to choose: such runs are refused.
"""

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.arrays import Bools, Floats
from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import one_sided
from sdfeel.core.sparse import Sparse

MARGIN = 1e-6  # this close to the border, swings hardly ever end, and rounding would decide
TIE = 1e-9
MANY = 500  # servers: for more, real eigenvalues are bounded, row by row, instead of computed
LAZIER = (*(n / 16 for n in range(1, 17)), *(2.0**n for n in range(1, 11)))  # the choices of c

Complexes = NDArray[np.complex128]


def least_stable(momentum: float) -> float:
    """The eigenvalue of mixing weights below which x grows from round to round.

    >>> least_stable(0.5), least_stable(0.0)
    (-0.75, -1.0)
    """
    return -(1 + momentum) / (1 + 3 * momentum - 2 * momentum**2)


def calm(weights: Sparse, mass: Floats, hops: int, momentum: float, key: str) -> Sparse:
    """The same mixing, lazier if momentum would drive apart servers that mix `hops` times.

    `mass` (D,) are the clusters' shares of the data. `key` sets the momentum; errors name it.

    >>> swinging, half = Sparse.of([[0.0, 1.0], [1.0, 0.0]]), np.array([0.5, 0.5])
    >>> calm(swinging, half, 1, 0.5, "scheme.momentum").dense.tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    >>> calm(swinging, half, 2, 0.5, "scheme.momentum") is swinging
    True
    """
    if not momentum:
        return weights
    if len(weights) > MANY and not one_sided(weights, mass).any():  # so eigenvalues are real
        return weights if _surely_stable(weights, hops, momentum) else _lazier(weights, 1.0)
    found = np.linalg.eigvals(weights.dense).astype(complex)
    apart = found[abs(found - 1) > TIE]  # without the mean, which stays as it is
    if not len(apart) or _stable(apart**hops, momentum):
        return weights
    left = np.array([_share_left(_lazy(apart, c) ** hops, momentum) for c in LAZIER])
    if left.min() > 1 + MARGIN:
        raise InputError(
            f"{key} is {momentum:g}, which would drive servers apart that pass their models round "
            f"in circles, as the matrix of network.mixing says: lower it, or give weights with "
            f"which neighbours take from each other, such as 'metropolis'"
        )
    return _lazier(weights, LAZIER[int((left <= left.min() + TIE).argmax())])


def check_corrected(weights: Floats, momentum: float, key: str) -> None:
    """Refuse momentum that would drive servers apart that mix by D² with these `weights` (D, D)."""
    shares = (_corrected_share_left(w, momentum) for w in np.linalg.eigvals(weights).real.tolist())
    growth = max(shares) - 1
    if momentum and growth > MARGIN:
        raise InputError(
            f"{key} is {momentum:g}, which would drive servers apart that correct each gossip by "
            f"their last step, as d2 does, by {growth:.2g} in every round: lower it, or set "
            f"server.optimizer to momentum"
        )


def _corrected_share_left(w: float, b: float) -> float:
    """The same as `_share_left` with D², where x := w (2 x + b q - last (x + b q))."""
    if abs(w - 1) <= TIE:
        return 1.0  # the mean, which stays as it is
    step = [
        [2 * w, b * w, -w],
        [(1 - b) * (2 * w - 1), b * (1 + (1 - b) * w), (b - 1) * w],
        [1.0, b, 0.0],
    ]
    return float(np.abs(np.linalg.eigvals(np.array(step))).max())


def _lazy(eigenvalues: Complexes, c: float) -> Complexes:
    found: Complexes = (eigenvalues + c) / (1 + c)
    return found


def _stable(eigenvalues: Complexes, momentum: float) -> bool:
    swinging = eigenvalues.real.min() < least_stable(momentum) + MARGIN
    return not swinging and _share_left(eigenvalues, momentum) <= 1 + MARGIN


def _share_left(eigenvalues: Complexes, momentum: float) -> float:
    """The largest share of a disagreement that a round leaves: x and q have two roots with each
    eigenvalue."""
    half = (momentum + eigenvalues * (1 + momentum - momentum**2)) / 2
    apart = np.sqrt(half**2 - momentum * eigenvalues * (2 - momentum))
    return float(max(abs(half + apart).max(), abs(half - apart).max()))


def _surely_stable(weights: Sparse, hops: int, momentum: float) -> bool:
    own, others = _own_and_others(weights)
    far = np.bincount(weights.rows[others], abs(weights.values[others]), len(own))
    return hops % 2 == 0 or bool((own - far).min() >= least_stable(momentum) + MARGIN)


def _lazier(weights: Sparse, c: float) -> Sparse:
    """(W + c I) / (1 + c)."""
    own, others = _own_and_others(weights)
    every = np.arange(len(own))
    return Sparse.at(
        np.concatenate([weights.rows[others], every]),
        np.concatenate([weights.columns[others], every]),
        np.concatenate([weights.values[others], own + c]) / (1 + c),
        weights.shape,
    )


def _own_and_others(weights: Sparse) -> tuple[Floats, Bools]:
    """(D,) the weight of each server's own model; (N,) which entries weight other models."""
    others = weights.rows != weights.columns
    own = np.zeros(len(weights))
    own[weights.rows[~others]] = weights.values[~others]
    return own, others
