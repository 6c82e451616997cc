"""SAFA: the cloud keeps everyone's last model and tolerates clients that lag.

Wu et al., "SAFA: A Semi-Asynchronous Protocol for Fast Federated Learning With Low Overhead",
2021.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Bools, Floats, Ints
from sdfeel.core.errors import InputError, at_least, repeated
from sdfeel.core.mixing import Mixing, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, check_kinds, one_server
from sdfeel.core.tolerance import CLOUD, IGNORED, Tolerates

OWN = Shelf("own", "client")  # the model that each client continues from; the cloud knows it, too
CACHE = Shelf("cache", "client")  # everyone's last model, at the cloud


@dataclass(frozen=True)
class Draft:
    """Who does what in one round; (C,) each."""

    fresh: Bools  # takes the new global model
    lagging: Bools  # was so far behind that it must
    arrived: Bools  # finishes, and is up to date afterwards
    picked: Bools  # counts in this round; those that arrived but were not picked count in the next
    seconds: Floats  # until its model would arrive


@dataclass(frozen=True)
class Safa:
    """The cloud averages its cache of everyone's last model, refreshed by the first to arrive."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, False)
    tolerates: ClassVar[Tolerates] = Tolerates(
        CLOUD,
        equalise=IGNORED,
        sampling="lets all clients work and takes the first that come, by scheme.fraction",
        drop_unbiased="keeps whole models in its cache",
        server_optimizer="averages a cache of models, which a step would not reach",
        cluster_rule="keeps every client's model apart until it averages them",
    )

    tau1: Annotated[int, "local iterations before a client sends its model"] = 5
    fraction: Annotated[float, "share of the clients that a round waits for"] = 0.5
    tolerance: Annotated[int, "rounds that a client may lag before it must start afresh"] = 5
    crash_chance: Annotated[float, "chance that a client's round is lost"] = 0.0

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        at_least("scheme.tolerance", self.tolerance, 0)
        if not 0 < self.fraction <= 1:
            raise InputError(
                f"scheme.fraction must be above 0 and at most 1, got {self.fraction:g}"
            )
        if not 0 <= self.crash_chance < 1:
            raise InputError(
                f"scheme.crash_chance must be at least 0 and below 1, got {self.crash_chance:g}"
            )

    def adapt(self, net: Network) -> Network:
        return replace(one_server(net), shelves=(OWN, CACHE))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        draft = self._draft(view)
        own, _ = shelves(view.net)
        rows = {
            i: {0 if draft.fresh[i] else own[i]: 1.0}
            for i in np.flatnonzero(draft.arrived).tolist()
        }
        return Work(
            down=of_rows(rows, "client-cloud"),
            steps=self.tau1,
            ends=draft.seconds[draft.arrived],
            lasts=float(draft.seconds[draft.picked].max()),
            broadcasts=int(draft.fresh.any()),
        )

    def mix(self, view: View, done: Ints) -> Mix:
        draft, version = self._draft(view, done > 0), self._version(view)
        own, cache = shelves(view.net)
        sent = np.flatnonzero(draft.arrived).tolist()
        up = of_rows(
            {(cache if draft.picked[i] else own)[i]: {i: 1.0} for i in sent}, "client-cloud"
        )
        version[draft.fresh] = view.k
        figures = measures(view.net, draft, version)
        version[draft.arrived] = view.k + 1
        memory = {"version": version, "picked": draft.picked.astype(float)}
        return Mix(up, self._merge(view.net, draft), memory=memory, figures=figures)

    def _merge(self, net: Network, draft: Draft) -> Mixing:
        """The new global model, and what the cache and the clients hold afterwards."""
        own, cache = shelves(net)
        share = net.samples / net.samples[net.clients].sum()
        rows: dict[int, dict[int, float]] = {0: {0: 0.0}}
        for i in net.clients.tolist():
            stale = draft.lagging[i] and not draft.picked[i]  # its entry is the old global model
            source = 0 if stale else cache[i]
            rows[0][source] = rows[0].get(source, 0.0) + float(share[i])
            if draft.arrived[i] and not draft.picked[i]:
                rows[cache[i]] = {own[i]: 1.0}
            elif stale:
                rows[cache[i]] = {0: 1.0}
            if draft.fresh[i] and not draft.arrived[i]:
                rows[own[i]] = {0: 1.0}
        return of_rows(rows)

    def _draft(self, view: View, came: Bools | None = None) -> Draft:
        """The round as planned, or as it turns out once it is known who `came`."""
        clients, version = view.net.clients, self._version(view)
        inside = np.isin(np.arange(len(version)), clients)
        behind = view.k - version  # the cloud's model is of round k
        lagging = inside & (behind > self.tolerance)
        crashed = view.rng().random(len(version)) < self.crash_chance
        sending = view.link_times.uploads(len(version), "client-cloud")
        seconds = self.tau1 * view.step_seconds + sending
        arrived = inside & ~crashed if came is None else came
        if came is None and not arrived.any():  # a round needs somebody
            arrived[clients[np.argmin(seconds[clients])]] = True
        before = view.memory.get("picked", np.zeros(len(version)))
        order = np.lexsort((seconds, before))  # those that were passed over come first
        quota = ceil(self.fraction * len(clients))
        picked = np.zeros(len(version), dtype=bool)
        picked[order[arrived[order]][:quota]] = True
        return Draft(inside & (version == view.k) | lagging, lagging, arrived, picked, seconds)

    def _version(self, view: View) -> Floats:
        """(C,) the round whose global model each client's own goes back to."""
        return view.memory.get("version", np.zeros(len(view.net.samples))).copy()


def measures(net: Network, draft: Draft, version: Floats) -> dict[str, float]:
    """The authors' measures of one round, of which they report the mean over all rounds.

    EUR: effective updates (picked clients) over all clients. SR: clients that synchronised over
    all clients. VV: variance of the versions that those who finish started from.
    """
    clients = len(net.clients)
    return {
        "EUR": float(draft.picked.sum()) / clients,
        "SR": float(draft.fresh.sum()) / clients,
        "VV": float(np.var(version[draft.arrived])) if draft.picked.any() else 0.0,
    }


def shelves(net: Network) -> tuple[list[int], list[int]]:
    """Where each client's own model and its entry in the cache are kept."""
    return net.shelf(OWN.name).tolist(), net.shelf(CACHE.name).tolist()
