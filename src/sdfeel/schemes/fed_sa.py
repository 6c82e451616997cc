"""FedSA: a round takes the first models to arrive; the others keep training.

Ma et al., "FedSA: A Semi-Asynchronous Federated Learning Mechanism in Heterogeneous Edge
Computing", 2021.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError, at_least, repeated
from sdfeel.core.mixing import average, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.portable import dot
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, check_kinds, one_server
from sdfeel.core.stragglers import SLACK
from sdfeel.core.tolerance import CLOUD, IGNORED, Tolerates

MOST_MISSED = 10  # rounds in a row that are counted
CANDIDATES = 40  # quotas to compare, at most
ROUNDS, CYCLES = 1000, 3  # how far a comparison looks ahead: rounds, cycles of the slowest client
BEGAN = Shelf("began", "client")  # the model that each client began from


@dataclass(frozen=True)
class FedSA:
    """A round takes the first models to arrive; late ones count in a later round."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        CLOUD,
        equalise=IGNORED,
        sampling="lets all clients work and takes the first that come, by scheme.quota",
        drop_unbiased="takes late models into a later round, so that none is lost",
        server_optimizer="keeps models that clients began from, which a step would not reach",
        cluster_rule="keeps every client's model apart until it averages them",
    )

    tau1: Annotated[int, "local iterations before a client sends its model"] = 5
    quota: Annotated[
        int | None, "models that a round waits for (none: chosen by device speeds)"
    ] = None
    rate_limit: Annotated[
        float, "clients that arrive rarely take steps up to this much larger (1: all the same)"
    ] = 2.0

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        at_least("scheme.rate_limit", self.rate_limit, 1)
        if self.quota is not None:
            at_least("scheme.quota", self.quota, 1)

    def adapt(self, net: Network) -> Network:
        if self.quota is not None and self.quota > len(net.clients):
            raise InputError(
                f"scheme.quota is {self.quota}, but the network has only {len(net.clients)} "
                f"clients: lower it"
            )
        return replace(one_server(net), shelves=(BEGAN,))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        who, left, lasts = self._first(view)
        return Work(
            down=average(who, view.net.shelf(BEGAN.name)[who]),
            steps=self.tau1,
            rates=self._rates(view)[who],
            ends=left[who],
            lasts=lasts,
            broadcasts=1,
        )

    def mix(self, view: View, done: Ints) -> Mix:
        first, left, lasts = self._first(view)
        who = first[done[first] > 0]
        share = view.net.samples[who] / view.net.samples[view.net.clients].sum()
        began = view.net.shelf(BEGAN.name)[who]
        came = began.tolist()
        blend = dict(zip(came, share.tolist(), strict=True)) | {0: max(1 - share.sum(), 0.0)}
        again = np.maximum(left - lasts, 0.0)
        again[who] = self._cycle(view)[who]
        missed = _missed(view)
        missed[who] = 0
        silent = first[done[first] == 0]  # start again and wait longer; others get their places
        missed[silent] = np.minimum(missed[silent] + 1, MOST_MISSED)
        again[silent] = self._cycle(view)[silent] * 2.0 ** missed[silent]
        joined = self._joined(view)
        joined[who] += 1
        return Mix(
            up=average(began, who, via="client-cloud"),
            across=of_rows({taker: blend for taker in (0, *came)}),
            memory={
                "left": again,
                "sending": _sending(view),
                "joined": joined,
                "missed": missed,
                "quota": np.array([self._quota(view)]),
            },
        )

    def _cycle(self, view: View) -> Floats:
        """(C,) seconds from receiving a model to returning one."""
        return floats(self.tau1 * view.step_seconds + _sending(view))

    def _left(self, view: View) -> Floats:
        """(C,) seconds until each client's model arrives, if channels stay as they are now."""
        if "left" not in view.memory:
            return self._cycle(view)
        now = _sending(view)
        slower = now - view.memory.get("sending", now)  # than in the last round; 0.1 kept no times
        return np.maximum(view.memory["left"] + slower, 0.0)

    def _first(self, view: View) -> tuple[Ints, Floats, float]:
        """Who arrives in this round; (C,) seconds until each does; seconds that the round lasts.

        A round with a time limit ends without those that are late. They keep training.
        """
        left = self._left(view)
        clients = view.net.clients
        soonest = clients[np.argsort(left[clients], kind="stable")]
        first = np.sort(soonest[: self._quota(view)])
        lasts = min(float(left[first].max()), view.patience)
        return first[left[first] <= lasts * SLACK], left, lasts

    def _quota(self, view: View) -> int:
        """Models that a round waits for: given, or chosen once, when the first round begins."""
        if self.quota is not None:
            return self.quota
        if "quota" in view.memory:
            return int(view.memory["quota"][0])
        clients = view.net.clients
        share = view.net.samples[clients] / view.net.samples[clients].sum()
        return best_quota(self._cycle(view)[clients].tobytes(), share.tobytes())

    def _joined(self, view: View) -> Floats:
        """(C,) rounds that each client has taken part in."""
        return view.memory.get("joined", np.zeros(len(view.net.samples))).copy()

    def _rates(self, view: View) -> Floats:
        """(C,) step factors, larger for clients that arrive more rarely than the mean."""
        often = self._joined(view) + 1
        mean = often[view.net.clients].mean()
        return floats(np.clip(mean / often, 1 / self.rate_limit, self.rate_limit))


def _missed(view: View) -> Floats:
    """(C,) rounds in a row that each client was expected in and missed."""
    return view.memory.get("missed", np.zeros(len(view.net.samples))).copy()


def _sending(view: View) -> Floats:
    """(C,) seconds of an upload."""
    return view.link_times.uploads(len(view.step_seconds), "client-cloud")


@lru_cache(maxsize=64)
def best_quota(cycles: bytes, shares: bytes) -> int:
    """The quota with which training ends soonest, for clients with these cycles and data shares.

    >>> equal = np.full(4, 0.25).tobytes()
    >>> best_quota(np.array([1.0, 1, 1, 1]).tobytes(), equal)
    4
    >>> best_quota(np.array([1.0, 1, 1, 50]).tobytes(), equal)
    3
    """
    cycle, share = np.frombuffer(cycles), np.frombuffer(shares)
    counts = np.unique(np.geomspace(1, len(cycle), CANDIDATES).round().astype(int))
    if len(cycle) <= CANDIDATES:
        counts = np.arange(1, len(cycle) + 1)
    return int(min(counts[::-1], key=lambda count: slowness(cycle, share, int(count))))


def slowness(cycle: Floats, share: Floats, quota: int) -> float:
    """Seconds that a unit of progress takes with this quota, in the long run.

    A round takes in models of a share p of the data, which began `a` rounds before. If the distance
    to the optimum shrinks as V_t = (1 - p) V_(t-1) + p (1 - e) V_(t-1-a), where e is what local
    training gains, it shrinks by e p / (1 + p a) in a round to first order in e: a unit takes
    1 / p + a rounds.
    """
    left, began = cycle.copy(), np.zeros(len(cycle))
    seconds = taken = age = 0.0
    rounds = 0
    while rounds < ROUNDS and seconds < CYCLES * cycle.max():
        who = np.argsort(left, kind="stable")[:quota]
        lasts = float(left[who].max())
        left = np.maximum(left - lasts, 0.0)
        left[who] = cycle[who]
        seconds, taken = seconds + lasts, taken + float(share[who].sum())
        age += dot(share[who], rounds - began[who])
        rounds += 1
        began[who] = rounds
    return seconds / rounds * (rounds / taken + age / taken)
