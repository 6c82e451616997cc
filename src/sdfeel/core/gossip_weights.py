"""How neighbouring servers weight one another: `weights[dst, src]`, the paper's transpose.

Every rule here keeps the mean of the servers' models weighted by `mass`, whatever the graph.
Entries may be negative (a star's hub under the paper's rule); that is not a mistake.
"""

import hashlib
from collections.abc import Callable
from fractions import Fraction
from math import ceil, frexp, ldexp, log

import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import InputError
from sdfeel.core.lanczos import largest_modulus

TOLERANCE = 1e-9
LARGE = 500  # servers; above, eigenvalues are found without writing out all of them


def laplacian_weights(links: Floats, mass: Floats) -> Floats:
    """The paper's rule: the constant step that makes the slowest disagreement die fastest.

    >>> path = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> laplacian_weights(path, np.array([0.4, 0.2, 0.4])).round(4)
    array([[ 0.6667,  0.3333,  0.    ],
           [ 0.6667, -0.3333,  0.6667],
           [ 0.    ,  0.3333,  0.6667]])
    """
    if len(links) == 1:
        return np.ones((1, 1))
    laplacian = np.diag(links.sum(axis=1)) - links
    # The similar symmetric matrix has the same eigenvalues, and they are exactly real.
    root = np.sqrt(mass)
    smallest, largest = extreme_eigenvalues(laplacian / np.outer(root, root))
    step = 2 / (largest + smallest)
    return np.asarray(np.eye(len(links)) - step * laplacian / mass[:, None])


def extreme_eigenvalues(laplacian: Floats) -> tuple[float, float]:
    """The second smallest and the largest eigenvalue: to 14 digits, and the same on every CPU.

    A linear-algebra library rounds as its CPU does, and the last bit of a weight can change the
    last bit of a model. But an eigenvector that is wrong by 1e-14 has a Rayleigh quotient that is
    wrong only by 1e-28, if that is computed exactly, in whole numbers. The last digits are dropped,
    because eigenvalues that should be equal differ there, and the library chooses which of them
    comes first.
    """
    scale = 1 << 80
    vectors = np.linalg.eigh(laplacian).eigenvectors[:, [1, -1]]
    entries = [
        (int(i), int(j), int(Fraction(float(laplacian[i, j])) * scale))
        for i, j in zip(*laplacian.nonzero(), strict=True)
    ]
    found = []
    for vector in vectors.T.tolist():
        v = [int(x * (1 << 60)) for x in vector]
        above = sum(v[i] * entry * v[j] for i, j, entry in entries)
        mantissa, exponent = frexp(above / (scale * sum(x * x for x in v)))
        found.append(ldexp(round(mantissa * (1 << 46)), exponent - 46))
    smallest, largest = found
    return smallest, largest


def size_weighted(links: Floats, mass: Floats) -> Floats:
    """The paper's rule with links weighted by both ends' sizes.

    On a complete graph one exchange then reaches the mean, however unequal the clusters are.
    """
    return laplacian_weights(links * np.outer(mass, mass), mass)


def metropolis(links: Floats, mass: Floats) -> Floats:
    """Weights that need only the neighbours' degrees and sizes; never negative."""
    degree = links.sum(axis=1) + 1
    dst, src = links.nonzero()
    theirs = mass[src] / (mass[dst] * degree[src])
    weights = np.zeros(links.shape)
    weights[dst, src] = links[dst, src] * np.minimum(1 / degree[dst], theirs)
    np.fill_diagonal(weights, weights.diagonal() + (1 - weights.sum(axis=1)))
    return weights


GOSSIP_RULES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "paper": laplacian_weights,
    "metropolis": metropolis,
    "size-weighted": size_weighted,
}


def weights_of(rule: Callable[[Floats, Floats], Floats], links: Floats, mass: Floats) -> Floats:
    """How servers mix by a rule; servers without clients take no part and keep what they have.

    >>> weights_of(metropolis, np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]]), np.array([0.5, 0, 0.5]))
    array([[0.5, 0. , 0.5],
           [0. , 1. , 0. ],
           [0.5, 0. , 0.5]])
    """
    there = np.flatnonzero(mass > 0)
    if len(there) == len(mass):
        return rule(links, mass)
    found = np.eye(len(mass))
    found[np.ix_(there, there)] = rule(links[np.ix_(there, there)], mass[there])
    return found


