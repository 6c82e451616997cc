"""Averaging models: the one place where rows are added up.

A float32 sum depends on its order, so the order is fixed (ascending source numbers), the
accumulator is wide, and every executor adds through this file. Simulated and deployed servers
therefore agree to the last bit.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from sdfeel.core.mixing import Mixing

PIECE = 1 << 14  # numbers of a model, all whole vectors: what is left over may be rounded otherwise
Terms = Sequence[tuple[float, int]]  # weights and sources


class Sums:
    """Weighted sums that grow as their terms arrive."""

    def __init__(self, count: int, like: Tensor) -> None:
        self._totals = torch.zeros(count, like.shape[-1], dtype=torch.float64)
        self._wide = torch.empty(like.shape[-1], dtype=torch.float64)
        self._dtype = like.dtype

    def add(self, index: int, weight: float, row: Tensor) -> None:
        # torch would widen the row itself, into new memory: for a large model five times slower.
        self._wide.copy_(row)
        self._totals[index].add_(self._wide, alpha=weight)

    def rows(self) -> Tensor:
        """(count, P) the sums, rounded once to the models' own type."""
        return self._totals.to(self._dtype)


def weighted(terms: Iterable[tuple[float, Tensor]]) -> Tensor:
    """(P,) the sum of weight * row, in the order given."""
    sums: Sums | None = None
    for weight, row in terms:
        if sums is None:
            sums = Sums(1, row)
        sums.add(0, weight, row)
    assert sums is not None, "a sum needs at least one term"
    return sums.rows()[0]


def mixed(mixing: Mixing, models: Tensor) -> Tensor:
    """(R, P) one hop of `mixing`: the new models of `mixing.rows`, all reads before writes."""
    # Many rows can be the same (every server takes the cloud's average): compute each once.
    first: dict[tuple[bytes, bytes], int] = {}
    alike = [
        first.setdefault((sources.tobytes(), weights.tobytes()), n)
        for n, (_, sources, weights) in enumerate(mixing)
    ]
    terms = {
        n: list(zip(weights.tolist(), sources.tolist(), strict=True))
        for n, (_, sources, weights) in enumerate(mixing)
        if alike[n] == n
    }
    out = torch.empty(len(mixing.rows), models.shape[1], dtype=models.dtype)
    if models.shape[1] > PIECE:
        _mix_in_pieces(terms, models, out)
    else:
        for n, row in terms.items():
            out[n] = weighted((weight, models[source]) for weight, source in row)
    for n, same in enumerate(alike):
        if same != n:
            out[n] = out[same]
    return out


def _mix_in_pieces(terms: Mapping[int, Terms], models: Tensor, out: Tensor) -> None:
    """The same for large models, to the bit: piece by piece, each widened once for all rows."""
    used = sorted({source for row in terms.values() for _, source in row})
    wide = {source: torch.empty(PIECE, dtype=torch.float64) for source in used}
    total = torch.empty(PIECE, dtype=torch.float64)
    for begin in range(0, models.shape[1], PIECE):
        piece = slice(begin, begin + PIECE)
        size = min(PIECE, models.shape[1] - begin)
        for source in used:
            wide[source][:size].copy_(models[source, piece])
        for n, row in terms.items():
            total.zero_()
            for weight, source in row:
                total.add_(wide[source], alpha=weight)
            out[n, piece].copy_(total[:size])


def mean(weights: Iterable[float], models: Tensor) -> Tensor:
    """(P,) the weighted mean of all rows: the model that is measured and handed out."""
    return weighted(zip(weights, models, strict=True))
