"""What rules make of rows, in float64 and the same on every CPU: numbers are sorted, sums have one
order, and distances are added up in whole numbers. `combine.py` is the only caller.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from sdfeel.core import rules
from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError
from sdfeel.core.portable import total
from sdfeel.engine.native.rows import MOST_ROWS, NativeRows, rows_for

COLUMNS = 1024  # numbers of every row that are worked on together, so that they stay in the cache
NOTHING = 1e-9  # a smaller share of the votes counts as none: rounding must leave no vote to a liar
EXACT, EXACT_BITS = 2**11, 20  # this many products of numbers of this many bits add up exactly
FAR = 2.0**10  # rows that differ this many times more than usual are added up one by one


def by_rule(rule: rules.Rule, x: Floats, votes: Floats, own: Floats) -> Floats:
    """(P,) what a rule makes of messages (N, P) and their votes (N,); `own` is what it replaces."""
    return _HOW[type(rule)](rule, x, votes, own)


def negative(rule: rules.Rule, votes: Floats) -> InputError:
    """The refusal of a vote below zero, where votes are counted."""
    return InputError(
        f"{type(rule).__name__} counts votes, but one of them is {votes.min():g}: choose mixing "
        f"weights that are not negative, for example network.mixing=metropolis"
    )


def _few_rows(x: Floats) -> NativeRows | None:
    """The functions in C++, unless there are too many rows for them."""
    return rows_for(x) if len(x) <= MOST_ROWS else None


def _wide(x: Floats) -> Floats:
    return x.astype(np.float64, copy=False)


def _summed(factors: Floats, x: Floats) -> Floats:
    """(P,) the sum of factor * row, in the order of the rows, added up in float64."""
    fast = rows_for(x)
    if fast is not None:
        return fast.summed(factors, x)
    total, term = np.zeros(x.shape[1]), np.empty(x.shape[1])
    for factor, row in zip(factors, x, strict=True):
        np.multiply(row, factor, out=term, dtype=np.float64)
        total += term
    return total


def _added(terms: Floats) -> Floats:
    """(p,) the sum of (N, p) rows, one after the other."""
    if terms.shape[1] > 1:
        added: Floats = np.add.reduce(terms, axis=0, initial=0.0)
        return added
    total = np.zeros(1)  # numpy would add a single column in pairs
    for row in terms:
        total += row
    return total


def _length(row: Floats) -> float:
    # Not by numpy's norm, whose sum depends on how many threads there are.
    return float(np.sqrt(total(row * row)))


def _lengths(x: Floats, centre: Floats) -> Floats:
    """(N,) how far each row is from the centre."""
    fast = rows_for(x)
    if fast is not None:
        return np.sqrt(fast.squares(x, centre))
    gap, found = np.empty_like(centre), np.empty(len(x))
    for n, row in enumerate(x):
        np.subtract(row, centre, out=gap)
        np.multiply(gap, gap, out=gap)
        found[n] = total(gap)
    return np.sqrt(found)


def _each_number(pick: Callable[[Floats, Floats], Floats], x: Floats, votes: Floats) -> Floats:
    """(P,) what `pick` makes of each number's (N, p) ascending values and their shares."""
    share, equal = _shares(votes)
    out = np.empty(x.shape[1])
    for begin in range(0, x.shape[1], COLUMNS):
        piece = slice(begin, begin + COLUMNS)
        out[piece] = pick(*_in_order(x[:, piece], share, equal))
    return out


def _shares(votes: Floats) -> tuple[Floats, bool]:
    """(N,) each one's share of the votes, and whether all are equal."""
    return votes / votes.sum(), bool((votes == votes[0]).all())


def _in_order(x: Floats, share: Floats, equal: bool) -> tuple[Floats, Floats]:
    """(N, p) each number's values, ascending, and the shares that belong there."""
    columns = np.ascontiguousarray(x.T)
    if equal:
        keys = _turned(columns.view(np.int32 if columns.dtype == np.float32 else np.int64))
        keys.sort(axis=1)
        return np.ascontiguousarray(_turned(keys).view(columns.dtype).T), share[:, None]
    if columns.dtype == np.float32:
        return _ranked(columns, share)
    order = _ascending(columns)
    return np.take_along_axis(columns, order, axis=1).T, share[order].T


def _turned(bits: Ints) -> Ints:
    """Turn the bits of floats into integers in the same order, -0 before 0; or turn them back."""
    info = np.iinfo(bits.dtype)
    turned: Ints = bits ^ ((bits >> (info.bits - 1)) & info.max)
    return turned


