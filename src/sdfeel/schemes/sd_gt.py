"""SD-GT: subnets of servers track their gradients by gossip, and one another's through the cloud.

Chen, Wang and Brinton, "Taming Subnet-Drift in D2D-Enabled Fog Learning: A Hierarchical Gradient
Tracking Approach", 2024. Here a device is a cluster, whose clients are corrected towards it as in
SCAFFOLD, and the cloud averages all of them instead of drawing a few.

A step follows g + y + z: y is how a subnet differs from all, and z how a device differs from its
neighbours. Both change when the cloud averages, z := z + (W - I)(mean of g + z), for which gossip
of one sum is enough, since W is the same in all rounds.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import Mixing, Relay, cloud_average, of_matrix, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Mix, View
from sdfeel.core.tolerance import AMONG_SERVERS, EDGE, IGNORED, Tolerates
from sdfeel.schemes.corrections import (
    DIRECTION,
    VARIATE,
    Tracking,
    per_meeting,
    remembering_meetings,
    since_met,
)
from sdfeel.schemes.d_squared import check_mutual, damped
from sdfeel.schemes.mtgc import BEFORE, GATHERED, cluster_averages

BETWEEN = Shelf("between", "server", start="zero")  # y
PASSED = Shelf("passed", "server", start="zero")  # the mean of g + z since the last averaging


@dataclass(frozen=True)
class SDGT(Tracking):
    """Subnets of servers gossip in every round and meet in the cloud; all drift is tracked."""

    facts: ClassVar[Facts] = Facts(True, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = replace(
        GATHERED,
        links=(*EDGE, "server-cloud"),
        cloud_server=IGNORED,  # the cloud computes a mean per subnet, not one for all
    )
    called: ClassVar[str] = "sd-gt"
    shelves: ClassVar[tuple[Shelf, ...]] = (VARIATE, DIRECTION, BETWEEN, PASSED, BEFORE)

    tau2: Annotated[int, "gossips within the subnets between two averagings in the cloud"] = 2
    subnets: Annotated[int, "groups of servers that gossip among themselves", AMONG_SERVERS] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("scheme.subnets", self.subnets, 1)

    def adapt(self, net: Network) -> Network:
        if self.subnets > 1:  # a part of a matrix keeps the mean only if its weights are mutual
            check_mutual(self.called, net)
        return super().adapt(net)

    def mix(self, view: View, done: Ints) -> Mix:
        net, within = view.net, _within(view.net, self.subnets, self.alpha)
        if len(net.present) == 1:
            return cluster_averages(view, done, *([cloud_average(net)] if self.meets(view) else []))
        stages: tuple[Mixing, ...] = ()
        if within is not None:
            stages = (within, _passed(net, self.tau2))
        if self.meets(view):
            scale = per_meeting(view, self.tau1, since_met(view, self.tau2))
            stages += () if within is None else _tracked(net, self.subnets, self.alpha)
            stages += (*_gathered(net, self.subnets), _between(net, scale))
        return remembering_meetings(
            cluster_averages(view, done, *stages), view, self.tau2, self.meets(view)
        )


def _passed(net: Network, rounds: int) -> Mixing:
    """A share of this round's g + z, which is the direction without y."""
    passed, ways, between = _rows(net, PASSED, DIRECTION, BETWEEN)
    share = 1 / rounds
    return of_rows(
        {
            p: {p: 1.0, way: share, y: -share}
            for p, way, y in zip(passed, ways, between, strict=True)
        }
    )


@lru_cache(maxsize=16)
def _tracked(net: Network, subnets: int, hops: int) -> tuple[Mixing, ...]:
    """direction += W passed - passed; then passed is zero again."""
    passed, ways = _rows(net, PASSED, DIRECTION)
    pairs = list(zip(ways, passed, strict=True))
    weights = _weights(net, subnets)
    rows = {
        p: {passed[j]: float(weights[d, j]) for j in np.flatnonzero(weights[d]).tolist()}
        for d, p in enumerate(passed)
    }
    without = of_rows({way: {way: 1.0, p: -1.0} for way, p in pairs})
    again = of_rows({way: {way: 1.0, p: 1.0} for way, p in pairs} | {p: {p: 0.0} for p in passed})
    return without, replace(of_rows(rows), hops=hops), again


@lru_cache(maxsize=16)
def _gathered(net: Network, subnets: int) -> tuple[Mixing, ...]:
    """The cloud averages each subnet, which servers keep for a moment, and then all of them."""
    groups, count = _groups(net, subnets), len(net.present)
    keep = of_rows(dict(zip(_rows(net, BEFORE)[0], ({d: 1.0} for d in net.servers), strict=True)))
    if len(np.unique(groups)) == len(net.servers):
        return keep, cloud_average(net)
    shares = np.where(groups[:, None] == groups, net.mass, 0)
    shares /= shares.sum(axis=1, keepdims=True)
    means = of_matrix(shares, via="server-cloud", relay=Relay(legs=1, crossings=2 * count))
    # What the cloud has gathered need not be sent up again.
    return means, keep, replace(cloud_average(net), relay=Relay(legs=0, crossings=count))


def _between(net: Network, scale: float) -> Mixing:
    """y, and with it the direction, by how far a subnet's mean was from everyone's."""
    ways, between, before = _rows(net, DIRECTION, BETWEEN, BEFORE)
    return of_rows(
        {
            row: {row: 1.0, before[d]: scale, d: -scale}
            for rows in (ways, between)
            for d, row in enumerate(rows)
        }
    )


def _rows(net: Network, *shelves: Shelf) -> list[list[int]]:
    return [net.shelf(each.name).tolist() for each in shelves]


def _groups(net: Network, subnets: int) -> Ints:
    """(D,) the subnet of each server."""
    count = len(net.servers)
    return np.arange(count) * min(subnets, count) // count


@lru_cache(maxsize=16)
def _weights(net: Network, subnets: int) -> Floats:
    """The mixing among neighbours of one subnet."""
    groups, count = _groups(net, subnets), len(net.servers)
    weights = np.where(groups[:, None] == groups, net.mixing, 0)
    weights[np.diag_indices(count)] += 1 - weights.sum(axis=1)  # what strangers would have given
    return damped(weights)


@lru_cache(maxsize=16)
def _within(net: Network, subnets: int, hops: int) -> Mixing | None:
    """Gossip among neighbours of one subnet; None where nobody has any."""
    weights = _weights(net, subnets)
    return None if np.array_equal(weights, np.eye(len(weights))) else of_matrix(weights, hops=hops)
