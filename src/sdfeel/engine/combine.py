"""Averaging models: the one place where rows are added up, or combined by a rule.

A float32 sum depends on its order, so the order is fixed (ascending source numbers), the
accumulator is wide, and every executor adds through this file. Simulated and deployed servers
therefore agree to the last bit, and on every CPU (fused.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdfeel.core import rules
from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError
from sdfeel.core.mixing import Mixing
from sdfeel.engine.fused import PIECE, by_hand

Terms = Sequence[tuple[float, int]]  # weights and sources
COLUMNS = 1024  # numbers of every row that are sorted together, so that they stay in the cache
NOTHING = 1e-9  # a share of the votes that counts as none: rounding must not leave a liar any


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
        self._totals = torch.zeros(count, like.shape[-1], dtype=torch.float64)
        self._wide = torch.empty(min(PIECE, like.shape[-1]), dtype=torch.float64)
        self._dtype = like.dtype

    def add(self, index: int, weight: float, row: Tensor) -> None:
        total = self._totals[index]
        for begin in range(0, len(row), PIECE):
            piece = row[begin : begin + PIECE]
            # torch would widen the piece itself, but into new memory.
            wide = self._wide[: len(piece)].copy_(piece)
            add_multiple(total[begin : begin + PIECE], wide, weight)

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


def combined(mixing: Mixing, n: int, own: Tensor, models: Mapping[int, Tensor] | Tensor) -> Tensor:
    """(P,) row `n` of a mixing that has a rule; `own` is the row that it replaces."""
    assert mixing.rule is not None
    span = slice(mixing.starts[n], mixing.starts[n + 1])
    weights = mixing.weights[span]
    votes = weights if mixing.votes is None else mixing.votes[span]
    rows = [models[source] for source in mixing.sources[span].tolist()]
    return combine(mixing.rule, weights, votes, rows, own)


def mixed(mixing: Mixing, models: Tensor) -> Tensor:
    """(R, P) one hop of `mixing`: the new models of `mixing.rows`, all reads before writes."""
    if mixing.rule is not None:
        destinations = enumerate(mixing.rows.tolist())
        return torch.stack([combined(mixing, n, models[dst], models) for n, dst in destinations])
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
    messages: Floats = torch.stack(list(rows)).double().numpy()  # (N, P)
    if (scale != 1).any():
        messages *= scale[:, None]
    before = own.double().numpy()
    if isinstance(rule, VOTED):
        heard = np.isfinite(messages.sum(axis=1)) & (votes != 0)
        if not heard.all():
            messages, votes = messages[heard], votes[heard]
        if not len(votes):
            return own.clone()
        if votes.min() < 0 and not isinstance(rule, rules.Clipped):
            name = type(rule).__name__
            raise InputError(
                f"{name} counts votes, but one of them is {votes.min():g}: choose mixing weights "
                f"that are not negative, for example network.mixing=metropolis"
            )
    found = _HOW[type(rule)](rule, messages, votes, before)
    return torch.from_numpy(found).to(own.dtype)


def _summed(factors: Iterable[Any], rows: Iterable[Floats], like: Floats) -> Floats:
    """The sum of factor * row, in the order given."""
    total = np.zeros_like(like)
    for factor, row in zip(factors, rows, strict=True):
        total += factor * row
    return total


def _length(row: Floats) -> float:
    # Not by numpy's norm, whose sum depends on how many threads there are.
    return float(np.sqrt((row * row).sum()))


def _each_number(pick: Callable[[Floats, Floats], Floats], x: Floats, votes: Floats) -> Floats:
    """(P,) what `pick` makes of each number's (p, N) ascending values and their shares."""
    share = votes / votes.sum()
    equal = (votes == votes[0]).all()
    out = np.empty(x.shape[1])
    for begin in range(0, x.shape[1], COLUMNS):
        columns = np.ascontiguousarray(x[:, begin : begin + COLUMNS].T)
        order = None if equal else np.argsort(columns, axis=1)
        values = np.sort(columns, axis=1) if order is None else _take(columns, order)
        out[begin : begin + COLUMNS] = pick(values, share[None] if order is None else share[order])
    return out


def _take(columns: Floats, places: Ints) -> Floats:
    return np.take_along_axis(columns, places, axis=1)


