"""MTGC: clients are corrected towards their cluster, and clusters towards everyone.

Fang et al., "Hierarchical Federated Learning with Multi-Timescale Gradient Correction", 2024. The
variant without a cloud, whose clusters are corrected by what gossip does to them, is ours.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.mixing import Mixing, cloud_average, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Mix, View, Work
from sdfeel.core.tolerance import EDGE_AND_CLOUD, IGNORED, Tolerates
from sdfeel.schemes.corrections import (
    DIRECTION,
    EVERYBODY,
    SETTLED,
    STEPS,
    TRACKING,
    TRUST,
    UNJUDGED,
    VARIATE,
    WHOLE,
    Tracking,
    Trust,
    calm_gossip,
    check_trust,
    corrected,
    learned,
    per_gradient,
    per_meeting,
    remembering_meetings,
    since_met,
)
from sdfeel.schemes.d_squared import check_mutual
from sdfeel.schemes.two_levels import TwoLevels

BEFORE = Shelf("before", "server")  # the cluster's model before the servers met
SHELVES = (VARIATE, DIRECTION, BEFORE)
EXACT = "corrects by what gossip did to a model"
MOVES = "corrects by how far the clients' updates moved the models"
GATHERED = replace(
    TRACKING,
    drop=EVERYBODY,
    absent_clients=EVERYBODY,
    backhaul=EXACT,
    server_optimizer=MOVES,
)


def cluster_averages(view: View, done: Ints, *stages: Mixing) -> Mix:
    """Clusters average what their clients learned; then servers meet, stage by stage."""
    who = done.nonzero()[0]
    up = learned(view.net, who, per_gradient(view, who, done[who]), "client-server")
    return Mix(up, stages or None, "update")


def meet_and_correct(view: View, meeting: Mixing, tau1: int, rounds: int) -> tuple[Mixing, ...]:
    """Keep the models, let the servers meet, and turn what that changed into a correction.

    They last met like this `rounds` rounds of `tau1` iterations ago.
    """
    net = view.net
    if len(net.present) == 1:
        return (meeting,)  # nothing to correct, but the model travels as in hierfavg
    scale = per_meeting(view, tau1, rounds)
    before, ways = net.shelf(BEFORE.name).tolist(), net.shelf(DIRECTION.name).tolist()
    keep = of_rows({before[d]: {d: 1.0} for d in net.servers})
    correct = {ways[d]: {ways[d]: 1.0, before[d]: scale, d: -scale} for d in net.servers}
    return keep, meeting, of_rows(correct)


@dataclass(frozen=True)
class Mtgc(TwoLevels):
    """HierFAVG whose clients are corrected towards their cluster, and clusters towards all."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE_AND_CLOUD,
        overlap=IGNORED,
        drop=EVERYBODY,
        moving_clients=SETTLED,
        absent_clients=EVERYBODY,
        drop_unbiased=WHOLE,
        cluster_rule=UNJUDGED,
        server_optimizer=MOVES,
        fedrep=STEPS,
    )

    tau2: Annotated[int, "averagings at the edge server between two averagings in the cloud"] = 1
    trust: Trust = TRUST

    def __post_init__(self) -> None:
        super().__post_init__()
        check_trust(self.trust)

    def adapt(self, net: Network) -> Network:
        return replace(net, shelves=SHELVES)

    def work(self, view: View) -> Work:
        return corrected("mtgc", view, super().work(view), self.trust)

    def mix(self, view: View, done: Ints) -> Mix:
        meets, rounds = self.meets(view), since_met(view, self.tau2)
        stages = meet_and_correct(view, cloud_average(view.net), self.tau1, rounds) if meets else ()
        return remembering_meetings(cluster_averages(view, done, *stages), view, self.tau2, meets)


@dataclass(frozen=True)
class GossipMtgc(Tracking):
    """SD-FEEL whose clients are corrected towards their cluster, and clusters towards all."""

    tolerates: ClassVar[Tolerates] = GATHERED
    called: ClassVar[str] = "mtgc-gossip"
    shelves: ClassVar[tuple[Shelf, ...]] = SHELVES

    def adapt(self, net: Network) -> Network:
        check_mutual(self.called, net)
        return super().adapt(net)

    def mix(self, view: View, done: Ints) -> Mix:
        if not self.meets(view):
            return cluster_averages(view, done)
        meeting = calm_gossip(view.net, self.alpha)
        return cluster_averages(view, done, *meet_and_correct(view, meeting, self.tau1, self.tau2))
