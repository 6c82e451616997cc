"""How neighbouring servers weight one another: `weights[dst, src]`, the paper's transpose.

Every rule here keeps the mean of the servers' models weighted by `mass`, whatever the graph.
Entries may be negative (a star's hub under the paper's rule); that is not a mistake.
"""

import hashlib
from collections.abc import Callable
from fractions import Fraction
from math import ceil, frexp, ldexp, log
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sdfeel.core.arrays import Bools, Floats
from sdfeel.core.errors import InputError
from sdfeel.core.lanczos import extreme_vectors, largest_modulus
from sdfeel.core.sparse import Sparse, reached

TOLERANCE = 1e-9
LARGE = 500  # with more servers, eigenvalues are found without writing out the matrix
Rule = Callable[[Floats, Floats], Floats]  # links (D, D) and masses (D,) -> weights (D, D)


def laplacian_weights(links: Floats, mass: Floats) -> Floats:
    """The paper's rule: the constant step that makes the slowest disagreement die fastest.

    >>> path = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> laplacian_weights(path, np.array([0.4, 0.2, 0.4])).round(4)
    array([[ 0.6667,  0.3333,  0.    ],
           [ 0.6667, -0.3333,  0.6667],
           [ 0.    ,  0.3333,  0.6667]])
    """
    return _laplacian_weights(Sparse.of(links), mass).dense.copy()


def _laplacian_weights(links: Sparse, mass: Floats) -> Sparse:
    if len(links) == 1:
        return Sparse.of(np.ones((1, 1)))
    servers = np.arange(len(links))
    rows, columns = (np.concatenate([each, servers]) for each in (links.rows, links.columns))
    laplacian = np.concatenate([-links.values, links.sums()])
    # The similar symmetric matrix has the same eigenvalues, and they are exactly real.
    root = np.sqrt(mass)
    similar = Sparse.at(rows, columns, laplacian / (root[rows] * root[columns]), links.shape)
    smallest, largest = _once(extreme_eigenvalues, similar, root)
    step = 2 / (largest + smallest)
    weights = (rows == columns) - step * laplacian / mass[rows]
    return Sparse.at(rows, columns, weights, links.shape)


def extreme_eigenvalues(laplacian: Sparse, still: Floats) -> tuple[float, float]:
    """The second smallest and the largest eigenvalue: to 14 digits, and the same on every CPU.

    `still` is the unit vector of the smallest, 0. A linear-algebra library rounds as its CPU does,
    and the last bit of a weight can change the last bit of a model. But an eigenvector that is
    wrong by 1e-14 has a Rayleigh quotient that is wrong only by 1e-28, if that is computed exactly,
    in whole numbers. The last digits are dropped, because eigenvalues that should be equal differ
    there, and the library chooses which of them comes first.
    """
    scale = 1 << 80
    entries = [
        (i, j, int(Fraction(value) * scale))
        for i, j, value in zip(
            laplacian.rows.tolist(),
            laplacian.columns.tolist(),
            laplacian.values.tolist(),
            strict=True,
        )
    ]
    found = []
    for vector in _extreme_vectors(laplacian, still):
        v = [int(x * (1 << 60)) for x in vector.tolist()]
        above = sum(v[i] * entry * v[j] for i, j, entry in entries)
        mantissa, exponent = frexp(above / (scale * sum(x * x for x in v)))
        found.append(ldexp(round(mantissa * (1 << 46)), exponent - 46))
    smallest, largest = found
    return smallest, largest


def _extreme_vectors(laplacian: Sparse, still: Floats) -> tuple[Floats, Floats]:
    """Unit vectors of the second smallest and of the largest eigenvalue."""
    if len(laplacian) <= LARGE:
        vectors = np.linalg.eigh(laplacian.dense).eigenvectors
        return vectors[:, 1], vectors[:, -1]
    times = multiplier(laplacian)
    diagonal = laplacian.values[laplacian.rows == laplacian.columns]
    between = float(diagonal.sum()) / (len(laplacian) - 1)  # the mean of the other eigenvalues

    def product(vector: Floats) -> Floats:
        return times(vector) + still * (between * float(still @ vector))

    apart = [each - still * (still @ each) for each in extreme_vectors(product, len(laplacian))]
    low, high = (each / np.linalg.norm(each) for each in apart)
    return low, high


def size_weighted(links: Floats, mass: Floats) -> Floats:
    """The paper's rule with links weighted by both ends' sizes.

    On a complete graph one exchange then reaches the mean, however unequal the clusters are.
    """
    return _size_weighted(Sparse.of(links), mass).dense.copy()


def _size_weighted(links: Sparse, mass: Floats) -> Sparse:
    sized = links.with_values(links.values * (mass[links.rows] * mass[links.columns]))
    return _laplacian_weights(sized, mass)


def metropolis(links: Floats, mass: Floats) -> Floats:
    """Weights that need only the neighbours' degrees and sizes; never negative."""
    return _metropolis(Sparse.of(links), mass).dense.copy()


