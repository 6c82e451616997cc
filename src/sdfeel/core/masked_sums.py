"""Sums under masks: how many clients one needs, wherever it is made.

A server sees the sum of its clients' updates alone, so a sum of one would show an update. And it
needs more than two thirds of those whom it asked, or the server could play two halves off against
each other (`live/secure_sum.py`). The simulator and a deployment both go by this.
"""

import numpy as np

from sdfeel.core.arrays import Bools, Ints
from sdfeel.core.network import Network
from sdfeel.core.scheme import Work, only

PAIR = 2  # clients of the smallest sum


def threshold_of(clients: int) -> int:
    """The smallest that no server can play off: more than two thirds.

    >>> [threshold_of(n) for n in (2, 3, 10, 100)]
    [2, 3, 7, 67]
    """
    return 2 * clients // 3 + 1


def in_sums(net: Network, work: Work, least: int) -> Work:
    """The same work without the clients of servers that ask fewer than `least`.

    Nobody's update would be hidden there as well as was agreed, so nobody sends one.
    """
    home = net.home[work.down.rows]
    kept = np.bincount(home, minlength=len(net.links))[home] >= least
    if kept.all():
        return work
    return only(work, work.down.rows[kept])


def unmasked(net: Network, asked: Ints, came: Bools) -> Bools:
    """(C,) whose updates end in a sum, if `asked` were to take part and these `came`.

    >>> from sdfeel.core.network import clustered
    >>> net = clustered(np.ones(5), [0, 0, 0, 1, 1], 1 - np.eye(2))
    >>> unmasked(net, np.arange(5), np.array([True, True, False, True, True])).tolist()
    [False, False, False, True, True]
    """
    there = np.zeros_like(came)
    for d in np.unique(net.home[asked]):
        mine = asked[net.home[asked] == d]
        in_time = mine[came[mine]]
        there[in_time] = len(in_time) >= threshold_of(len(mine))
    return there
