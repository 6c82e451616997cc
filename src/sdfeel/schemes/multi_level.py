"""Multi-level local SGD: nobody waits; a slow worker just takes fewer steps.

Castiglia, Das and Patterson, "Multi-Level Local SGD for Heterogeneous Hierarchical Networks",
2021. This is the paper's rule, not its published code, which loses the weighted mean.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.mixing import broadcast, collect, meeting
from sdfeel.core.scheme import Facts, Mix, View, Work
from sdfeel.core.tolerance import AMONG_SERVERS, EDGE, IGNORED, Tolerates
from sdfeel.schemes.two_levels import TwoLevels


@dataclass(frozen=True)
class MultiLevelSGD(TwoLevels):
    """In each time slot a client takes a step with a chance equal to its relative speed."""

    facts: ClassVar[Facts] = Facts(True, False, "low", False, True, False)
    tolerates: ClassVar[Tolerates] = Tolerates(EDGE, overlap=IGNORED)

    tau1: Annotated[int, "time slots between two averagings at the hub"] = 5
    tau2: Annotated[
        int, "averagings at the hub between two exchanges with neighbours", AMONG_SERVERS
    ] = 1

    def work(self, view: View) -> Work:
        slot = float(view.step_seconds.min())  # the fastest client takes a step in every slot
        chances: Floats = slot / view.step_seconds
        steps = view.rng().binomial(self.tau1, chances)[view.clients]
        down = broadcast(view.net, view.drawn)
        return Work(down, self.tau1, each=steps)  # a slow one's steps take longer

    def mix(self, view: View, done: Ints) -> Mix:
        across = meeting(view.net, 1, view.k // self.tau2) if self.meets(view) else None
        return Mix(collect(view.net, view.drawn), across)