def _metropolis(links: Sparse, mass: Floats) -> Sparse:
    degree = links.sums() + 1
    dst, src = links.rows, links.columns
    theirs = mass[src] / (mass[dst] * degree[src])
    taken = links.with_values(links.values * np.minimum(1 / degree[dst], theirs))
    own = taken.get(np.arange(len(mass)), np.arange(len(mass))) + (1 - taken.sums())
    return _with_diagonal(taken, own)


def _with_diagonal(matrix: Sparse, own: Floats) -> Sparse:
    """The same with these numbers on the diagonal."""
    off, servers = matrix.rows != matrix.columns, np.arange(len(own))
    return Sparse.at(
        np.concatenate([matrix.rows[off], servers]),
        np.concatenate([matrix.columns[off], servers]),
        np.concatenate([matrix.values[off], own]),
        matrix.shape,
    )


GOSSIP_RULES: dict[str, Rule] = {
    "paper": laplacian_weights,
    "metropolis": metropolis,
    "size-weighted": size_weighted,
}
# The same, for links that are not written out.
_SPARSE: dict[Rule, Callable[[Sparse, Floats], Sparse]] = {
    laplacian_weights: _laplacian_weights,
    metropolis: _metropolis,
    size_weighted: _size_weighted,
}


def weights_of(rule: Rule, links: "ArrayLike | Sparse", mass: Floats) -> Sparse:
    """How servers mix by a rule; servers without clients take no part and keep what they have.

    >>> two = np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]])
    >>> weights_of(metropolis, two, np.array([0.5, 0, 0.5])).dense
    array([[0.5, 0. , 0.5],
           [0. , 1. , 0. ],
           [0.5, 0. , 0.5]])
    """
    there, given = np.flatnonzero(mass > 0), Sparse.of(links)
    links, own = given.among(there), mass[there]
    if rule in _SPARSE:
        part = _SPARSE[rule](links, own)
    else:
        found = np.asarray(rule(links.dense, own), dtype=np.float64)
        check_shape(found.shape, len(own))
        part = Sparse.of(found)
    if len(there) == len(mass):
        return part
    apart = np.flatnonzero(~(mass > 0))
    rows, columns = (np.concatenate([there[e], apart]) for e in (part.rows, part.columns))
    return Sparse.at(rows, columns, np.append(part.values, np.ones(len(apart))), given.shape)


def mixing_rate(weights: "ArrayLike | Sparse", mass: Floats) -> float:
    """Zeta: the largest modulus among the eigenvalues other than that of agreement.

    >>> ring = np.roll(np.eye(6), 1, axis=0) + np.roll(np.eye(6), -1, axis=0)
    >>> round(mixing_rate(laplacian_weights(ring, np.full(6, 1 / 6)), np.full(6, 1 / 6)), 6)
    0.6
    """
    return _once(_mixing_rate, Sparse.of(weights), mass)


# A network is made several times before a run begins, and eigenvalues take longer than the rest.
_KNOWN: dict[bytes, Any] = {}
MOST_KNOWN = 256
Found = TypeVar("Found")


def _once(find: Callable[[Sparse, Floats], Found], matrix: Sparse, vector: Floats) -> Found:
    """The result of `find`, remembered for later networks with the same numbers."""
    parts = (matrix.starts, matrix.columns, matrix.values, vector)
    key = hashlib.sha256(find.__name__.encode() + b"".join(each.tobytes() for each in parts))
    if key.digest() not in _KNOWN:
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key.digest()] = find(matrix, vector)
    known: Found = _KNOWN[key.digest()]
    return known


def _mixing_rate(weights: Sparse, mass: Floats) -> float:
    if len(weights) > LARGE:
        rate = _sparse_rate(weights, mass)
        if rate is not None:
            return rate if rate > TOLERANCE else 0.0
    disagreement = weights.dense - mass[None, :]  # the same spectrum without the eigenvalue 1
    root = np.sqrt(mass)
    balanced = disagreement * root[:, None] / root[None, :]
    if np.allclose(balanced, balanced.T, atol=TOLERANCE):
        rate = np.abs(np.linalg.eigvalsh((balanced + balanced.T) / 2)).max()
    else:
        rate = np.abs(np.linalg.eigvals(disagreement)).max()
    return float(rate) if rate > TOLERANCE else 0.0


def _sparse_rate(weights: Sparse, mass: Floats) -> float | None:
    """The same for many servers with few links each; None where the matrix is not symmetric."""
    rows, columns, root = weights.rows, weights.columns, np.sqrt(mass)
    values = weights.values * root[rows] / root[columns]
    others = weights.get(columns, rows) * root[columns] / root[rows]
    if not np.allclose(values, others, atol=TOLERANCE):
        return None
    times = multiplier(weights.with_values(values))

    def product(vector: Floats) -> Floats:
        found = times(vector)
        found -= root * (root @ vector)
        return found

    return largest_modulus(product, len(root))


