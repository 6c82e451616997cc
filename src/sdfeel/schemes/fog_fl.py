"""FogFL: fog nodes average their clients, and one of them averages the fog nodes.

Saha, Misra and Deb, "FogFL: Fog-Assisted Federated Learning for Resource-Constrained IoT
Devices", 2020.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.mixing import Relay, collect, everyones_mean
from sdfeel.core.network import distances
from sdfeel.core.scheme import Facts, Mix, View
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates
from sdfeel.schemes.two_levels import TwoLevels


@dataclass(frozen=True)
class FogFL(TwoLevels):
    """Edge servers average their clients; each time, one of them averages the servers."""

    facts: ClassVar[Facts] = Facts(True, True, "high", False, True, False)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        mixing=IGNORED,
        overlap=IGNORED,
        changing_links="needs all servers connected at all times",
        changing_servers="needs all servers connected at all times",
    )

    tau2: Annotated[int, "averagings at the edge server between two global averagings"] = 1

    def mix(self, view: View, done: Ints) -> Mix:
        if not self.meets(view) or len(view.net.servers) == 1:
            return Mix(collect(view.net))
        # The greedy choice of the original on equal loads: whom everyone reaches soonest. On a
        # graph that is not a full mesh, models travel over several links.
        hops = distances(view.net.links)
        centre = int(hops.max(axis=1).argmin())
        relay = Relay(legs=2 * int(hops[centre].max()), crossings=2 * int(hops[centre].sum()))
        return Mix(collect(view.net), everyones_mean(view.net, "server-server", relay))
