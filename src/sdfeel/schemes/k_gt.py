"""K-GT: servers gossip the direction of their clusters beside their models.

Liu et al., "Decentralized Gradient Tracking with Local Steps", 2023; here a node is a cluster,
whose clients are corrected towards it as in SCAFFOLD.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import Mixing, of_rows
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Mix, View, Work
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates
from sdfeel.schemes.corrections import (
    DIRECTION,
    VARIATE,
    calm_gossip,
    check,
    learned,
    per_gradient,
    shift,
)
from sdfeel.schemes.d_squared import damped
from sdfeel.schemes.two_levels import TwoLevels


@dataclass(frozen=True)
class KGT(TwoLevels):
    """SD-FEEL whose servers gossip where their clusters are heading, beside their models."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        overlap=IGNORED,
        drop_unbiased="corrects by what each client really did",
        backhaul="needs its neighbours' directions as they are",
        server_optimizer="tracks how far the clients' updates move the models",
    )

    tau2: Annotated[int, "averagings at the edge server between two gossips"] = 1
    alpha: Annotated[int, "exchanges with the neighbours in one gossip"] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("scheme.alpha", self.alpha, 1)

    def adapt(self, net: Network) -> Network:
        return replace(net, shelves=(VARIATE, DIRECTION))

    def work(self, view: View) -> Work:
        check("k-gt", view.local)
        return replace(super().work(view), shift=shift(view.net))

    def mix(self, view: View, done: Ints) -> Mix:
        net, who = view.net, done.nonzero()[0]
        up = learned(net, who, per_gradient(view, who, done[who]), "client-server")
        if not self.meets(view) or len(net.present) == 1:
            return Mix(up, payload="update")
        return Mix(up, (calm_gossip(net, self.alpha), _directions(net, self.alpha)), "update")


@lru_cache(maxsize=16)
def _directions(net: Network, hops: int) -> Mixing:
    """Directions mix as models do."""
    ways, weights = net.shelf(DIRECTION.name).tolist(), damped(net.mixing)
    rows = {
        ways[d]: {ways[j]: float(weights[d, j]) for j in np.flatnonzero(weights[d]).tolist()}
        for d in net.servers
    }
    return replace(of_rows(rows), hops=hops)