def _ranked(columns: Floats, share: Floats) -> tuple[Floats, Floats]:
    """(N, p) each row's numbers in ascending order, in float64, and the shares that belong there.

    A float32 and its place become one integer: integers are sorted fast, and equal numbers keep
    their order on every CPU. A float32 that is widened leaves 29 bits for its place.
    """
    places = (1 << len(share).bit_length()) - 1
    magnitude = np.int64(2**63 - 1)
    keys = (columns.astype(np.float64) + 0.0).view(np.int64)  # + 0 turns -0 into 0
    flips = keys >> 63
    flips &= magnitude  # the larger a negative number's magnitude, the smaller it is
    keys ^= flips
    keys &= ~places
    keys |= np.arange(len(share))
    keys.sort(axis=1)
    keys = np.ascontiguousarray(keys.T)
    shares = share.take(keys & places)
    keys &= ~places
    flips = keys >> 63
    flips &= magnitude & ~places
    keys ^= flips
    return keys.view(np.float64), shares


def _ascending(columns: Floats) -> Ints:
    """The ascending order of each row's numbers; equal ones keep theirs on every CPU."""
    order = np.argsort(columns, axis=1)
    values = np.take_along_axis(columns, order, axis=1)
    tied = (values[:, 1:] == values[:, :-1]).any(axis=1)
    order[tied] = np.argsort(columns[tied], axis=1, kind="stable")
    return order


def _running(share: Floats) -> Floats:
    """(N, p) the sum of each row and all before it."""
    ends = np.empty(share.shape)
    ends[0] = share[0]
    for n in range(1, len(share)):
        np.add(ends[n - 1], share[n], out=ends[n])
    return ends


def _median(rule: rules.Median, x: Floats, votes: Floats, own: Floats) -> Floats:
    """The weighted median; where two values have half of the votes each, their mean."""

    fast = _few_rows(x)
    if fast is not None:
        return fast.median(x, *_shares(votes), NOTHING)

    def middle(values: Floats, share: Floats) -> Floats:
        ends = _running(share)
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

    fast = _few_rows(x)
    if fast is not None:
        return fast.trimmed(x, *_shares(votes), NOTHING, rule.share)

    def mean_of_the_rest(values: Floats, share: Floats) -> Floats:
        ends = _running(share)
        left = np.minimum(ends, 1 - rule.share)
        ends -= share
        left -= np.maximum(ends, rule.share, out=ends)
        left[left < NOTHING] = 0
        counted = np.flatnonzero(left.any(axis=1))
        first, last = counted[0], counted[-1] + 1
        left = left[first:last]
        return _added(left * values[first:last]) / _added(left)

    return _each_number(mean_of_the_rest, x, votes)


def _apart(x: Floats, own: Floats) -> tuple[Floats, list[Floats]]:
    """(N, N) the squared distances of rows, the same on every CPU; by piece, `_most` of each row.

    A matrix product adds in an order of its own, but sums of whole numbers below 2^53 are exact in
    any order. So every row's differences from `own` become whole numbers of 20 bits, which is
    more than enough to see who is near to whom.
    """
    found, mosts = np.zeros((len(x), len(x))), []
    for piece in _pieces(x):
        mosts.append(_most(x, *piece, own))
        unit = np.ldexp(1.0, np.frexp(mosts[-1])[1] - EXACT_BITS)
        products = _products(x, *piece, own, 1 / unit)
        products *= unit[:, None] * unit
        squares = products.diagonal().copy()
        products *= -2
        products += squares[:, None] + squares
        found += products
    return np.maximum(found, 0, out=found), mosts


def _pieces(x: Floats) -> Iterator[tuple[int, int]]:
    """(begin, end) of columns whose products add up exactly."""
    for begin in range(0, x.shape[1], EXACT):
        yield begin, min(begin + EXACT, x.shape[1])


def _most(x: Floats, begin: int, end: int, own: Floats) -> Floats:
    """(N,) each row's largest difference from `own` in some columns, whatever its sign."""
    fast = rows_for(x)
    if fast is not None:
        return fast.most(x, begin, end, own)
    gaps = x[:, begin:end] - own[begin:end]
    most: Floats = np.maximum(gaps.max(axis=1), -gaps.min(axis=1))
    return most


def _products(x: Floats, begin: int, end: int, own: Floats, factors: Floats) -> Floats:
    """(N, N) the products of the differences times each row's factor, in whole numbers."""
    fast = rows_for(x)
    if fast is not None:
        return fast.products(x, begin, end, own, factors)
    gaps = x[:, begin:end] - own[begin:end]
    gaps *= factors[:, None]
    np.rint(gaps, out=gaps)
    return _matrix_product(gaps, gaps.T)


