"""What is left of a mixing when some of its parties are away."""

from dataclasses import replace

import numpy as np

from sdfeel.core.arrays import Bools, Ints, floats, ints
from sdfeel.core.mixing import Mixing

NOBODY = np.zeros(0, dtype=np.int64)


def nothing(like: Mixing) -> Mixing:
    """A mixing in which nobody takes part."""
    return Mixing(NOBODY, ints([0]), NOBODY, floats([]), like.via)


def of_present(
    mixing: Mixing, sources: Bools, rows: Bools | None = None, whole: bool = True
) -> Mixing:
    """The same mixing among those who are there, each row with the total that it had.

    `sources` (and `rows`: default all) say who is there, by number; shelves always are. A row
    that loses all its sources is left out, so its destination keeps what it has. Not `whole`:
    those who are there get no more than they had.

    >>> from sdfeel.core.mixing import of_rows
    >>> of_present(of_rows({0: {0: 0.5, 1: 0.25, 2: 0.25}, 1: {2: 1.0}}),
    ...            np.array([True, True, False])).dense(3).round(3)
    array([[0.667, 0.333, 0.   ]])
    """
    owners = np.repeat(np.arange(len(mixing.rows)), np.diff(mixing.starts))
    there = _who(mixing.sources, sources)
    if rows is not None:
        there &= _who(mixing.rows, rows)[owners]
    if there.all():
        return mixing
    count = len(mixing.rows)
    before = np.bincount(owners, mixing.weights, minlength=count)
    after = np.bincount(owners[there], mixing.weights[there], minlength=count)
    left = np.bincount(owners[there], minlength=count)
    kept = left > 0
    scale = np.divide(before, after, out=np.ones(count), where=(after != 0) & whole)
    relay = mixing.relay
    if relay is not None:
        relay = replace(relay, crossings=round(relay.crossings * kept.sum() / count))
    return replace(
        mixing,
        rows=mixing.rows[kept],
        starts=ints(np.concatenate([[0], np.cumsum(left[kept])])),
        sources=mixing.sources[there],
        weights=floats((mixing.weights * scale[owners])[there]),
        relay=relay,
    )


def _who(numbers: Ints, there: Bools) -> Bools:
    """Which of these are there, if shelves always are."""
    return (numbers < 0) | there[np.maximum(numbers, 0)]
