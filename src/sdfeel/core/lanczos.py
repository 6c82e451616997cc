"""Both ends of the spectrum of a large sparse symmetric matrix, by Lanczos' method.

For eigenvectors the steps are taken twice: once to find the small tridiagonal matrix, and once more
to add up the vectors with the weights that it gives them, so that memory does not grow with the
steps.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from sdfeel.core.arrays import Floats

FIRST = 16  # steps before the first look
TINY = 1e-13  # an eigenvalue that moves less than this between two looks has arrived


def largest_modulus(product: Callable[[Floats], Floats], size: int) -> float:
    """The largest modulus among a symmetric matrix's eigenvalues; `product` multiplies by it.

    The tridiagonal matrix that the steps build has the same extreme eigenvalues, sooner or later:
    whenever the steps have doubled, they are looked at. Rounding (vectors do not stay orthogonal)
    only adds copies of eigenvalues that were found, which does no harm here.
    """
    before, vector = np.zeros(size), np.random.default_rng(0).standard_normal(size)
    vector /= np.linalg.norm(vector)
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    look, last, scale = FIRST, -1.0, 0.0
    while True:
        new = product(vector)
        diagonal.append(float(vector @ new))
        new -= diagonal[-1] * vector
        new -= (off_diagonal[-1] if off_diagonal else 0.0) * before
        length = float(np.linalg.norm(new))
        scale = max(scale, abs(diagonal[-1]), length)
        if length <= TINY * scale or len(diagonal) == look:
            found = _largest(diagonal, off_diagonal)
            if length <= TINY * scale or abs(found - last) <= TINY * found or look > 8 * size:
                return found
            look, last = 2 * look, found
        off_diagonal.append(length)
        new /= length
        before, vector = vector, new


def _largest(diagonal: list[float], off_diagonal: list[float]) -> float:
    """The largest modulus among the eigenvalues of a tridiagonal matrix."""
    ends = [0.0, *map(abs, off_diagonal[: len(diagonal) - 1]), 0.0]
    radii = [a + b for a, b in pairwise(ends)]
    bound = max(abs(a) + r for a, r in zip(diagonal, radii, strict=True))  # Gershgorin's
    squares = [b * b for b in ends[:-1]]
    above = _end(diagonal, squares, bound)
    below = _end([-a for a in diagonal], squares, bound)
    return max(above, below)


def _end(diagonal: list[float], squares: list[float], bound: float) -> float:
    """The largest eigenvalue if it is positive, or else 0: by bisection."""
    low, high = 0.0, bound
    while high - low > 1e-16 * bound:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if any_above(diagonal, squares, middle):
            low = middle
        else:
            high = middle
    return high if low else 0.0


def any_above(diagonal: list[float], squares: list[float], x: float) -> bool:
    """Does the matrix have an eigenvalue above x? (By the signs of its pivots: Sylvester's law.)"""
    pivot = 1.0
    for a, square in zip(diagonal, squares, strict=True):
        pivot = a - x - square / pivot
        if pivot > 0:
            return True
        if pivot == 0:
            pivot = -1e-300  # as good as none
    return False


Product = Callable[[Floats], Floats]
GROWTH = 1.25  # of the steps, from one look to the next
CLOSE = 1e-11  # relative to the matrix: how far an image may be from a mere stretch
TRIES = 4  # times that a vector is improved, each time from the last one


def extreme_vectors(product: Product, size: int) -> tuple[Floats, Floats]:
    """Unit vectors of the smallest and of the largest eigenvalue; `product` multiplies by the
    matrix."""
    start = np.random.default_rng(0).standard_normal(size)
    low, high = _ends(product, start, (-1, 1))
    return _improved(product, low, -1), _improved(product, high, 1)


def _improved(product: Product, vector: Floats, side: int) -> Floats:
    """The vector, improved until the matrix only stretches it, up to rounding."""
    for _ in range(TRIES):
        image = product(vector)
        stretch = float(vector @ image)
        if np.linalg.norm(image - stretch * vector) <= 100 * CLOSE * np.linalg.norm(image):
            break
        (vector,) = _ends(product, vector, (side,))
    return vector


def _ends(product: Product, start: Floats, sides: tuple[int, ...]) -> list[Floats]:
    """A vector for each side: -1 for the smallest eigenvalue, 1 for the largest."""
    found: dict[int, list[float]] = {}  # the weight of each Lanczos vector, once it is settled
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    look, most = FIRST, 8 * len(start)
    for a, b, _ in _steps(product, start):
        diagonal.append(a)
        ended = b <= 1e-13 * max(map(abs, diagonal[:2]))
        if ended or len(diagonal) >= min(look, most):
            look = int(GROWTH * look) + 1
            for side in sides:
                if side not in found:
                    parts = _tridiagonal_end(diagonal, off_diagonal, side)
                    scale = max(abs(each) for each in diagonal)
                    if ended or len(diagonal) >= most or b * abs(parts[-1]) <= CLOSE * scale:
                        found[side] = parts
            if len(found) == len(sides):
                break
        off_diagonal.append(b)
    vectors = {side: np.zeros(len(start)) for side in sides}
    longest = max(map(len, found.values()))
    for n, (_, _, vector) in enumerate(_steps(product, start)):
        for side, parts in found.items():
            if n < len(parts):
                vectors[side] += parts[n] * vector
        if n + 1 == longest:
            break
    return [vectors[side] / np.linalg.norm(vectors[side]) for side in sides]


def _steps(product: Product, start: Floats) -> Iterator[tuple[float, float, Floats]]:
    """The numbers on and next to the diagonal, and the vectors, step by step, for ever."""
    before, vector, b = np.zeros(len(start)), start / np.linalg.norm(start), 0.0
    while True:
        new = product(vector)
        a = float(vector @ new)
        new -= a * vector
        new -= b * before
        b = float(np.linalg.norm(new))
        yield a, b, vector
        before, vector = vector, new / (b or 1.0)


def _tridiagonal_end(diagonal: list[float], off_diagonal: list[float], side: int) -> list[float]:
    """The unit eigenvector of a tridiagonal matrix's smallest (-1) or largest (1) eigenvalue."""
    signed = [side * a for a in diagonal]
    squares = [0.0, *(b * b for b in off_diagonal)]
    reach = max(map(abs, off_diagonal), default=0.0)
    low, high = max(signed), max(signed) + 2 * reach  # Cauchy's and Gershgorin's bounds
    width = 4e-16 * max(abs(low), abs(high))
    while high - low > width:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if any_above(signed, squares, middle):
            low = middle
        else:
            high = middle
    return _inverse([a - high - width for a in signed], [side * b for b in off_diagonal])


def _inverse(diagonal: list[float], off_diagonal: list[float]) -> list[float]:
    """The direction in which the inverse of a negative definite tridiagonal matrix is longest."""
    count = len(diagonal)
    pivots, factors = [diagonal[0]], [0.0]
    for n in range(1, count):
        factors.append(off_diagonal[n - 1] / pivots[-1])
        pivots.append(min(diagonal[n] - factors[-1] * off_diagonal[n - 1], -1e-300))
    vector: list[float] = np.random.default_rng(1).uniform(0.5, 1.0, count).tolist()
    for _ in range(3):
        for n in range(1, count):
            vector[n] -= factors[n] * vector[n - 1]
        vector[-1] /= pivots[-1]
        for n in range(count - 2, -1, -1):
            vector[n] = vector[n] / pivots[n] - factors[n + 1] * vector[n + 1]
        length = float(np.linalg.norm(vector))
        vector = [each / length for each in vector]
    return vector