def _median(rule: rules.Median, x: Floats, votes: Floats, own: Floats) -> Floats:
    """The weighted median; where two values have half of the votes each, their mean."""

    def middle(values: Floats, share: Floats) -> Floats:
        ends = np.cumsum(share, axis=1)
        low, high = (ends < 0.5 - NOTHING).sum(axis=1), (ends <= 0.5 + NOTHING).sum(axis=1)
        both = _take(values, np.stack([low, high], axis=1))
        half: Floats = (both[:, 0] + both[:, 1]) / 2
        return half

    return _each_number(middle, x, votes)


def _trimmed(rule: rules.Trimmed, x: Floats, votes: Floats, own: Floats) -> Floats:
    """The trimmed mean; a value at the edge counts with the part of its vote that is kept."""

    def mean_of_the_rest(values: Floats, share: Floats) -> Floats:
        ends = np.cumsum(share, axis=1)
        left = np.minimum(ends, 1 - rule.share) - np.maximum(ends - share, rule.share)
        left[left < NOTHING] = 0
        rest: Floats = (values * left).sum(axis=1) / left.sum(axis=1)
        return rest

    return _each_number(mean_of_the_rest, x, votes)


def _krum(rule: rules.Krum, x: Floats, votes: Floats, own: Floats) -> Floats:
    rows = torch.from_numpy(x)
    # Not by products of rows, whose differences cancel.
    apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").numpy() ** 2
    near = max(1, len(x) - rule.liars - 2)
    scores = np.sort(apart, axis=1)[:, 1 : near + 1].sum(axis=1)  # the nearest is the row itself
    best = np.sort(np.argsort(scores, kind="stable")[: rule.best])
    return _summed(votes[best] / votes[best].sum(), x[best], own)


def _geometric(rule: rules.Geometric, x: Floats, votes: Floats, own: Floats) -> Floats:
    """Weiszfeld's steps; where one ends at a row, we continue as Vardi and Zhang (2000) do."""
    share = votes / votes.sum()
    centre = _median(rules.Median(), x, votes, own)
    for _ in range(rule.steps):
        gaps = np.array([_length(row - centre) for row in x])
        here = gaps <= NOTHING * gaps.max()
        if here.all():
            break
        pulls = np.where(here, 0, share / np.where(here, 1, gaps))
        goal = _summed(pulls / pulls.sum(), x, own)
        force = _length(goal - centre) * pulls.sum()
        stay = min(1.0, share[here].sum() / force) if force > 0 else 1.0
        centre = (1 - stay) * goal + stay * centre
    return centre


def _clipped(rule: rules.Clipped, x: Floats, votes: Floats, own: Floats) -> Floats:
    total = own.copy()
    for vote, row in zip(votes, x, strict=True):
        gap = row - own
        length = _length(gap)
        total += (vote * min(1.0, rule.radius / length) if length else 0.0) * gap
    return total


def _parts(rule: rules.Parts, x: Floats, votes: Floats, own: Floats) -> Floats:
    out = _summed(votes[1:], x[1:], own)
    for begin, end in rule.kept:
        out[begin:end] = x[0, begin:end]
    return out


def _squares(rule: rules.Squares, x: Floats, votes: Floats, own: Floats) -> Floats:
    before, now = x
    moved: Floats = (now - before) ** 2
    if rule.kind == "adagrad":
        return own + moved
    if rule.kind == "yogi":
        return own - (1 - rule.decay) * moved * np.sign(own - moved)
    return rule.decay * own + (1 - rule.decay) * moved


def _scaled(rule: rules.Scaled, x: Floats, votes: Floats, own: Floats) -> Floats:
    second, first, before = x
    # Mixed moments may be negative where mixing weights are.
    stepped: Floats = before + rule.rate * first / (np.sqrt(np.maximum(second, 0)) + rule.floor)
    return stepped


VOTED = (rules.Median, rules.Trimmed, rules.Krum, rules.Geometric, rules.Clipped)
_HOW: dict[type[Any], Callable[[Any, Floats, Floats, Floats], Floats]] = {
    rules.Median: _median,
    rules.Trimmed: _trimmed,
    rules.Krum: _krum,
    rules.Geometric: _geometric,
    rules.Clipped: _clipped,
    rules.Parts: _parts,
    rules.Squares: _squares,
    rules.Scaled: _scaled,
}
