"""SD-FEEL: edge servers average their clients and gossip with their neighbours.

Sun et al., "Semi-Decentralized Federated Edge Learning With Data and Device Heterogeneity".
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import collect, gossip
from sdfeel.core.scheme import Facts, Mix, Terms, View
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates
from sdfeel.schemes.two_levels import TwoLevels


@dataclass(frozen=True)
class SDFeel(TwoLevels):
    """Edge servers average their clients and gossip with their neighbours; no cloud."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(EDGE, overlap=IGNORED)

    tau2: Annotated[int, "averagings at the edge server between two gossips"] = 1
    alpha: Annotated[int, "exchanges with the neighbours in one gossip"] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("scheme.alpha", self.alpha, 1)

    @property
    def terms(self) -> Terms:
        return Terms(1, self.tau1, self.tau2, self.alpha)

    def mix(self, view: View, done: Ints) -> Mix:
        meets = self.meets(view)
        return Mix(collect(view.net), gossip(view.net, self.alpha) if meets else None)
