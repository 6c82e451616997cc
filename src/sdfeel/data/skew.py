"""How unevenly the labels are spread over clients and over clusters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sdfeel.core.arrays import Ints


@dataclass(frozen=True)
class Skew:
    """Figures of one level: means over its members, each counting once."""

    largest_share: float  # of a member's most frequent class among its examples
    classes_held: float  # classes of which a member has at least one example
    distance: float  # total variation between a member's labels and all labels: 0 the same
    smallest: int  # examples of the poorest member
    largest: int  # examples of the richest


@dataclass(frozen=True)
class Unevenness:
    """The same figures for clients and for whole clusters."""

    clients: Skew
    clusters: Skew


def holdings(labels: Ints, parts: Sequence[Ints], classes: int) -> Ints:
    """(C, K) how many examples of each class every client holds.

    >>> holdings(np.array([0, 1, 1, 0]), [np.array([0, 3]), np.array([1])], 2)
    array([[2, 0],
           [0, 1]])
    """
    cells = [client * classes + labels[part] for client, part in enumerate(parts)]
    counts = np.bincount(np.concatenate(cells), minlength=len(parts) * classes)
    return counts.reshape(len(parts), classes)


def by_cluster(counts: Ints, home: Ints) -> Ints:
    """(D, K) the holdings of each server's clients together.

    >>> by_cluster(np.array([[2, 0], [0, 1], [1, 1]]), np.array([0, 1, 0]))
    array([[3, 1],
           [0, 1]])
    """
    sums = np.zeros((int(home.max()) + 1, counts.shape[1]), dtype=np.int64)
    np.add.at(sums, home, counts)
    return sums


def skew(counts: Ints) -> Skew:
    """The figures of one level, from its members' holdings; nobody may hold nothing.

    >>> skew(np.array([[4, 0], [0, 2]]))
    Skew(largest_share=1.0, classes_held=1.0, distance=0.5, smallest=2, largest=4)
    """
    sizes = counts.sum(axis=1)
    shares = counts / sizes[:, None]
    overall = counts.sum(axis=0) / counts.sum()
    return Skew(
        largest_share=float(shares.max(axis=1).mean()),
        classes_held=float((counts > 0).sum(axis=1).mean()),
        distance=float(np.abs(shares - overall).sum(axis=1).mean() / 2),
        smallest=int(sizes.min()),
        largest=int(sizes.max()),
    )


def unevenness(counts: Ints, home: Ints) -> Unevenness:
    """The figures of clients and of clusters, from the clients' holdings and servers."""
    return Unevenness(skew(counts), skew(by_cluster(counts, home)))