def multiplier(matrix: Sparse) -> Callable[[Floats], Floats]:
    """A function that multiplies by the matrix, adding up each row's terms one after another.

    Where rows have about equally many entries, all rows' first terms are computed together, then
    all second ones, and so on, which has the same bits and is several times as fast.
    """
    size, counts = len(matrix), np.diff(matrix.starts)
    slots = int(counts.max(initial=0))
    rows, columns, values = matrix.rows, matrix.columns, matrix.values
    if size * slots > 2 * len(values):
        return lambda vector: np.asarray(
            np.bincount(rows, values * vector[columns], minlength=size), dtype=np.float64
        )
    place = np.arange(len(values)) - matrix.starts[rows]
    wheres, factors = np.zeros((slots, size), dtype=np.int64), np.zeros((slots, size))
    wheres[place, rows], factors[place, rows] = columns, values

    part = np.empty(size)

    def times(vector: Floats) -> Floats:
        total = np.zeros(size)
        for where, factor in zip(wheres, factors, strict=True):
            np.take(vector, where, out=part, mode="clip")  # all places exist: no copy
            np.multiply(part, factor, out=part)
            np.add(total, part, out=total)
        return total

    return times


def check_shape(shape: tuple[int, ...], servers: int) -> None:
    """Refuse what is not a matrix with a row and a column for each server."""
    if shape != (servers, servers):
        raise InputError(
            f"the mixing matrix must be {servers} x {servers}, one row per server, "
            f"got {' x '.join(map(str, shape))}"
        )


def check_weights(given: "ArrayLike | Sparse", linked: "ArrayLike | Sparse", mass: Floats) -> None:
    """Refuse a matrix that would lose the weighted mean, use a missing link, or never agree."""
    links = Sparse.of(linked)
    servers = len(links)
    check_shape(given.shape if isinstance(given, Sparse) else np.shape(given), servers)
    weights = Sparse.of(given)
    if not np.isfinite(weights.values).all():
        raise InputError(
            "the mixing matrix contains a value that is not finite: give finite numbers"
        )
    sums = np.bincount(weights.rows, weights.values, minlength=servers)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > 1e-6:
        down = np.bincount(weights.columns, weights.values, minlength=servers)
        hint = "; its columns do, so give the transpose" if np.abs(down - 1).max() < 1e-6 else ""
        raise InputError(
            f"row {worst} of the mixing matrix sums to {sums[worst]:.6g}, but each server's "
            f"weights (weights[dst][src]) must sum to 1{hint}"
        )
    places = weights.rows, weights.columns
    stray = (links.get(*places) == 0) & (places[0] != places[1])
    if stray.any():
        dst, src = (int(each[stray.argmax()]) for each in places)
        raise InputError(
            f"the mixing matrix lets server {dst} take from server {src}, but they are not "
            f"linked: set that entry to 0 or add the link"
        )
    kept = np.bincount(weights.columns, mass[weights.rows] * weights.values, minlength=servers)
    drift = np.abs(kept - mass).max()
    if drift > 1e-6:
        raise InputError(
            f"the mixing matrix does not keep the mean weighted by cluster sizes (off by "
            f"{drift:.2g}): sizes @ weights must equal sizes; 'metropolis' builds one that does"
        )
    if servers == 1 or _surely_agree(weights, links):
        return
    rate = mixing_rate(weights, mass)
    if rate >= 1 - TOLERANCE:
        raise InputError(
            f"the mixing matrix has zeta {rate:.4g}, but it must be below 1, or servers never agree"
        )


def one_sided(weights: Sparse, mass: Floats) -> Bools:
    """(N,) which entries differ from what the other server takes in return, each times its mass.

    Without any, the weights are similar to a symmetric matrix, so their eigenvalues are real.
    """
    to, of = weights.rows, weights.columns
    there, back = mass[to] * weights.values, mass[of] * weights.get(of, to)
    return np.asarray(np.abs(there - back) > 1e-6)  # as exactly as a matrix must keep the mean


def _surely_agree(weights: Sparse, links: Sparse) -> bool:
    """Is zeta below 1 for sure, so that no eigenvalues are needed? It is if every server keeps a
    part of its own model and takes a part of every neighbour's, and nobody is cut off."""
    kept = weights.rows == weights.columns
    return bool(
        (weights.values > 0).all()
        and kept.sum() == len(links)
        and (~kept).sum() == (links.rows != links.columns).sum()
        and reached(links, 0).all()
    )


def consensus_exchanges(zeta: float, spread: float, tolerance: float) -> int:
    """Exchanges after the last round until the servers agree to `tolerance`.

    >>> consensus_exchanges(0.825664548621, 1.0, 1e-6)
    73
    """
    if spread <= tolerance:
        return 0
    return 1 if zeta == 0 else ceil(log(tolerance / spread) / log(zeta))
