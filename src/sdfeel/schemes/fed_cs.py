"""FedCS: every edge server trains with as many clients as fit into its deadline.

Nishio and Yonetani, "Client Selection for Federated Learning with Heterogeneous Resources in
Mobile Edge", 2019.
"""

from dataclasses import dataclass
from math import ceil, inf
from typing import Annotated, ClassVar, Literal

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError, repeated
from sdfeel.core.mixing import broadcast, collect, meeting
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, check_kinds, some_of
from sdfeel.core.tolerance import AMONG_SERVERS, EDGE, IGNORED, Tolerates


@dataclass(frozen=True)
class FedCS:
    """Edge servers ask some clients, train with those that fit, and gossip as in SD-FEEL."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, False)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        shares=True,
        overlap=IGNORED,
        equalise=IGNORED,
        sampling="draws the clients that it asks itself, by scheme.fraction",
        drop_unbiased="lets clients send in turn, so that their chances are unknown",
    )

    tau1: Annotated[int, "local iterations between two averagings at the edge server"] = 5
    alpha: Annotated[int, "exchanges with the neighbours after every averaging", AMONG_SERVERS] = 1
    fraction: Annotated[float, "share of a cell's clients that are asked, drawn in every round"] = (
        1.0
    )
    round_seconds: Annotated[
        float | None,
        "time for computing and sending; clients that do not fit wait (none: no limit)",
    ] = None
    uploads: Annotated[
        Literal["in-turn", "at-once"],
        "one client after another on the whole band, or all on bands of their own",
    ] = "in-turn"

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        repeated("scheme.alpha", self.alpha, "exchanges")
        if not 0 < self.fraction <= 1:
            raise InputError(
                f"scheme.fraction must be above 0 and at most 1, got {self.fraction:g}"
            )
        if self.round_seconds is not None and not self.round_seconds > 0:
            raise InputError(f"scheme.round_seconds must be above 0, got {self.round_seconds:g}")

    def adapt(self, net: Network) -> Network:
        return net

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        limit = inf if self.round_seconds is None else self.round_seconds
        draws, home = view.rng(), view.net.home
        busy: Floats = self.tau1 * view.step_seconds
        band, sending = self._channels(view)
        soonest = self._soonest(view, busy, sending)
        if soonest > limit:
            raise InputError(
                f"scheme.round_seconds is {limit:g}, but even the fastest client needs "
                f"{soonest:.3g} seconds: raise it, or lower scheme.tau1"
            )
        ends = np.zeros(len(busy))
        for d in np.unique(home[view.net.clients]).tolist():
            mine = np.flatnonzero(home == d)
            asked = some_of(mine, ceil(self.fraction * len(mine)), draws)
            ends[asked] = self._ends(busy[asked], sending[asked], limit)
        who = np.flatnonzero(ends)
        return Work(
            down=broadcast(view.net, who),
            steps=self.tau1,
            share=None if self.uploads == "at-once" else band[who],
            ends=ends[who],
            lasts=None if who.size else limit,  # where nobody fits, the next round may be better
        )

    def mix(self, view: View, done: Ints) -> Mix:
        # A server with no client that fits keeps its model, and gossips all the same.
        across = meeting(view.net, self.alpha, view.k)
        return Mix(up=collect(view.net, done.nonzero()[0]), across=across)

    def _channels(self, view: View) -> tuple[Floats, Floats]:
        """(C,) each client's band, in equal shares of its cell; how long it sends on that band."""
        times, home = view.link_times, view.net.home
        sending = times.uploads(len(home))
        if self.uploads == "at-once":
            return np.ones(len(home)), sending
        cells = np.bincount(home[view.net.clients], minlength=len(view.net.servers))
        band = np.where(home >= 0, cells[home], 1).astype(np.float64)
        return band, floats(sending / times.speedup(band, slice(None)))

    def _ends(self, busy: Floats, sending: Floats, limit: float) -> Floats:
        if self.uploads == "in-turn":
            return in_turn(busy, sending, limit)
        ends = busy + sending
        return np.where(ends <= limit, ends, 0.0)

    def _soonest(self, view: View, busy: Floats, sending: Floats) -> float:
        """Seconds that the fastest client takes at the least: channels may become better."""
        if view.net.sizes is not None:
            return 0.0  # clients that are away may be faster
        needs = busy if view.link_times.vary else busy + sending
        return float(needs[view.net.clients].min())


def in_turn(busy: Floats, sending: Floats, limit: float) -> Floats:
    """(R,) when each client has sent, if they send in turn; 0 for those that do not fit.

    The published greedy choice: always the client that makes the round longer by the least.

    >>> in_turn(np.array([3.0, 0.0, 2.0]), np.array([1.0, 2.0, 1.0]), 4.5)
    array([4., 2., 3.])
    """
    ends, left, now = np.zeros(len(busy)), np.ones(len(busy), dtype=bool), 0.0
    while left.any():
        longer = np.where(left, sending + np.maximum(busy - now, 0.0), np.inf)
        best = int(longer.argmin())
        now += float(longer[best])
        if now > limit:  # everybody else would end later still
            break
        ends[best], left[best] = now, False
    return floats(ends)
