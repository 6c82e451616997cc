"""SD-GT: subnets of servers track their gradients by gossip, and one another's through the cloud.

Chen, Wang and Brinton, "Taming Subnet-Drift in D2D-Enabled Fog Learning: A Hierarchical Gradient
Tracking Approach", 2024. Here a device is a cluster, whose clients are corrected towards it as in
SCAFFOLD, and the cloud averages all of them instead of drawing a few.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import Mixing, cloud_average, of_matrix
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Mix, View, Work
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates
from sdfeel.schemes.corrections import TRUST, Trust, check_trust, corrected
from sdfeel.schemes.d_squared import damped
from sdfeel.schemes.mtgc import EVERYBODY, EXACT, MOVES, SHELVES, WHOLE, averaged, met
from sdfeel.schemes.two_levels import Gossiping


@dataclass(frozen=True)
class SDGT(Gossiping):
    """Subnets of servers gossip in every round and meet in the cloud; all drift is tracked."""

    facts: ClassVar[Facts] = Facts(True, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        (*EDGE, "server-cloud"),
        overlap=IGNORED,
        peers="needs a constant mixing matrix",
        drop=EVERYBODY,
        drop_unbiased=WHOLE,
        backhaul=EXACT,
        server_optimizer=MOVES,
        fedrep="reads gradients off every iteration of an update",
    )

    tau2: Annotated[int, "gossips within the subnets between two averagings in the cloud"] = 2
    subnets: Annotated[int, "groups of servers that gossip among themselves"] = 2
    trust: Trust = TRUST

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("scheme.subnets", self.subnets, 1)
        check_trust(self.trust)

    def adapt(self, net: Network) -> Network:
        return replace(net, shelves=SHELVES)

    def work(self, view: View) -> Work:
        return corrected("sd-gt", view, super().work(view), self.trust)

    def mix(self, view: View, done: Ints) -> Mix:
        within = _within(view.net, self.subnets, self.alpha)
        stages = () if within is None else met(view, within, self.tau1, 1)
        if self.meets(view):
            stages += met(view, cloud_average(view.net), self.tau1, self.tau2)
        return averaged(view, done, *stages)


@lru_cache(maxsize=16)
def _within(net: Network, subnets: int, hops: int) -> Mixing | None:
    """Gossip among neighbours of one subnet; None where nobody has any."""
    count = len(net.servers)
    subnet = np.arange(count) * min(subnets, count) // count
    weights = np.where(subnet[:, None] == subnet, net.mixing, 0)
    weights[np.diag_indices(count)] += 1 - weights.sum(axis=1)  # what strangers would have given
    if np.array_equal(weights, np.eye(count)):
        return None
    return of_matrix(damped(weights), hops=hops)
