"""HierFAVG: edge servers average their clients, a cloud averages the edge servers.

Liu et al., "Client-Edge-Cloud Hierarchical Federated Learning", 2020.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.mixing import cloud_average, collect
from sdfeel.core.scheme import Facts, Mix, Terms, View
from sdfeel.core.tolerance import EDGE_AND_CLOUD, IGNORED, Tolerates
from sdfeel.schemes.two_levels import TwoLevels


@dataclass(frozen=True)
class HierFavg(TwoLevels):
    """Edge servers average their clients; a cloud averages the edge servers."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(EDGE_AND_CLOUD, overlap=IGNORED)

    tau2: Annotated[int, "averagings at the edge server between two averagings in the cloud"] = 1

    @property
    def terms(self) -> Terms:
        return Terms(1, self.tau1, self.tau2)

    def mix(self, view: View, done: Ints) -> Mix:
        return Mix(
            collect(view.net, view.drawn), cloud_average(view.net) if self.meets(view) else None
        )
