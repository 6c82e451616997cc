"""K-GT: servers gossip the direction of their clusters along with their models.

Liu et al., "Decentralized Gradient Tracking with Local Steps", 2023; here a node is a cluster,
whose clients are corrected towards it as in SCAFFOLD.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.mixing import Mixing, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Mix, View
from sdfeel.core.tolerance import Tolerates
from sdfeel.schemes.corrections import (
    DIRECTION,
    TRACKING,
    VARIATE,
    Tracking,
    calm_gossip,
    learned,
    per_gradient,
)
from sdfeel.schemes.d_squared import damped


@dataclass(frozen=True)
class KGT(Tracking):
    """SD-FEEL whose servers gossip where their clusters are heading, along with their models."""

    tolerates: ClassVar[Tolerates] = replace(
        TRACKING,
        backhaul="needs its neighbours' directions as they are",
        server_optimizer="tracks how far the clients' updates move the models",
    )
    called: ClassVar[str] = "k-gt"
    shelves: ClassVar[tuple[Shelf, ...]] = (VARIATE, DIRECTION)

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
