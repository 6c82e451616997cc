"""Tiers: servers whose rounds last about as long wait for one another, the others do not.

Ours. Weights by staleness count a neighbour's age in events of all servers, which is about half
their number even among equals, so they slow agreement down whatever the true staleness. Here nobody
is weighted by age: equally fast servers gossip as in SD-FEEL, and what moves all of them in one
direction is kept as momentum (Lin et al., "Quasi-Global Momentum", 2021).

What helps most is the momentum and that no client is idle while others finish. One tier for all
(`tier = 1000`) has both and is simpler. No figure of ours shows that several tiers are better, and
some leave that open: choose one tier unless your own figures say otherwise (docs/schemes.md).
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError, at_least, repeated
from sdfeel.core.mixing import Mixing, broadcast, of_matrix, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, check_kinds
from sdfeel.core.sparse import Sparse
from sdfeel.core.tolerance import AMONG_SERVERS, EDGE, IGNORED, Tolerates
from sdfeel.schemes.async_sd_feel import NO_LIMIT
from sdfeel.schemes.lazy_mixing import calm

BEFORE = Shelf("tiers.before", "server")  # the model after the server's last round
SPEED = Shelf("tiers.speed", "server", start="zero")  # how far its rounds move it, smoothed


@dataclass(frozen=True)
class Tiers:
    """Equally fast servers wait for one another and gossip; momentum instead of staleness."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, False)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        peers="mixes with all neighbours of a tier",
        overlap=IGNORED,
        moving_clients="has no common round at which a client could change its server",
        equalise="gives all clients of a tier one deadline",
        server_optimizer="has a momentum of its own",
        server_rule="lets servers mix for their neighbours, too, which then judge nothing",
    )

    theta_min: Annotated[int, "steps that a tier's slowest client takes in a round"] = 5
    tier: Annotated[
        float,
        "servers are in one tier if their rounds last at most this share longer",
        AMONG_SERVERS,
    ] = 0.15
    momentum: Annotated[float, "share of a round's movement that is kept for the next"] = 0.5

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.theta_min", self.theta_min, "local iterations")
        at_least("scheme.tier", self.tier, 0)
        if not 0 <= self.momentum < 1:
            raise InputError(
                f"scheme.momentum must be at least 0 and below 1, got {self.momentum:g}"
            )

    def adapt(self, net: Network) -> Network:
        kept = (BEFORE, SPEED) if self.momentum else ()
        return replace(net, shelves=(*net.shelves, *kept))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        lasts = _round_seconds(setting, self.theta_min)
        found: list[list[int]] = []
        for d in np.argsort(lasts, kind="stable").tolist():
            if found and lasts[d] <= (1 + self.tier) * lasts[found[-1][0]] and self.tier:
                found[-1].append(d)
            else:
                found.append([d])
        return tuple(sorted(tuple(sorted(tier)) for tier in found))

    def work(self, view: View) -> Work:
        mine = np.flatnonzero(np.isin(view.net.home, view.lane))
        slowest = float(view.step_seconds[mine].max())
        who = mine if view.drawn is None else view.drawn
        return Work(broadcast(view.net, who), NO_LIMIT, self.theta_min * slowest)

    def mix(self, view: View, done: Ints) -> Mix:
        net, lane = view.net, view.lane
        there = [d for d in lane if ((net.home == d) & (done > 0)).any()]
        stages = [_across(net, there, self.momentum)] if net.links[there].any() else []
        if self.momentum:
            pushed, kept = self._momentum(net, there)
            stages = [pushed, *stages, kept]
        return Mix(_plain(net, done, there), tuple(stages), payload="update")

    def _momentum(self, net: Network, lane: list[int]) -> tuple[Mixing, Mixing]:
        """Two stages: momentum is added before mixing, and follows the model's move after it."""
        share, before, speed = self.momentum, net.shelf(BEFORE.name), net.shelf(SPEED.name)
        pushed = {d: {d: 1.0, int(speed[d]): share} for d in lane}
        kept: dict[int, dict[int, float]] = {}
        for d in lane:
            old, new = int(before[d]), int(speed[d])
            kept[new] = {new: share, d: 1 - share, old: share - 1}
            kept[old] = {d: 1.0}
        return of_rows(pushed), of_rows(kept)


def _round_seconds(setting: Setting, steps: int) -> Floats:
    """(D,) seconds of each server's round, including sending."""
    net = setting.net
    sending = sum(setting.link_times.transfer.get(link, 0.0) for link in EDGE)
    slowest = np.zeros(len(net.servers))
    np.maximum.at(slowest, net.home[net.clients], setting.step_seconds[net.clients])
    lasts: Floats = steps * slowest + sending
    return lasts


def _plain(net: Network, done: Ints, lane: list[int]) -> Mixing:
    """Each server of the lane averages its clients' updates, however many steps these took."""
    mine = np.flatnonzero((done > 0) & np.isin(net.home, lane))
    home = net.home[mine]
    order = np.lexsort((mine, home))
    mine, home = mine[order], home[order]
    share = net.samples[mine] / np.bincount(home, net.samples[mine])[home]
    starts = np.searchsorted(home, [*lane, len(net.servers)])
    return Mixing(np.array(lane), starts, mine, share, "client-server", votes=share)


def _across(net: Network, lane: list[int], momentum: float) -> Mixing:
    """How a tier mixes: inside it as the network's matrix says, with others as in asynchronous
    SD-FEEL with constant weights; lazier where momentum would be unstable otherwise. The mean,
    weighted by the clusters' data, is kept."""
    return net.recent(("tier", *lane, momentum), lambda: _weighed(net, lane, momentum))


def _weighed(net: Network, lane: list[int], momentum: float) -> Mixing:
    inside = np.isin(net.servers, lane)
    weights = np.where(np.outer(inside, inside), net.mixing, 0.0)
    np.fill_diagonal(weights, 0.0)
    for d in lane:
        around = net.neighbours(d)
        for j in around[~inside[around]].tolist():
            share, ratio = 1 / (len(around) + 1), net.mass[j] / net.mass[d]
            weights[d, j] += share * min(1.0, ratio)
            weights[j, d] += share * min(1.0, 1 / ratio)
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    weights = calm(Sparse.of(weights), net.mass, 1, momentum, "scheme.momentum").dense
    rows = np.flatnonzero(inside | (net.links[:, inside] != 0).any(axis=1))
    return of_matrix(weights[rows], rows=rows.tolist())
