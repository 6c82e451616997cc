"""Averaging models: the one place where rows are added up, or combined by a rule.

A float32 sum depends on its order, so the order is fixed (ascending source numbers), the
accumulator is wide, and every executor adds through this file. Simulated and deployed servers
therefore agree to the last bit, and on every CPU (fused.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sdfeel.core import rules
from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError
from sdfeel.core.mixing import Mixing
from sdfeel.engine.fused import PIECE, by_hand

Terms = Sequence[tuple[float, int]]  # weights and sources


class Rows(Protocol):
    """Models by number: a matrix, a table, or whatever else knows them."""

    def __getitem__(self, n: int, /) -> Tensor: ...


COLUMNS = 1024  # numbers of every row that are sorted together, so that they stay in the cache
NOTHING = 1e-9  # a share of the votes that counts as none: rounding must not leave a liar any
EXACT, EXACT_BITS = (
    2**11,
    20,
)  # this many products of numbers of this many bits add up exactly
FAR = 2.0**10  # rows that differ this many times more than usual are added up one by one


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
                self._alone[index] = row + 0.0  # as a sum has it: no zero is negative
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
    out = torch.empty(len(mixing.rows), len(like), dtype=like.dtype)
    if mixing.rule is not None:
        for n, dst in enumerate(mixing.rows.tolist()):
            out[n] = combined(mixing, n, models[dst], models)
        return out
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
    if len(like) > PIECE:
        _mix_in_pieces(terms, models, out)
    else:
        for n, row in terms.items():
            out[n] = weighted((weight, models[source]) for weight, source in row)
    for n, same in enumerate(alike):
        if same != n:
            out[n] = out[same]
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
        return torch.from_numpy(_HOW[type(rule)](rule, _wide(messages), votes, before)).to(
            own.dtype
        )
    heard = np.isfinite(messages.sum(axis=1, dtype=np.float64)) & (votes != 0)
    if not heard.all():
        messages, votes = messages[heard], votes[heard]
    if not len(votes):
        return own.clone()
    if votes.min() < 0 and not isinstance(rule, rules.Clipped | rules.ClippedSum):
        raise _negative(rule, votes)
    return torch.from_numpy(_HOW[type(rule)](rule, messages, votes, before)).to(own.dtype)


def _negative(rule: rules.Rule, votes: Floats) -> InputError:
    return InputError(
        f"{type(rule).__name__} counts votes, but one of them is {votes.min():g}: choose mixing "
        f"weights that are not negative, for example network.mixing=metropolis"
    )


def _wide(x: Floats) -> Floats:
    return x.astype(np.float64, copy=False)


def _summed(factors: Iterable[Any], rows: Iterable[Floats], like: Floats) -> Floats:
    """The sum of factor * row, in the order given."""
    total, term = np.zeros_like(like), np.empty_like(like)
    for factor, row in zip(factors, rows, strict=True):
        np.multiply(row, factor, out=term)
        total += term
    return total


def _length(row: Floats) -> float:
    # Not by numpy's norm, whose sum depends on how many threads there are.
    return float(np.sqrt((row * row).sum()))


def _lengths(x: Floats, centre: Floats) -> Floats:
    """(N,) how far each row is from the centre."""
    gap, found = np.empty_like(centre), np.empty(len(x))
    for n, row in enumerate(x):
        np.subtract(row, centre, out=gap)
        np.multiply(gap, gap, out=gap)
        found[n] = gap.sum()
    return np.sqrt(found)


def _each_number(pick: Callable[[Floats, Floats], Floats], x: Floats, votes: Floats) -> Floats:
    """(P,) what `pick` makes of each number's (N, p) ascending values and their shares."""
    share = votes / votes.sum()
    equal = bool((votes == votes[0]).all())
    out = np.empty(x.shape[1])
    for begin in range(0, x.shape[1], COLUMNS):
        columns = np.ascontiguousarray(x[:, begin : begin + COLUMNS].T)
        if equal:
            values, shares = np.sort(columns, axis=1), share[:, None]
        elif columns.dtype == np.float32:
            order, values = _ranked(columns)
            shares = share[order].T
        else:
            order = _ascending(columns)
            values, shares = np.take_along_axis(columns, order, axis=1), share[order].T
        out[begin : begin + COLUMNS] = pick(np.ascontiguousarray(values.T), shares)
    return out


