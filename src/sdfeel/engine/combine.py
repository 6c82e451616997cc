"""Averaging models: the one place where rows are added up, or combined by a rule.

A float32 sum depends on its order, so the order is fixed (ascending source numbers), the
accumulator is wide, and every executor adds through this file. Simulated and deployed servers
therefore agree to the last bit, and on every CPU (fused.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sdfeel.core import rules
from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.mixing import Mixing
from sdfeel.engine.by_rule import by_rule, negative
from sdfeel.engine.fused import PIECE, by_hand

Terms = Sequence[tuple[float, int]]  # weights and sources
FEW = 32  # with fewer terms in all rows, it is not worthwhile to look for equal rows


class Rows(Protocol):
    """Models by number: a matrix, a table, or whatever else knows them."""

    def __getitem__(self, n: int, /) -> Tensor: ...


def add_multiple(total: Tensor, row: Tensor, weight: float) -> None:
    """Add `weight` times `row` to `total`, both float64, rounded once."""
    if torch_fuses():
        total.add_(row, alpha=weight)
    else:
        total.copy_(torch.from_numpy(by_hand(total.numpy(), row.numpy(), weight)))


@cache
def torch_fuses() -> bool:
    """Does torch round once, both in whole vectors and in the remainder?"""
    draws = torch.Generator().manual_seed(0)
    for size in (*range(1, 40), 4099):
        total, row = torch.rand(2, size, dtype=torch.float64, generator=draws)
        once = by_hand(total.numpy(), row.numpy(), 1 / 3)
        if not np.array_equal(total.add(row, alpha=1 / 3).numpy(), once):
            return False
    return True


class Sums:
    """Weighted sums that grow as their terms arrive."""

    def __init__(self, count: int, like: Tensor) -> None:
        self._size, self._dtype = like.shape[-1], like.dtype
        self._totals: list[Tensor | None] = [None] * count
        self._alone: dict[int, Tensor] = {}  # sums whose only term has the weight 1: it is exact
        self._wide = torch.empty(min(PIECE, self._size), dtype=torch.float64)

    def add(self, index: int, weight: float, row: Tensor) -> None:
        total = self._totals[index]
        if total is None:
            if weight == 1 and index not in self._alone and row.dtype == self._dtype:
                self._alone[index] = row + 0.0  # as in a sum: no zero is negative
                return
            total = self._totals[index] = torch.zeros(self._size, dtype=torch.float64)
            if index in self._alone:
                total += self._alone.pop(index)
        if self._size <= PIECE:
            add_multiple(total, self._wide.copy_(row), weight)
            return
        for begin in range(0, self._size, PIECE):
            piece = row[begin : begin + PIECE]
            # torch would widen the piece itself, but into new memory.
            wide = self._wide[: len(piece)].copy_(piece)
            add_multiple(total[begin : begin + PIECE], wide, weight)

    def rows(self) -> Tensor:
        """(count, P) the sums, rounded once to the models' own type."""
        if len(self._totals) == 1 and 0 in self._alone:
            return self._alone[0][None]
        out = torch.zeros(len(self._totals), self._size, dtype=self._dtype)
        for index, total in enumerate(self._totals):
            if total is not None:
                out[index] = total
            elif index in self._alone:
                out[index] = self._alone[index]
        return out


def weighted(terms: Iterable[tuple[float, Tensor]]) -> Tensor:
    """(P,) the sum of weight * row, in the order given."""
    sums: Sums | None = None
    for weight, row in terms:
        if sums is None:
            sums = Sums(1, row)
        sums.add(0, weight, row)
    assert sums is not None, "a sum needs at least one term"
    return sums.rows()[0]


def summed(sources: Ints, weights: Floats, models: Rows) -> Tensor:
    """(P,) the weighted sum of these rows."""
    pairs = zip(weights.tolist(), sources.tolist(), strict=True)
    return weighted((weight, models[source]) for weight, source in pairs)


def combined(mixing: Mixing, n: int, own: Tensor, models: Rows) -> Tensor:
    """(P,) row `n` of a mixing that has a rule; `own` is the row that it replaces."""
    assert mixing.rule is not None
    span = slice(mixing.starts[n], mixing.starts[n + 1])
    weights = mixing.weights[span]
    votes = weights if mixing.votes is None else mixing.votes[span]
    rows = [models[source] for source in mixing.sources[span].tolist()]
    return combine(mixing.rule, weights, votes, rows, own)


