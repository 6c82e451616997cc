"""Covering arrays: a few rows in which every pair of values meets.

Greedy: every row begins with a pair that has not met yet and takes, factor by factor, the value
that meets most others for the first time. The order is drawn from a seed, so it is always the same.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, product
from random import Random

Item = tuple[str, str]  # factor, value
Pair = frozenset[Item]
Row = dict[str, str]


def all_pairs(factors: Mapping[str, Iterable[str]]) -> list[Pair]:
    """Every two values of different factors."""
    return [
        frozenset({(f, a), (g, b)})
        for f, g in combinations(factors, 2)
        for a, b in product(factors[f], factors[g])
    ]


def pairs_of(row: Mapping[str, str]) -> set[Pair]:
    """The pairs that meet in a row."""
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def cover(
    factors: Mapping[str, Collection[str]], never: Collection[Pair] = (), seed: int = 0
) -> list[Row]:
    """Rows in which every pair meets that is not in `never`, and none that is.

    >>> cover({"a": "01", "b": "01", "c": "01"}, seed=1)[0]
    {'a': '0', 'b': '0', 'c': '0'}
    >>> len(cover({"a": "01", "b": "01", "c": "01"}))
    4
    """
    random, refused = Random(seed), set(never)
    left = dict.fromkeys(pair for pair in all_pairs(factors) if pair not in refused)
    rows = []
    while left:
        first = next(iter(left))
        row = _filled(dict(sorted(first)), factors, left, refused, random)
        rows.append(row)
        for pair in pairs_of(row):
            left.pop(pair, None)
    return rows


def _filled(
    row: Row,
    factors: Mapping[str, Collection[str]],
    left: Mapping[Pair, None],
    refused: set[Pair],
    random: Random,
) -> Row:
    """The row with all factors; a factor none of whose values may join is left out."""
    others: Sequence[str] = [factor for factor in factors if factor not in row]
    for factor in random.sample(others, len(others)):
        best, most = None, -1
        for value in factors[factor]:
            met = {frozenset({(factor, value), item}) for item in row.items()}
            new = sum(pair in left for pair in met)
            if new > most and not met & refused:
                best, most = value, new
        if best is not None:
            row[factor] = best
    return {factor: row[factor] for factor in factors if factor in row}