def _ranked(columns: Floats) -> tuple[Ints, Floats]:
    """The order of each row's float32 numbers, and they themselves in that order.

    A number and its place become one integer: integers are sorted fast, and the same numbers stay
    as they stand, on every CPU.
    """
    bits = (columns + np.float32(0)).view(np.uint32)  # + 0 turns -0 into 0
    negative = (bits >> 31).astype(bool)
    keys = np.where(negative, ~bits, bits | np.uint32(1 << 31)).astype(np.uint64) << np.uint64(32)
    keys |= np.arange(columns.shape[1], dtype=np.uint64)
    keys.sort(axis=1)
    order = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    bits = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(bits >> 31, bits & np.uint32(0x7FFFFFFF), ~bits)
    return order, bits.view(np.float32)


def _ascending(columns: Floats) -> Ints:
    """The order of each row's numbers; the same ones stay as they stand, on every CPU."""
    order = np.argsort(columns, axis=1)
    values = np.take_along_axis(columns, order, axis=1)
    tied = (values[:, 1:] == values[:, :-1]).any(axis=1)
    order[tied] = np.argsort(columns[tied], axis=1, kind="stable")
    return order


def _median(rule: rules.Median, x: Floats, votes: Floats, own: Floats) -> Floats:
    """The weighted median; where two values have half of the votes each, their mean."""

    def middle(values: Floats, share: Floats) -> Floats:
        ends = np.cumsum(share, axis=0)
        places = [(ends < 0.5 - NOTHING).sum(axis=0), (ends <= 0.5 + NOTHING).sum(axis=0)]
        low, high = (
            _wide(values[place[0]] if len(place) == 1 else _picked(values, place))
            for place in places
        )
        half: Floats = (low + high) / 2
        return half

    return _each_number(middle, x, votes)


def _picked(values: Floats, places: Ints) -> Floats:
    found: Floats = np.take_along_axis(values, places[None], axis=0)[0]
    return found


def _trimmed(rule: rules.Trimmed, x: Floats, votes: Floats, own: Floats) -> Floats:
    """The trimmed mean; a value at the edge counts with the part of its vote that is kept."""

    def mean_of_the_rest(values: Floats, share: Floats) -> Floats:
        ends = np.cumsum(share, axis=0)
        left = np.minimum(ends, 1 - rule.share) - np.maximum(ends - share, rule.share)
        left[left < NOTHING] = 0
        counted = np.flatnonzero(left.any(axis=1))
        total, all_left = np.zeros(values.shape[1]), np.zeros(left.shape[1])
        for n in counted.tolist():  # sums have one order
            total += left[n] * _wide(values[n])
            all_left += left[n]
        return total / all_left

    return _each_number(mean_of_the_rest, x, votes)


def _apart(x: Floats, own: Floats) -> Floats:
    """(N, N) the squared distances of rows, the same on every CPU.

    A matrix product adds in an order of its own, but sums of whole numbers below 2^53 are exact in
    any order. So every row's differences from `own` become whole numbers of 20 bits, which is
    more than enough to see who is near to whom.
    """
    found = np.zeros((len(x), len(x)))
    for begin in range(0, x.shape[1], EXACT):
        gaps = x[:, begin : begin + EXACT] - own[begin : begin + EXACT]
        unit = np.ldexp(1.0, np.frexp(_most(gaps))[1] - EXACT_BITS)
        gaps *= (1 / unit)[:, None]
        np.rint(gaps, out=gaps)
        products = (gaps @ gaps.T) * np.outer(unit, unit)
        squares = np.diag(products)
        found += squares[:, None] + squares[None, :] - 2 * products
    return np.maximum(found, 0)


def _most(gaps: Floats) -> Floats:
    """(N,) each row's largest number, whatever its sign."""
    most: Floats = np.maximum(gaps.max(axis=1), -gaps.min(axis=1))
    return most


def _krum(rule: rules.Krum, x: Floats, votes: Floats, own: Floats) -> Floats:
    near = max(1, len(x) - rule.liars - 2)
    # The nearest is the row itself.
    scores = np.sort(_apart(x, own), axis=1)[:, 1 : near + 1].sum(axis=1)
    best = np.sort(np.argsort(scores, kind="stable")[: rule.best])
    return _summed(votes[best] / votes[best].sum(), x[best], own)


def _multi_krum(rule: rules.MultiKrum, x: Floats, votes: Floats, own: Floats) -> Floats:
    return _krum(rule.among(len(x)), x, votes, own)


