"""K-GT: servers gossip the direction of their clusters beside their models.

Liu et al., "Decentralized Gradient Tracking with Local Steps", 2023; here a node is a cluster,
whose clients are corrected towards it as in SCAFFOLD.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.mixing import Mixing, of_rows
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Mix, View, Work
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates
from sdfeel.schemes.corrections import (
    DIRECTION,
    TRUST,
    VARIATE,
    Trust,
    calm_gossip,
    check_trust,
    corrected,
    learned,
    per_gradient,
)
from sdfeel.schemes.d_squared import damped
from sdfeel.schemes.two_levels import Gossiping


@dataclass(frozen=True)
class KGT(Gossiping):
    """SD-FEEL whose servers gossip where their clusters are heading, beside their models."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        overlap=IGNORED,
        peers="needs a constant mixing matrix",
        drop_unbiased="corrects by what each client really did",
        backhaul="needs its neighbours' directions as they are",
        server_optimizer="tracks how far the clients' updates move the models",
        fedrep="reads gradients off every iteration of an update",
    )

    trust: Trust = TRUST

    def __post_init__(self) -> None:
        super().__post_init__()
        check_trust(self.trust)

    def adapt(self, net: Network) -> Network:
        return replace(net, shelves=(VARIATE, DIRECTION))

    def work(self, view: View) -> Work:
        return corrected("k-gt", view, super().work(view), self.trust)

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
