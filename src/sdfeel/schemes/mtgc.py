"""MTGC: clients are corrected towards their cluster, and clusters towards everyone.

Fang et al., "Hierarchical Federated Learning with Multi-Timescale Gradient Correction", 2024. The
variant without a cloud, whose clusters are corrected by what gossip does to them, is ours.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import Mixing, cloud_average, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Mix, View, Work
from sdfeel.core.tolerance import EDGE, EDGE_AND_CLOUD, IGNORED, Tolerates
from sdfeel.schemes.corrections import (
    DIRECTION,
    VARIATE,
    calm_gossip,
    check,
    learned,
    per_gradient,
    per_round,
    shift,
)
from sdfeel.schemes.two_levels import TwoLevels

BEFORE = Shelf("before", "server")  # the cluster's model before the servers met
WHOLE = "corrects by what each client really did"
EVERYBODY = "needs every cluster in every round"
EXACT = "corrects by what gossip did to a model"
MOVES = "corrects by how far the clients' updates moved the models"


@dataclass(frozen=True)
class Mtgc(TwoLevels):
    """HierFAVG whose clients are corrected towards their cluster, and clusters towards all."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE_AND_CLOUD,
        overlap=IGNORED,
        drop=EVERYBODY,
        drop_unbiased=WHOLE,
        server_optimizer=MOVES,
    )

    called: ClassVar[str] = "mtgc"

    tau2: Annotated[int, "averagings at the edge server between two averagings in the cloud"] = 1

    def adapt(self, net: Network) -> Network:
        return replace(net, shelves=(VARIATE, DIRECTION, BEFORE))

    def work(self, view: View) -> Work:
        check(self.called, view.local)
        return replace(super().work(view), shift=shift(view.net))

    def mix(self, view: View, done: Ints) -> Mix:
        net, who = view.net, done.nonzero()[0]
        up = learned(net, who, per_gradient(view, who, done[who]), "client-server")
        if not self.meets(view) or len(net.present) == 1:
            return Mix(up, payload="update")
        return Mix(up, self._corrected(view), "update")

    def _meeting(self, net: Network) -> Mixing:
        return cloud_average(net)

    def _corrected(self, view: View) -> tuple[Mixing, Mixing, Mixing]:
        """Keep the models, let the servers meet, and turn what that changed into a correction."""
        net, scale = view.net, per_round(view, self.tau1) / self.tau2
        before, ways = net.shelf(BEFORE.name).tolist(), net.shelf(DIRECTION.name).tolist()
        keep = of_rows({before[d]: {d: 1.0} for d in net.servers})
        correct = {ways[d]: {ways[d]: 1.0, before[d]: scale, d: -scale} for d in net.servers}
        return keep, self._meeting(net), of_rows(correct)


@dataclass(frozen=True)
class GossipMtgc(Mtgc):
    """SD-FEEL whose clients are corrected towards their cluster, and clusters towards all."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        overlap=IGNORED,
        drop=EVERYBODY,
        drop_unbiased=WHOLE,
        backhaul=EXACT,
        server_optimizer=MOVES,
    )

    called: ClassVar[str] = "mtgc-gossip"

    tau2: Annotated[int, "averagings at the edge server between two gossips"] = 1
    alpha: Annotated[int, "exchanges with the neighbours in one gossip"] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("scheme.alpha", self.alpha, 1)

    def _meeting(self, net: Network) -> Mixing:
        return calm_gossip(net, self.alpha)