def mixing_rate(weights: Floats, mass: Floats) -> float:
    """Zeta: the largest modulus among the eigenvalues other than the one of agreement.

    >>> ring = np.roll(np.eye(6), 1, axis=0) + np.roll(np.eye(6), -1, axis=0)
    >>> round(mixing_rate(laplacian_weights(ring, np.full(6, 1 / 6)), np.full(6, 1 / 6)), 6)
    0.6
    """
    key = hashlib.sha256(weights.tobytes() + mass.tobytes()).digest()
    if key not in _RATES:
        if len(_RATES) >= MOST_RATES:
            _RATES.clear()
        _RATES[key] = _mixing_rate(weights, mass)
    return _RATES[key]


# A network is made several times before a run begins, and the rate takes far longer than the rest.
_RATES: dict[bytes, float] = {}
MOST_RATES = 256


def _mixing_rate(weights: Floats, mass: Floats) -> float:
    if len(weights) > LARGE:
        rate = _sparse_rate(weights, mass)
        if rate is not None:
            return rate if rate > TOLERANCE else 0.0
    disagreement = weights - mass[None, :]  # the same spectrum without the eigenvalue 1
    root = np.sqrt(mass)
    balanced = disagreement * root[:, None] / root[None, :]
    if np.allclose(balanced, balanced.T, atol=TOLERANCE):
        rate = np.abs(np.linalg.eigvalsh((balanced + balanced.T) / 2)).max()
    else:
        rate = np.abs(np.linalg.eigvals(disagreement)).max()
    return float(rate) if rate > TOLERANCE else 0.0


def _sparse_rate(weights: Floats, mass: Floats) -> float | None:
    """The same for many servers with few links each; None where the matrix is not symmetric."""
    rows, columns = weights.nonzero()
    root = np.sqrt(mass)
    values = weights[rows, columns] * root[rows] / root[columns]
    others = weights[columns, rows] * root[columns] / root[rows]
    if not np.allclose(values, others, atol=TOLERANCE):
        return None

    def product(vector: Floats) -> Floats:
        mixed = np.bincount(rows, values * vector[columns], minlength=len(root))
        return np.asarray(mixed - root * (root @ vector))

    return largest_modulus(product, len(root))


def check_shape(weights: Floats, servers: int) -> None:
    """Refuse what is not a matrix with a row and a column for each server."""
    if weights.shape != (servers, servers):
        raise InputError(
            f"the mixing matrix must be {servers} x {servers}, one row per server, "
            f"got {' x '.join(map(str, weights.shape))}"
        )


def check_weights(weights: Floats, links: Floats, mass: Floats) -> None:
    """Refuse a matrix that would lose the weighted mean, use a missing link, or never agree."""
    servers = len(links)
    check_shape(weights, servers)
    if not np.isfinite(weights).all():
        raise InputError(
            "the mixing matrix contains a value that is not finite: give finite numbers"
        )
    sums = weights.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > 1e-6:
        columns = np.abs(weights.sum(axis=0) - 1).max() < 1e-6
        hint = "; its columns do, so give the transpose" if columns else ""
        raise InputError(
            f"row {worst} of the mixing matrix sums to {sums[worst]:.6g}, but each server's "
            f"weights (weights[dst][src]) must sum to 1{hint}"
        )
    places = weights.nonzero()
    stray = (links[places] == 0) & (places[0] != places[1])
    if stray.any():
        dst, src = (int(each[stray.argmax()]) for each in places)
        raise InputError(
            f"the mixing matrix lets server {dst} take from server {src}, but they are not "
            f"linked: set that entry to 0 or add the link"
        )
    drift = np.abs(mass @ weights - mass).max()
    if drift > 1e-6:
        raise InputError(
            f"the mixing matrix does not keep the mean weighted by cluster sizes (off by "
            f"{drift:.2g}): sizes @ weights must equal sizes; 'metropolis' builds one that does"
        )
    rate = mixing_rate(weights, mass)
    if servers > 1 and rate >= 1 - TOLERANCE:
        raise InputError(
            f"the mixing matrix has zeta {rate:.4g}, but it must be below 1, or servers never agree"
        )


def consensus_exchanges(zeta: float, spread: float, tolerance: float) -> int:
    """Exchanges after the last round until the servers agree to `tolerance`.

    >>> consensus_exchanges(0.825664548621, 1.0, 1e-6)
    73
    """
    if spread <= tolerance:
        return 0
    return 1 if zeta == 0 else ceil(log(tolerance / spread) / log(zeta))
