"""FogFL: fog nodes average their clients, and one of them averages the fog nodes.

Saha, Misra and Deb, "FogFL: Fog-Assisted Federated Learning for Resource-Constrained IoT
Devices", 2020.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import Relay, broadcast, collect, everyones_mean
from sdfeel.core.network import Network, distances
from sdfeel.core.scheme import Facts, Lane, Mix, View, Work


@dataclass(frozen=True)
class FogFL:
    """Edge servers average their clients; each time, one of them averages the servers."""

    facts: ClassVar[Facts] = Facts(True, True, "high", False, True, False)

    tau1: Annotated[int, "local iterations between two averagings at the edge server"] = 5
    tau2: Annotated[int, "averagings at the edge server between two global averagings"] = 1

    def __post_init__(self) -> None:
        at_least("scheme.tau1", self.tau1, 1)
        at_least("scheme.tau2", self.tau2, 1)

    def adapt(self, net: Network) -> Network:
        return net

    def lanes(self, net: Network) -> tuple[Lane, ...]:
        return (net.servers,)

    def work(self, view: View) -> Work:
        return Work(down=broadcast(view.net), steps=self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        meets = (view.k + 1) % self.tau2 == 0 and len(view.net.servers) > 1
        if not meets:
            return Mix(collect(view.net))
        # The greedy choice of the original on equal loads: whom everyone reaches soonest. On a
        # graph that is not a full mesh, models travel over several links.
        hops = distances(view.net.links)
        centre = int(hops.max(axis=1).argmin())
        relay = Relay(legs=2 * int(hops[centre].max()), crossings=2 * int(hops[centre].sum()))
        return Mix(collect(view.net), everyones_mean(view.net, "server-server", relay))
