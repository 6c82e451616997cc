"""Covering arrays: a few rows in which every pair of values meets.

Greedy: a row begins with a value that has most others left to meet, and takes, factor by factor,
the value that meets most of the row for the first time. Of several such rows, which differ in the
order of their factors, the best is kept. All draws are from a seed: the rows are always the same.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations, product
from random import Random

Item = tuple[str, str]  # factor, value
Pair = frozenset[Item]
Row = dict[str, str]
TRIES = 40  # rows of which the best is kept


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

    A factor none of whose values may join a row is left out of it.

    >>> len(cover({"a": "01", "b": "012"}))
    6
    """
    refused = set(never)
    left = Meetings(factors, (pair for pair in all_pairs(factors) if pair not in refused))
    foes = Meetings(factors, refused)
    return list(_rows(left, foes, Random(seed)))


class Meetings:
    """Which items are to meet which: items are numbers, and sets of items the bits of a number."""

    def __init__(self, factors: Mapping[str, Collection[str]], pairs: Iterable[Pair]) -> None:
        self.items = [(factor, value) for factor in factors for value in factors[factor]]
        number = {item: n for n, item in enumerate(self.items)}
        self.factors = [[number[f, value] for value in factors[f]] for f in factors]
        self.of = [0] * len(self.items)
        for pair in pairs:
            a, b = (number[item] for item in pair)
            self.of[a] |= 1 << b
            self.of[b] |= 1 << a

    def met(self, row: Collection[int]) -> None:
        """The items of a row need not meet again."""
        together = sum(1 << item for item in row)
        for item in row:
            self.of[item] &= ~together


def _rows(left: Meetings, foes: Meetings, random: Random) -> Iterator[Row]:
    while most := max(others.bit_count() for others in left.of):
        neediest = [n for n, others in enumerate(left.of) if others.bit_count() == most]
        tries = [_row(random.choice(neediest), left, foes, random) for _ in range(TRIES)]
        best = max(tries, key=lambda each: each[0])[1]
        left.met(best)
        yield dict(left.items[item] for item in sorted(best))


def _row(first: int, left: Meetings, foes: Meetings, random: Random) -> tuple[int, list[int]]:
    """A row around an item, and how many pairs meet in it for the first time."""
    row, together, new = [first], 1 << first, 0
    for values in random.sample(left.factors, len(left.factors)):
        if first in values:
            continue
        may = [item for item in values if not foes.of[item] & together]
        if may:
            # Where nothing is gained, the first value, which is the usual and the cheapest.
            gain, _, item = max(
                ((left.of[n] & together).bit_count(), left.of[n].bit_count(), -n) for n in may
            )
            item = -item
            row.append(item)
            together |= 1 << item
            new += gain
    return new, row
