"""How many clients a sum under masks needs, in a simulation and in a deployment.

A server sees only the sum of its clients' updates, so the sum of a single client would show its
update. A sum also needs more than two thirds of the clients that were asked: otherwise, the server
could play two halves off against each other (`live/secure_sum.py`).
"""

import numpy as np

from sdfeel.core.arrays import Bools, Ints
from sdfeel.core.network import Network
from sdfeel.core.scheme import Work, only

PAIR = 2  # clients of the smallest sum


def threshold_of(clients: int) -> int:
    """How many of these clients a sum needs at least: more than two thirds.

    >>> [threshold_of(n) for n in (2, 3, 10, 100)]
    [2, 3, 7, 67]
    """
    return 2 * clients // 3 + 1


def without_small_sums(net: Network, work: Work, least: int) -> Work:
    """The same work without the clients of servers that ask fewer than `least`.

    Their updates would not be hidden as well as was agreed, so they send none.
    """
    home = net.home[work.down.rows]
    kept = np.bincount(home, minlength=len(net.links))[home] >= least
    if kept.all():
        return work
    return only(work, work.down.rows[kept])


def clients_in_sums(net: Network, asked: Ints, came: Bools) -> Bools:
    """(C,) the clients whose updates end up in a sum, given those `asked` and those that `came`.

    >>> from sdfeel.core.network import clustered
    >>> net = clustered(np.ones(5), [0, 0, 0, 1, 1], 1 - np.eye(2))
    >>> clients_in_sums(net, np.arange(5), np.array([True, True, False, True, True])).tolist()
    [False, False, False, True, True]
    """
    there = np.zeros_like(came)
    for d in np.unique(net.home[asked]):
        mine = asked[net.home[asked] == d]
        in_time = mine[came[mine]]
        there[in_time] = len(in_time) >= threshold_of(len(mine))
    return there
