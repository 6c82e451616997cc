"""How torch rounds on this machine, as a fingerprint: where two differ, so may models.

torch leaves products of matrices and convolutions to libraries that choose their code by the CPU:
by its instructions, its maker (Intel's and AMD's differ even where both have AVX-512), and settings
such as MKL_CBWR. No list of names is complete, so this asks torch itself: the same small
computations, and a hash of all their bits.
"""

import hashlib
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sdfeel.engine.base import one_thread

TYPES = (torch.float32, torch.float64)
PRODUCTS = ((1, 784, 10), (10, 64, 10), (10, 784, 128), (32, 1024, 256), (3, 7, 5), (64, 4096, 16))
CONVOLUTIONS = ((1, 6, 5, 28), (3, 32, 3, 32), (20, 50, 5, 12))  # planes in and out, kernel, side


@cache
def arithmetic() -> str:
    """SHA-256 of torch's version and of what it computes here in one thread."""
    found = hashlib.sha256(torch.__version__.encode())
    with one_thread():
        for result in _results():
            found.update(result.contiguous().numpy().data)
    return found.hexdigest()


def _results() -> Iterator[Tensor]:
    """Sums long enough to be split, and short ones; every kind of step that models take."""
    numbers = np.random.Generator(np.random.PCG64(1))

    for dtype in TYPES:

        def drawn(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            whole = torch.tensor(numbers.integers(-(2**20), 2**20, shape), dtype=dtype)
            return whole / 2**20  # exact, so the same everywhere

        for rows, terms, columns in PRODUCTS:
            yield drawn(rows, terms) @ drawn(columns, terms).T
            yield drawn(terms, rows).T @ drawn(terms, columns)
        for planes, out, kernel, side in CONVOLUTIONS:
            image = drawn(4, planes, side, side).requires_grad_()
            weight = drawn(out, planes, kernel, kernel).requires_grad_()
            outputs = functional.conv2d(image, weight)
            slopes = torch.autograd.grad(outputs.square().sum(), (image, weight))
            yield from (outputs.detach(), *slopes)
        yield drawn(1000, 77).sum(dim=0)
        yield drawn(10, 1000).mean().reshape(1)
        scores = 4 * drawn(50, 10)
        yield functional.log_softmax(scores, dim=1)
        for smooth in (torch.tanh, torch.sigmoid, functional.gelu, torch.exp):
            yield smooth(scores)