def mixed(mixing: Mixing, models: Rows) -> Tensor:
    """(R, P) one hop of `mixing`: the new models of `mixing.rows`, all reads before writes."""
    like = models[0]
    if mixing.rule is None and len(mixing.rows) == 1 and len(like) <= PIECE:
        return _mixed_into_one(mixing, models, like)
    out = torch.empty(len(mixing.rows), len(like), dtype=like.dtype)
    if mixing.rule is not None:
        for n, dst in enumerate(mixing.rows.tolist()):
            out[n] = combined(mixing, n, models[dst], models)
        return out
    if len(mixing.sources) <= FEW and len(like) <= PIECE:
        return _mixed_few(mixing, models, out)
    alike = first_alike(mixing)
    terms = {
        n: list(zip(weights.tolist(), sources.tolist(), strict=True))
        for n, (_, sources, weights) in enumerate(mixing)
        if alike[n] == n
    }
    if len(like) > PIECE:
        _mix_in_pieces(terms, models, out)
    else:
        for n, row in terms.items():
            out[n] = weighted((weight, models[source]) for weight, source in row)
    for n, same in enumerate(alike):
        if same != n:
            out[n] = out[same]
    return out


@lru_cache(maxsize=16)  # gossip does not change from round to round
def first_alike(mixing: Mixing) -> list[int]:
    """For each row, the first one with the same terms: many rows can be the same (every server
    takes the cloud's average), and each is computed once."""
    first: dict[tuple[bytes, bytes], int] = {}
    return [
        first.setdefault((sources.tobytes(), weights.tobytes()), n)
        for n, (_, sources, weights) in enumerate(mixing)
    ]


def _mixed_into_one(mixing: Mixing, models: Rows, like: Tensor) -> Tensor:
    """(1, P) the same bits as `summed` with less overhead: a cloud does this for every model."""
    total = torch.zeros(1, len(like), dtype=torch.float64)
    for weight, source in zip(mixing.weights.tolist(), mixing.sources.tolist(), strict=True):
        add_multiple(total[0], models[source].double(), weight)
    return total.to(like.dtype)


def _mixed_few(mixing: Mixing, models: Rows, out: Tensor) -> Tensor:
    """The same for a few small rows, as asynchronous servers have them, to the bit."""
    wide = {source: models[source].double() for source in set(mixing.sources.tolist())}
    total = torch.empty(out.shape[1], dtype=torch.float64)
    for n, (_, sources, weights) in enumerate(mixing):
        total.zero_()
        for weight, source in zip(weights.tolist(), sources.tolist(), strict=True):
            add_multiple(total, wide[source], weight)
        out[n].copy_(total)
    return out


def _mix_in_pieces(terms: Mapping[int, Terms], models: Rows, out: Tensor) -> None:
    """The same for large models, to the bit: piece by piece, each widened once for all rows."""
    used = {s: models[s] for s in sorted({s for row in terms.values() for _, s in row})}
    wide = {source: torch.empty(PIECE, dtype=torch.float64) for source in used}
    total = torch.empty(PIECE, dtype=torch.float64)
    for begin in range(0, out.shape[1], PIECE):
        piece = slice(begin, begin + PIECE)
        size = min(PIECE, out.shape[1] - begin)
        for source, whole in used.items():
            wide[source][:size].copy_(whole[piece])
        for n, row in terms.items():
            total.zero_()
            for weight, source in row:
                add_multiple(total, wide[source], weight)
            out[n, piece].copy_(total[:size])


def mean(weights: Iterable[float], models: Tensor) -> Tensor:
    """(P,) the weighted mean of all rows: the model that is measured and saved."""
    return weighted(zip(weights, models, strict=True))


def combine(
    rule: rules.Rule, weights: Floats, votes: Floats, rows: Sequence[Tensor], own: Tensor
) -> Tensor:
    """(P,) what a rule makes of `rows`, in float64, rounded once; `own` is the row it replaces.

    A row's message is itself times weight over vote. Under rules that count votes, a row that is
    not finite has no vote, and if no row has one, `own` stays.
    """
    scale = np.divide(weights, votes, out=np.ones(len(rows)), where=votes != 0)
    stacked = torch.stack(list(rows))
    # float32 is sorted twice as fast, and is widened before anything is added.
    messages: Floats = (stacked if stacked.dtype == torch.float32 else stacked.double()).numpy()
    if (scale != 1).any():
        messages = messages * scale[:, None]
    before = own.double().numpy()
    if not isinstance(rule, rules.Voted):
        messages = messages.astype(np.float64, copy=False)
        return torch.from_numpy(by_rule(rule, messages, votes, before)).to(own.dtype)
    heard = np.isfinite(messages).all(axis=1) & (votes != 0)
    if not heard.all():
        messages, votes = messages[heard], votes[heard]
    if not len(votes):
        return own.clone()
    if votes.min() < 0 and not isinstance(rule, rules.Clipped | rules.ClippedSum):
        raise negative(rule, votes)
    return torch.from_numpy(by_rule(rule, messages, votes, before)).to(own.dtype)
