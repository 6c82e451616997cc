"""Joint scheduling: servers choose who trains and share their bandwidth so that all end at once.

Shi, Zhou, Niu, Jiang and Geng, "Joint Device Scheduling and Resource Allocation for Latency
Constrained Wireless Federated Learning", 2021.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError, at_least, repeated
from sdfeel.core.mixing import broadcast, collect, meeting
from sdfeel.core.network import Network
from sdfeel.core.portable import log2
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, check_kinds
from sdfeel.core.stragglers import HALVINGS, equalised, needed
from sdfeel.core.tolerance import AMONG_SERVERS, EDGE, IGNORED, Tolerates


@dataclass(frozen=True)
class JointScheduling:
    """Servers schedule the clients worth waiting for, and give slow ones more bandwidth."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        shares=True,
        overlap=IGNORED,
        equalise=IGNORED,
        sampling="chooses the clients of each round itself, by how long they take",
        drop_unbiased="gives clients bandwidths for which their chances are unknown",
    )

    tau1: Annotated[int, "local iterations between two averagings at the edge server"] = 5
    alpha: Annotated[int, "exchanges with the neighbours after every averaging", AMONG_SERVERS] = 1
    divergence: Annotated[
        float, "how far one client's model is from the mean of all, relative to a round's progress"
    ] = 0.5
    max_wait: Annotated[
        int | None,
        "rounds after which a client that was left out comes first (none: it may wait for ever)",
    ] = None

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        repeated("scheme.alpha", self.alpha, "exchanges")
        if not self.divergence >= 0:
            raise InputError(f"scheme.divergence must be at least 0, got {self.divergence:g}")
        if self.max_wait is not None:
            at_least("scheme.max_wait", self.max_wait, 1)

    def adapt(self, net: Network) -> Network:
        return net

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        busy = self.tau1 * view.step_seconds
        sending = view.link_times.uploads(len(busy))
        snr = view.link_times.snrs(len(busy), slice(None))
        waited = self._waited(view)
        share = np.zeros(len(busy))
        for d in view.net.servers:
            mine = np.flatnonzero(view.net.home == d)
            if not mine.size:
                continue
            cell = (tuple(busy[mine]), tuple(sending[mine]), tuple(snr[mine]))
            order = np.argsort(-waited[mine], kind="stable")  # who wins a tie
            first = 0 if self.max_wait is None else int((waited[mine] >= self.max_wait).sum())
            share[mine] = scheduled(cell, tuple(order.tolist()), first, self.divergence)
        who = np.flatnonzero(share)
        return Work(broadcast(view.net, who), self.tau1, share=share[who])

    def mix(self, view: View, done: Ints) -> Mix:
        return Mix(
            up=collect(view.net, done.nonzero()[0]),
            across=meeting(view.net, self.alpha, view.k),
            memory={"waited": self._still_waiting(view, done)},
        )

    def _still_waiting(self, view: View, done: Ints) -> Floats:
        """(C,) `_waited` after this round. A client that was asked and came too late queues behind
        those that came: if it were first again and again, nobody might ever be in time."""
        waited = self._waited(view) + 1
        waited[self.work(view).down.rows] = -1.0
        waited[done > 0] = 0.0
        return waited

    def _waited(self, view: View) -> Floats:
        """(C,) rounds since each client last took part, or was asked in vain."""
        return view.memory.get("waited", np.zeros(len(view.net.samples)))


@lru_cache(maxsize=4096)  # where channels are constant, every round asks for the same
def scheduled(
    cell: tuple[tuple[float, ...], ...], order: tuple[int, ...], first: int, divergence: float
) -> Floats:
    """The share of the cell's bandwidth that each client gets; 0 for those not scheduled.

    `cell` holds each client's seconds of computing, of sending, and its signal to noise. The
    `first` ones of `order` are scheduled in any case. Then the set grows by the client with which
    the round ends soonest (a tie goes to the earlier in `order`), until the bound on what a second
    of training gains begins to fall.
    """
    busy, sending, snr = (np.array(values) for values in cell)
    chosen, left = list(order[:first]), list(order[first:])
    gain = progress(first, len(busy), divergence) / _end(busy, sending, snr, chosen) if first else 0
    while left:
        client, end = soonest(busy, sending, snr, chosen, left)
        more = progress(len(chosen) + 1, len(busy), divergence) / end
        if chosen and more <= gain:
            break
        chosen, left, gain = [*chosen, client], [each for each in left if each != client], more
    shares = np.zeros(len(busy))
    _, shares[chosen] = equalised(busy[chosen], sending[chosen], snr[chosen], float(len(busy)))
    return floats(shares)


def progress(count: int, total: int, divergence: float) -> float:
    """A lower bound on what a round with `count` of `total` clients gains; 1 with all of them.

    The mean of `count` models drawn from `total` is sqrt((total - count) / (count (total - 1)))
    times as far from the mean of all as one model is. Where the loss is no steeper than a constant,
    that undoes progress in proportion: the share `divergence` of it with a single client.

    >>> [round(progress(count, 5, 0.5), 3) for count in (1, 2, 5)]
    [0.5, 0.694, 1.0]
    """
    apart = (total - count) / (count * (total - 1)) if total > 1 else 0.0
    return 1 - divergence * float(np.sqrt(apart))


def _end(busy: Floats, sending: Floats, snr: Floats, chosen: list[int]) -> float:
    return equalised(busy[chosen], sending[chosen], snr[chosen], float(len(busy)))[0]


def soonest(
    busy: Floats, sending: Floats, snr: Floats, chosen: list[int], left: list[int]
) -> tuple[int, float]:
    """Which of `left` joins the `chosen` so that all end soonest; and when that is.

    The bandwidth that a client needs to end at a given time does not depend on the others: the
    soonest end is where the bandwidth that the chosen leave over is enough for the most modest of
    the rest.
    """
    efficiency = log2(1 + snr) * sending

    def needs(end: float) -> Floats:
        time = np.maximum(end - busy, 0.0)
        rate = np.divide(efficiency, time, out=np.full(len(busy), np.inf), where=time > 0)
        return needed(rate, snr)

    def fits(end: float) -> bool:
        need = needs(end)
        return bool(need[chosen].sum() + need[left].min() <= len(busy))

    low = max(float(busy[left].min()), float(busy[chosen].max(initial=0.0)))
    high = low + float(sending.max())
    while not fits(high):
        high += high - low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return left[int(needs(high)[left].argmin())], high