def _matrix_product(a: Floats, b: Floats) -> Floats:
    """The matrix product, by as many threads as torch may use: numpy's library would take all
    cores, even busy ones, and wait for the slowest."""
    found: Floats = (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()
    return found


def _krum(rule: rules.Krum, x: Floats, votes: Floats, own: Floats) -> Floats:
    near = max(1, len(x) - rule.liars - 2)
    # The nearest is the row itself.
    scores = np.sort(_apart(x, own)[0], axis=1)[:, 1 : near + 1].sum(axis=1)
    best = np.sort(np.argsort(scores, kind="stable")[: rule.best])
    return _summed(votes[best] / votes[best].sum(), x[best])


def _multi_krum(rule: rules.MultiKrum, x: Floats, votes: Floats, own: Floats) -> Floats:
    return _krum(rule.among(len(x)), x, votes, own)


def _nearest(rule: rules.Nearest, x: Floats, votes: Floats, own: Floats) -> Floats:
    """Each row becomes the mean of its nearest ones and itself, then the next rule decides.

    The sums are exact as in `_apart`, on one scale for all rows but those that are far off.
    """
    count = len(x) - rules.share_of(rule.share, len(x))
    apart, mosts = _apart(x, own)
    order = np.argsort(apart, axis=1, kind="stable")
    near = np.zeros((len(x), len(x)))
    np.put_along_axis(near, order[:, :count], 1.0, axis=1)
    far = np.ascontiguousarray(order[:, count:])
    bits = 52 - len(x).bit_length()
    met = np.empty_like(x)  # in the rows' own type, which is faster to sort
    fast = _few_rows(x)
    for piece, most in zip(_pieces(x), mosts, strict=True):
        usual = most <= FAR * _middle(most)
        unit = float(np.ldexp(1.0, int(np.frexp(most[usual].max())[1]) - bits))
        if fast is not None:
            factors = np.where(usual, 1 / unit, 0.0)
            fast.met(x, *piece, own, factors, near, far, unit, met)
            continue
        gaps = x[:, slice(*piece)] - own[slice(*piece)]
        whole = gaps if usual.all() else gaps * usual[:, None]
        sums = _matrix_product(near, np.rint(whole * (1 / unit)))
        sums *= unit
        for n in np.flatnonzero(~usual).tolist():
            sums[near[:, n] > 0] += gaps[n]
        sums /= count
        sums += own[slice(*piece)]
        met[:, slice(*piece)] = sums
    return _HOW[type(rule.then)](rule.then, met, votes, own)


def _middle(values: Floats) -> float:
    """The median of a few numbers; NumPy's takes longer."""
    inner = np.sort(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return float((inner[0] + inner[-1]) / 2)


def _geometric(rule: rules.Geometric, x: Floats, votes: Floats, own: Floats) -> Floats:
    """Weiszfeld's steps; where one ends at a row, we continue as Vardi and Zhang (2000) do."""
    share = votes / votes.sum()
    centre = _median(rules.Median(), x, votes, own)
    for _ in range(rule.steps):
        gaps = _lengths(x, centre)
        here = gaps <= NOTHING * gaps.max()
        if here.all():
            break
        pulls = np.where(here, 0, share / np.where(here, 1, gaps))
        goal = _summed(pulls / pulls.sum(), x)
        if not here.any():
            centre = goal
            continue
        force = _length(goal - centre) * pulls.sum()
        stay = min(1.0, share[here].sum() / force) if force > 0 else 1.0
        centre = (1 - stay) * goal + stay * centre
    return centre


def _clipped(rule: rules.Clipped, x: Floats, votes: Floats, own: Floats) -> Floats:
    centre = own
    for _ in range(rule.steps):
        lengths = _lengths(x, centre)
        radius = rule.radius
        if radius is None:
            others = lengths > 0  # or a server's own row would shut out the others
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
    lengths = _lengths(x, own)
    others = lengths > 0  # our own row is at no distance, and has no say
    weights, far = votes[others], np.argsort(-lengths[others], kind="stable")
    if not len(far):
        return own
    if weights.min() < 0:
        raise negative(rule, weights)
    lying = np.sort(weights)[::-1][: rule.liars].sum()
    enough = np.flatnonzero(np.cumsum(weights[far]) >= 2 * lying - NOTHING)
    radius = float(lengths[others][far[enough[0]]]) if len(enough) else 0.0
    return _towards(x, votes, lengths, radius, own)


def _own_rule(rule: rules.OwnRule, x: Floats, votes: Floats, own: Floats) -> Floats:
    found = np.asarray(rule.function(_wide(x), votes, own), dtype=np.float64)
    if found.shape != own.shape:
        raise InputError(
            f"a rule must give {len(own)} numbers, as many as a model has, but "
            f"{getattr(rule.function, '__name__', rule.function)} gave an array of {found.shape}"
        )
    return found


def _parts(rule: rules.Parts, x: Floats, votes: Floats, own: Floats) -> Floats:
    out = _summed(votes[1:], x[1:])
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
