"""SD-FEEL: edge servers average their clients and gossip with their neighbours.

Sun et al., "Semi-Decentralized Federated Edge Learning With Data and Device Heterogeneity".
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import broadcast, collect, gossip
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Mix, View, Work


@dataclass(frozen=True)
class SDFeel:
    """Edge servers average their clients and gossip with their neighbours; no cloud."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)

    tau1: Annotated[int, "local iterations between two averagings at the edge server"] = 5
    tau2: Annotated[int, "averagings at the edge server between two gossips"] = 1
    alpha: Annotated[int, "exchanges with the neighbours in one gossip"] = 1

    def __post_init__(self) -> None:
        at_least("scheme.tau1", self.tau1, 1)
        at_least("scheme.tau2", self.tau2, 1)
        at_least("scheme.alpha", self.alpha, 1)

    def adapt(self, net: Network) -> Network:
        return net

    def lanes(self, net: Network) -> tuple[Lane, ...]:
        return (net.servers,)

    def work(self, view: View) -> Work:
        return Work(down=broadcast(view.net), steps=self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        meets = (view.k + 1) % self.tau2 == 0
        return Mix(
            up=collect(view.net),
            across=gossip(view.net, self.alpha) if meets else None,
        )
