"""Who can learn how much about a client's updates, in this graph.

Pairwise accounting after Cyffers et al. 2022 (Muffliato), made exact by linear algebra: what an
observer sees in a round are weighted sums of clients' noisy updates. They reveal as much of a
client's update as they reveal of its noise (`engine.privacy.revealed`).

Training is not linear. So whoever takes part in later rounds is assumed to see, at the end of a
round, all models that can still reach it. That is more than it really sees, so the bound holds for
every model and every loss.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from sdfeel.core.arrays import Floats, floats, ints
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.scheme import Mix
from sdfeel.engine.privacy import Budget, epsilon, revealed
from sdfeel.experiment.build import Prepared


class Exposed(NamedTuple):
    """What one kind of observer learns about clients in a whole run."""

    who: str
    losses: Floats  # (C,) by client; `engine.privacy` says what a loss is

    def epsilons(self, delta: float) -> tuple[float, float]:
        """The epsilon of the median client, and of the least protected one."""
        middle = float(np.median(self.losses)) if np.isfinite(self.losses).all() else inf
        return epsilon(middle, delta), epsilon(float(self.losses.max(initial=0)), delta)


@dataclass(frozen=True)
class SeenRound:
    """The sums of one round: rows are sums, columns are clients."""

    up: Floats  # (D, C) each server's sum of its clients' updates
    hops: tuple[Floats, ...]  # (D, C) what each server sends in each exchange
    cloud: bool  # do servers' models go to the cloud?
    end: Floats  # (D, C) the models with which the next round begins

    @classmethod
    def of(cls, decisions: Decisions, mix: Mix, liars: frozenset[int]) -> "SeenRound":
        servers, clients = len(decisions.net.servers), len(decisions.net.samples)
        up = np.zeros((servers, clients))
        for row, sources, weights in mix.up:
            own = sources >= 0
            up[row, sources[own]] = weights[own]
        up[:, list(liars)] = 0  # they add no noise, and nothing is promised to them
        now, hops, cloud = up, [], False
        for stage in mix.stages:
            matrix = np.eye(servers)
            for row, sources, weights in stage:
                matrix[row] = 0
                matrix[row, sources] = weights
            cloud = cloud or stage.via == "server-cloud"
            for _ in range(stage.hops):
                if stage.via == "server-server":
                    hops.append(now)
                now = matrix @ now
        return cls(up, tuple(hops), cloud, now)


def exposure(ready: Prepared) -> list[Exposed]:
    """A line for each kind of observer, nearest first."""
    budget = ready.budget
    if budget is None:
        raise InputError(
            "this experiment protects nothing, so everybody who sees a model may learn "
            "everything: set privacy.protects to clients or examples"
        )
    net, rounds = ready.decisions.net, ready.rounds
    if budget.protects == "examples":
        return [
            Exposed("everybody who sees a model", _of_examples(ready.decisions, budget, rounds))
        ]
    single = (budget.clip / budget.deviation) ** 2 if budget.deviation else inf
    if not _linear(ready.decisions):
        whole = floats(np.full(len(net.samples), single * rounds))
        return [Exposed("everybody who sees a model", whole)]
    return _lines(ready.decisions, budget, single, rounds)


def _of_examples(decisions: Decisions, budget: Budget, rounds: int) -> Floats:
    """(C,) the losses of examples; any server may do all rounds if none waits for the others."""
    together = len(decisions.lanes) == 1
    views = (decisions.view(0, k) for k in range(rounds)) if together else decisions.first_views()
    planned = [decisions.cost.done(decisions.work(view)) for view in views]
    if decisions.late.seconds is not None:  # rounds may be in vain, so each is counted by itself
        return floats(sum(budget.steps(each) for each in planned) * (1 if together else rounds))
    taken = sum(planned) if together else sum(planned) * rounds
    return budget.steps(ints(taken))


def _linear(decisions: Decisions) -> bool:
    """Is every round nothing but sums of the same clients' updates, with all servers in step?"""
    if decisions.epochs or decisions.outages is not None or decisions.late.seconds is not None:
        return False  # the noise of a client that is missing protects nobody
    view = decisions.view(0)
    mix = decisions.mix(view, decisions.cost.done(decisions.work(view)))
    ruled = any(each.rule is not None for each in (mix.up, *mix.stages))
    return len(decisions.lanes) == 1 and not decisions.net.shelves and not ruled


def _rounds(decisions: Decisions, rounds: int, liars: frozenset[int]) -> Iterator[SeenRound]:
    for k in range(rounds):
        view = decisions.view(0, k)
        done = decisions.cost.done(decisions.work(view))
        yield SeenRound.of(decisions, decisions.mix(view, done), liars)


def _lines(decisions: Decisions, budget: Budget, single: float, rounds: int) -> list[Exposed]:
    net = decisions.net
    distance = distances(net.links)
    home, clients = np.maximum(net.home, 0), len(net.samples)
    own, cloud, readers = np.zeros(clients), np.zeros(clients), np.zeros(clients)
    seen = np.zeros((len(net.servers), clients))  # by each server
    every = list(_rounds(decisions, rounds, budget.liars))
    hops_left = np.cumsum([len(each.hops) + 99 * each.cloud for each in every[::-1]])[::-1]
    known: dict[bytes, tuple[Floats, ...]] = {}
    for k, each in enumerate(every):
        later = int(hops_left[k + 1]) if k + 1 < rounds else 0
        reach = min(later, len(net.servers)) if k + 1 < rounds else -1
        sums = (each.up, *each.hops, each.end)
        key = repr(reach).encode() + b"".join(matrix.tobytes() for matrix in sums)
        if key not in known:
            known[key] = _round(each, net.links, distance, reach)
        share, parts, final = known[key]
        took = np.abs(each.up).sum(axis=0) > 0
        own += share if budget.sums else took
        cloud += share if each.cloud else 0.0
        seen += parts
        mean = np.average(each.end, axis=0, weights=net.mass)
        readers += final if k + 1 < rounds else revealed(mean[None])
    same = seen[home, np.arange(clients)]
    lines = [Exposed("its own edge server", floats(single * own))]
    lines.append(Exposed("clients of the same server", floats(single * same)))
    for d in range(1, int(distance[np.isfinite(distance)].max(initial=0)) + 1):
        at = np.where(distance[:, home] == d, seen, 0.0)
        lines.append(Exposed(f"edge servers at distance {d}", floats(single * at.max(axis=0))))
    if any(each.cloud for each in every):
        lines.append(Exposed("the cloud", floats(single * np.maximum(cloud, readers))))
    return [*lines, Exposed("readers of the final model", floats(single * readers))]


def _round(each: SeenRound, links: Floats, distance: Floats, reach: int) -> tuple[Floats, ...]:
    """What sums reveal about clients: to their own server, to others, to later readers."""
    parts = []
    for v in range(len(links)):
        near = np.flatnonzero(links[v] > 0)
        sums = [hop[[v, *near.tolist()]] for hop in each.hops]
        later = each.end[distance[v] <= reach]
        parts.append(revealed(np.vstack([each.up[v][None] * bool(each.hops), *sums, later])))
    return revealed(each.up), floats(parts), revealed(each.end)


def distances(links: Floats) -> Floats:
    """(D, D) the number of links between any two servers; infinite if no path joins them."""
    found = np.where(np.eye(len(links), dtype=bool), 0.0, np.where(links > 0, 1.0, inf))
    for middle in range(len(links)):
        found = np.minimum(found, found[:, middle, None] + found[None, middle])
    return floats(found)
