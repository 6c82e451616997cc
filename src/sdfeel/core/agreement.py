"""How fast servers agree when they do nothing but exchange their models."""

from dataclasses import dataclass

import numpy as np

from sdfeel.core.gossip_weights import TOLERANCE
from sdfeel.core.mixing import gossip, meeting
from sdfeel.core.network import Network
from sdfeel.core.peers import period


@dataclass(frozen=True)
class Agreement:
    """What exchanges cost, and how much of a disagreement they leave."""

    degree: int  # others that a server hears in one exchange, at most
    messages: float  # models sent in one exchange, on average
    exact: int | None  # exchanges after which all agree exactly; None: only in the limit
    left: tuple[float, ...]  # of a disagreement, after 1, 2, 3, ... exchanges: root mean square
    sent: tuple[int, ...]  # models sent by then

    def until(self, left: float) -> tuple[int, int] | None:
        """Exchanges and messages until this share of a disagreement is left; None: too many."""
        reached = [n for n, share in enumerate(self.left) if share <= left]
        return (reached[0] + 1, self.sent[reached[0]]) if reached else None


def agreement(net: Network, most: int = 400) -> Agreement:
    """How fast the servers of `net` agree when they do nothing but exchange their models."""
    exact = None if net.peers is None else period(net.peers, len(net.servers))
    if net.peers is None and net.zeta == 0:
        exact = 1
    count = exact or most
    stages = meeting(net, count) if net.peers is not None else (gossip(net, 1),) * count
    size, root = len(net.servers), np.sqrt(net.mass)
    product, left, sent, degree = np.eye(size), [], [], 0
    for stage in stages:
        product[stage.rows] = stage.dense(size) @ product
        balanced = (product - net.mass[None, :]) * root[:, None] / root[None, :]
        share = float(np.sqrt((balanced**2).sum() / max(size - 1, 1)))
        left.append(share if share > TOLERANCE else 0.0)
        sent.append(stage.crossings)
        degree = max(degree, int(np.diff(stage.starts).max(initial=1)) - 1)
    total = tuple(np.cumsum(sent).tolist())
    return Agreement(degree, float(np.mean(sent)), exact, tuple(left), total)
