"""SD-FEEL: edge servers average their clients and gossip with their neighbours.

Sun et al., "Semi-Decentralized Federated Edge Learning With Data and Device Heterogeneity".
"""

from dataclasses import dataclass
from typing import ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.mixing import collect, meeting
from sdfeel.core.scheme import Facts, Mix, Terms, View
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates
from sdfeel.schemes.two_levels import Gossiping


@dataclass(frozen=True)
class SDFeel(Gossiping):
    """Edge servers average their clients and gossip with their neighbours; no cloud."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(EDGE, overlap=IGNORED)

    @property
    def terms(self) -> Terms:
        return Terms(1, self.tau1, self.tau2, self.alpha)

    def mix(self, view: View, done: Ints) -> Mix:
        up = collect(view.net, view.drawn)
        if not self.meets(view):
            return Mix(up)
        return Mix(up, meeting(view.net, self.alpha, view.k // self.tau2))
