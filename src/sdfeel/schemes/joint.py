"""Joint scheduling: servers choose who trains and share their bandwidth so that all end at once.

Shi, Zhou, Niu, Jiang and Geng, "Joint Device Scheduling and Resource Allocation for Latency
Constrained Wireless Federated Learning", 2021.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError, at_least
from sdfeel.core.mixing import broadcast, collect, gossip
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work
from sdfeel.core.stragglers import equalised
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates


@dataclass(frozen=True)
class JointScheduling:
    """Servers schedule the clients worth waiting for, and give slow ones more bandwidth."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        shares=True,
        overlap=IGNORED,
        equalise=IGNORED,
        drop_unbiased="gives clients bandwidths by which their chances are unknown",
    )

    tau1: Annotated[int, "local iterations between two averagings at the edge server"] = 5
    alpha: Annotated[int, "exchanges with the neighbours after every averaging"] = 1
    worth: Annotated[
        float,
        "how much more clients are worth: n of them count as n to this power (above 0, at most 1)",
    ] = 0.5

    def __post_init__(self) -> None:
        at_least("scheme.tau1", self.tau1, 1)
        at_least("scheme.alpha", self.alpha, 1)
        if not 0 < self.worth <= 1:
            raise InputError(f"scheme.worth must be above 0 and at most 1, got {self.worth:g}")

    def adapt(self, net: Network) -> Network:
        return net

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        busy = self.tau1 * view.step_seconds
        sending = view.link_times.uploads(len(busy))
        snr = view.link_times.snrs(len(busy), slice(None))
        share = np.zeros(len(busy))
        for d in view.net.servers:
            mine = np.flatnonzero(view.net.home == d)
            cell = (busy[mine], sending[mine], snr[mine], self._waited(view)[mine])
            share[mine] = scheduled(tuple(map(tuple, cell)), self.worth)
        who = np.flatnonzero(share)
        return Work(broadcast(view.net, who), self.tau1, share=share[who])

    def mix(self, view: View, done: Ints) -> Mix:
        return Mix(
            up=collect(view.net, done.nonzero()[0]),
            across=gossip(view.net, self.alpha),
            memory={"waited": np.where(done > 0, 0.0, self._waited(view) + 1)},
        )

    def _waited(self, view: View) -> Floats:
        """(C,) rounds since each client was last scheduled."""
        return view.memory.get("waited", np.zeros(len(view.net.samples)))


@lru_cache(maxsize=4096)  # where channels are constant, every round asks for the same
def scheduled(cell: tuple[tuple[float, ...], ...], worth: float) -> Floats:
    """The share of the cell's bandwidth that each client gets; 0 for those not scheduled.

    `cell` holds each client's seconds of computing, of sending, its signal to noise and how long
    it has waited, which makes it worth more: nobody's data is left out for ever. The set grows by
    the client that costs least; the best set on the way is kept.
    """
    busy, sending, snr, waited = (np.array(values) for values in cell)
    best, highest = np.zeros(len(busy)), 0.0
    queue = np.argsort((busy + sending) / (1 + waited), kind="stable")
    for count in range(1, len(queue) + 1):
        who = queue[:count]
        seconds, share = equalised(busy[who], sending[who], snr[who], float(len(busy)))
        gain = (1 + waited[who]).sum() ** worth / seconds  # rounds in a given time, and their worth
        if gain > highest:
            highest, best = gain, np.zeros(len(busy))
            best[who] = share
    return floats(best)
