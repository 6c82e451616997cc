"""HierFAVG: edge servers average their clients, a cloud averages the edge servers.

Liu et al., "Client-Edge-Cloud Hierarchical Federated Learning", 2020.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import broadcast, cloud_average, collect
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Mix, View, Work


@dataclass(frozen=True)
class HierFavg:
    """Edge servers average their clients; a cloud averages the edge servers."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)

    tau1: Annotated[int, "local iterations between two averagings at the edge server"] = 5
    tau2: Annotated[int, "averagings at the edge server between two averagings in the cloud"] = 1

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
        meets = (view.k + 1) % self.tau2 == 0
        return Mix(up=collect(view.net), across=cloud_average(view.net) if meets else None)