def _nearest(rule: rules.Nearest, x: Floats, votes: Floats, own: Floats) -> Floats:
    """Each row becomes the mean of its nearest ones and itself, then the next rule decides.

    The sums are exact as in `_apart`, on one scale for all rows but those that are far off.
    """
    count = len(x) - rules.share_of(rule.share, len(x))
    order = np.argsort(_apart(x, own), axis=1, kind="stable")[:, :count]
    near = np.zeros((len(x), len(x)))
    np.put_along_axis(near, order, 1.0, axis=1)
    bits = 52 - len(x).bit_length()
    met = np.empty_like(x)  # in the rows' own type, which is faster to sort
    for begin in range(0, x.shape[1], EXACT):
        piece = slice(begin, begin + EXACT)
        gaps = x[:, piece] - own[piece]
        most = _most(gaps)
        usual = most <= FAR * np.median(most)
        unit = np.ldexp(1.0, int(np.frexp(most[usual].max())[1]) - bits)
        whole = gaps if usual.all() else gaps * usual[:, None]
        sums = near @ np.rint(whole * (1 / unit))
        sums *= unit
        for n in np.flatnonzero(~usual).tolist():
            sums[near[:, n] > 0] += gaps[n]
        sums /= count
        sums += own[piece]
        met[:, piece] = sums
    return _HOW[type(rule.then)](rule.then, met, votes, own)


def _geometric(rule: rules.Geometric, x: Floats, votes: Floats, own: Floats) -> Floats:
    """Weiszfeld's steps; where one ends at a row, we continue as Vardi and Zhang (2000) do."""
    share = votes / votes.sum()
    centre, x = _median(rules.Median(), x, votes, own), _wide(x)
    for _ in range(rule.steps):
        gaps = _lengths(x, centre)
        here = gaps <= NOTHING * gaps.max()
        if here.all():
            break
        pulls = np.where(here, 0, share / np.where(here, 1, gaps))
        goal = _summed(pulls / pulls.sum(), x, own)
        if not here.any():
            centre = goal
            continue
        force = _length(goal - centre) * pulls.sum()
        stay = min(1.0, share[here].sum() / force) if force > 0 else 1.0
        centre = (1 - stay) * goal + stay * centre
    return centre


def _clipped(rule: rules.Clipped, x: Floats, votes: Floats, own: Floats) -> Floats:
    x, centre = _wide(x), own
    for _ in range(rule.steps):
        lengths = _lengths(x, centre)
        radius = rule.radius
        if radius is None:
            others = lengths > 0  # a server's own row must not make it deaf
            if not others.any():
                return centre
            said = lengths[others, None], np.abs(votes[others])
            radius = float(_median(rules.Median(), *said, own)[0])
        centre = _towards(x, votes, lengths, radius, centre)
    return centre


def _towards(x: Floats, votes: Floats, lengths: Floats, radius: float, own: Floats) -> Floats:
    """`own` plus the sum of differences from it, none longer than the radius."""
    total, gap = own.copy(), np.empty_like(own)
    for vote, length, row in zip(votes, lengths, x, strict=True):
        if length:
            np.subtract(row, own, out=gap)
            gap *= vote * min(1.0, radius / length)
            total += gap
    return total


def _clipped_sum(rule: rules.ClippedSum, x: Floats, votes: Floats, own: Floats) -> Floats:
    x = _wide(x)
    lengths = _lengths(x, own)
    others = lengths > 0  # our own row is at no distance, and has no say
    weights, far = votes[others], np.argsort(-lengths[others], kind="stable")
    if not len(far):
        return own
    if weights.min() < 0:
        raise _negative(rule, weights)
    lying = np.sort(weights)[::-1][: rule.liars].sum()
    enough = np.flatnonzero(np.cumsum(weights[far]) >= 2 * lying - NOTHING)
    radius = float(lengths[others][far[enough[0]]]) if len(enough) else 0.0
    return _towards(x, votes, lengths, radius, own)


def _own_rule(rule: rules.OwnRule, x: Floats, votes: Floats, own: Floats) -> Floats:
    found = np.asarray(rule.function(_wide(x), votes, own), dtype=np.float64)
    if found.shape != own.shape:
        raise InputError(
            f"a rule must give {len(own)} numbers, one for each of a model, but "
            f"{getattr(rule.function, '__name__', rule.function)} gave an array of {found.shape}"
        )
    return found


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


_HOW: dict[type[Any], Callable[[Any, Floats, Floats, Floats], Floats]] = {
    rules.Median: _median,
    rules.Trimmed: _trimmed,
    rules.Krum: _krum,
    rules.MultiKrum: _multi_krum,
    rules.Geometric: _geometric,
    rules.Clipped: _clipped,
    rules.ClippedSum: _clipped_sum,
    rules.Nearest: _nearest,
    rules.OwnRule: _own_rule,
    rules.Parts: _parts,
    rules.Squares: _squares,
    rules.Scaled: _scaled,
}
