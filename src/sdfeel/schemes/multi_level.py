"""Multi-level local SGD: nobody waits; a slow worker just takes fewer steps.

Castiglia, Das and Patterson, "Multi-Level Local SGD for Heterogeneous Hierarchical Networks",
2021. The rule of the paper, not its published code, which loses the weighted mean.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import broadcast, collect, gossip
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Mix, View, Work


@dataclass(frozen=True)
class MultiLevelSGD:
    """In each time slot a client takes a step with a chance that is its relative speed."""

    facts: ClassVar[Facts] = Facts(True, False, "low", False, True, False)

    tau1: Annotated[int, "time slots between two averagings at the hub"] = 5
    tau2: Annotated[int, "averagings at the hub between two exchanges with neighbours"] = 1

    def __post_init__(self) -> None:
        at_least("scheme.tau1", self.tau1, 1)
        at_least("scheme.tau2", self.tau2, 1)

    def adapt(self, net: Network) -> Network:
        return net

    def lanes(self, net: Network) -> tuple[Lane, ...]:
        return (net.servers,)

    def work(self, view: View) -> Work:
        slot = float(view.step_seconds.min())  # the fastest client takes a step in every slot
        chances: Floats = slot / view.step_seconds
        steps = view.rng().binomial(self.tau1, chances)[view.net.clients]
        return Work(broadcast(view.net), self.tau1, deadline=self.tau1 * slot, each=steps)

    def mix(self, view: View, done: Ints) -> Mix:
        meets = (view.k + 1) % self.tau2 == 0
        return Mix(collect(view.net), gossip(view.net, 1) if meets else None)
