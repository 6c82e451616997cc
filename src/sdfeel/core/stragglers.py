"""What a server does about clients whose models would arrive late."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isinf
from math import log as log_of
from typing import Literal, NamedTuple

import numpy as np

from sdfeel.core.arrays import Bools, Floats, Ints, floats
from sdfeel.core.cost import Cost
from sdfeel.core.errors import InputError
from sdfeel.core.partial_mixing import nothing, restricted
from sdfeel.core.portable import exp, log, log2
from sdfeel.core.scheme import Mix, View, Work

Policy = Literal["wait", "drop", "drop-unbiased", "equalise"]
RARE = 1e-3  # expected clients per round below which training is hopeless
SLACK = 1 + 1e-12  # a client that ends exactly at the deadline meets it


class RoundPlan(NamedTuple):
    """A round as planned, with what is done about late clients."""

    work: Work
    done: Ints  # (C,) steps that reach a server
    spent: Ints  # (C,) steps that are computed, in vain or not
    mix: Mix
    lost: int = 0  # clients that trained in vain


@dataclass(frozen=True)
class StragglerPolicy:
    """Wait for everyone, drop those that are late, or share bandwidth so that all end at once.

    With `drop`, those that arrive count in proportion; `drop-unbiased` divides what each brings by
    its chance of arriving, so that the expected step is that of waiting for all.
    """

    policy: Policy = "wait"
    seconds: float | None = None  # from a round's start until the last model may arrive

    def __post_init__(self) -> None:
        dropping = self.policy in ("drop", "drop-unbiased")
        if dropping and self.seconds is None:
            raise InputError(
                f"latency.late is '{self.policy}', which needs a deadline: set "
                f"latency.deadline_seconds"
            )
        if not dropping and self.seconds is not None:
            raise InputError(
                f"latency.deadline_seconds is {self.seconds:g}, but latency.late is "
                f"'{self.policy}', which has no deadline: set latency.late to drop"
            )
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"latency.deadline_seconds must be above 0, got {self.seconds:g}")

    def settle(self, view: View, cost: Cost, work: Work, mixed: Callable[[Ints], Mix]) -> RoundPlan:
        """A round, with what is done about late clients; `mixed` says how it then ends."""
        done = cost.done(work)
        mix = mixed(done)
        if self.policy == "equalise" and work.ends is None:  # otherwise the scheme decides
            work = replace(work, share=_shares(view, cost, work, mix, done))
        if self.seconds is None:
            return RoundPlan(work, done, done, mix)
        all_in, who = RoundPlan(work, done, done, mix), work.down.rows
        here = np.zeros(len(done), dtype=bool)
        here[who] = _ends(cost, all_in)[who] <= self.seconds * SLACK
        if not here.any():
            mix = without_uploads(mixed(np.zeros_like(done)))
        elif self.policy == "drop-unbiased":
            mix = self._unbiased(cost, all_in, here)
        elif not here[who].all():
            mix = mixed(np.where(here, done, 0))  # some schemes weight by steps
            mix = replace(mix, up=restricted(mix.up, here))
        if here[who].all():
            return RoundPlan(work, done, done, mix)
        lasts = self.seconds if work.lasts is None else min(self.seconds, work.lasts)
        fits = np.floor(self.seconds / cost.step_seconds * SLACK).astype(np.int64)
        spent = np.minimum(done, fits)
        work, lost = replace(work, lasts=lasts), int((~here[who]).sum())
        return RoundPlan(work, np.where(here, done, 0), spent, mix, lost)

    def check(self, rounds: Iterable[RoundPlan], cost: Cost) -> None:
        """Refuse a deadline that nobody meets, or hardly ever where channels change."""
        if self.seconds is None:
            return
        soonest, expected = np.inf, 0.0
        for all_in in rounds:
            who = all_in.work.down.rows
            needs = _begins(cost, all_in) if cost.channel else _ends(cost, all_in)
            soonest = min(soonest, float(needs[who].min(initial=np.inf)))
            known = all_in.work.ends is None  # otherwise chance does not decide when models arrive
            expected += float(_chances(cost, all_in, self.seconds)[who].sum()) if known else 1.0
            self._check_starts(all_in)
        if self.seconds * SLACK < soonest < np.inf:
            raise InputError(
                f"latency.deadline_seconds is {self.seconds:g}, but even the fastest client "
                f"needs {soonest:.3g} seconds: raise it, or let clients take fewer steps"
            )
        if expected < RARE:
            raise InputError(
                f"latency.deadline_seconds is {self.seconds:g}, which the clients' channels "
                f"(radio.fading, radio.trace) let somebody meet in only {expected:.1g} of the "
                f"rounds: raise it, or let clients take fewer steps"
            )

    def _check_starts(self, all_in: RoundPlan) -> None:
        if self.policy != "drop-unbiased":
            return
        if all_in.work.share is not None or not _starts_at_home(all_in):
            raise InputError(
                "latency.late is 'drop-unbiased', which needs clients that start from the model "
                "of the server they report to (network.overlap lets some start between two), on a "
                "bandwidth of their own: set latency.late to drop"
            )

    def _unbiased(self, cost: Cost, all_in: RoundPlan, here: Bools) -> Mix:
        """Everyone present counts by its weight over its chance of being present.

        Only differences from the server's own model are divided, so the weights need not sum to 1.
        """
        assert self.seconds is not None
        mix = all_in.mix
        chances = _chances(cost, all_in, self.seconds)
        which = np.maximum(mix.up.sources, -1)  # -1: what lies on shelves, which is always there
        if (np.append(chances, 1.0)[which] == 1).all():
            return mix
        self._check_starts(all_in)
        sure = np.append(np.where(here, chances, 1.0), 1.0)
        up = replace(mix.up, weights=mix.up.weights / sure[which])
        return replace(mix, up=restricted(up, here, whole=False), payload="update")


WAITING = StragglerPolicy()  # for everyone


def _begins(cost: Cost, round_: RoundPlan) -> Floats:
    """(C,) when each client begins to send."""
    if isinf(round_.work.deadline):
        return floats(round_.done * cost.step_seconds)
    return np.full(len(round_.done), round_.work.deadline)


def _ends(cost: Cost, round_: RoundPlan) -> Floats:
    """(C,) when each client's model arrives."""
    if round_.work.ends is not None:
        ends = np.zeros(len(round_.done))
        ends[round_.work.down.rows] = round_.work.ends
        return floats(ends)
    sending = cost.uploads(round_.mix.up, round_.work)
    return floats(_begins(cost, round_) + sending + cost.delay(round_.mix.up.via))


def _chances(cost: Cost, round_: RoundPlan, deadline: float) -> Floats:
    """(C,) how likely each client is to meet the deadline."""
    if cost.channel is None:
        return floats(_ends(cost, round_) <= deadline * SLACK)
    rates = np.ones(len(round_.done)) if cost.client_rates is None else cost.client_rates
    nominal = cost.uploads(round_.mix.up, round_.work) * rates
    left = deadline * SLACK - _begins(cost, round_) - cost.delay(round_.mix.up.via)
    needed = np.divide(nominal, left, out=np.full(len(left), np.inf), where=left > 0)
    return cost.channel.chance(needed)


def _starts_at_home(round_: RoundPlan) -> bool:
    """Does every client start from the model that its own changes are added to?"""
    if round_.mix.payload == "update":
        return True
    begun = {client: sources.tolist() for client, sources, _ in round_.work.down}
    return all(
        begun[int(source)] == [server] for server, sources, _ in round_.mix.up for source in sources
    )


def without_uploads(mix: Mix) -> Mix:
    """A mix for which no model arrived: servers mix what they have, but nothing from shelves."""
    shelved = any(
        dst >= 0 and (sources < 0).any() for stage in mix.stages for dst, sources, _ in stage
    )
    return replace(mix, up=nothing(mix.up), across=None if shelved else mix.across)


def _shares(view: View, cost: Cost, work: Work, mix: Mix, done: Ints) -> Floats:
    """(R,) bandwidth with which all clients of a cell end at once; a scheme's own choice stands."""
    who = work.down.rows
    if work.share is not None:
        return work.share
    begins = _begins(cost, RoundPlan(work, done, done, mix))[who]
    sending = cost.uploads(mix.up, work)[who]
    snr, home = cost.link_times.snrs(len(who), who), view.net.home[who]
    share = np.ones(len(who))
    for d in np.unique(home):
        cell = np.flatnonzero((home == d) & (sending > 0))
        if len(cell) > 1:
            share[cell] = _together(
                begins[cell].tobytes(), sending[cell].tobytes(), snr[cell].tobytes()
            )
    return floats(share)


@lru_cache(maxsize=1024)  # where channels are constant, every round asks for the same
def _together(begins: bytes, sending: bytes, snr: bytes) -> Floats:
    """The shares of one cell's clients, each of which brings a bandwidth of 1."""
    arrays = [np.frombuffer(values) for values in (begins, sending, snr)]
    _, share = equalised(arrays[0], arrays[1], arrays[2], float(len(arrays[0])))
    return floats(share)


HALVINGS = 50  # of the interval that contains the common end: almost to the last bit


def needed(efficiency: Floats, snr: Floats) -> Floats:
    """The share of bandwidth with which each client reaches this many bits per second and hertz.

    Solves b log2(1 + snr/b) = efficiency; infinite where no bandwidth is enough.

    >>> needed(np.array([5.0]), np.array([10**1.5])).round(5)
    array([0.99235])
    """
    nats = efficiency * log_of(2)
    gap = nats / snr
    reachable = gap < 1
    safe = np.where(reachable, gap, 0.5)
    share = -nats / (_lower_lambert(-safe * exp(-safe)) + safe)
    return floats(np.where(reachable, share, np.inf))


def _lower_lambert(x: Floats) -> Floats:
    """W(x) exp(W(x)) = x on the lower branch, for -1/e < x < 0: Halley's method."""
    near = np.sqrt(2 * np.maximum(1 + np.e * x, 0))
    far = log(-x) - log(-log(-x))
    w = np.where(x < -0.25, -1 - near - near**2 / 3, far)
    for _ in range(5):  # each triples the number of correct digits
        error = w * exp(w) - x
        derivative = exp(w) * (w + 1) - (w + 2) * error / (2 * w + 2)
        w = w - np.divide(error, derivative, out=np.zeros_like(error), where=derivative != 0)
    return floats(w)


def equalised(busy: Floats, sending: Floats, snr: Floats, total: float) -> tuple[float, Floats]:
    """When all can finish at once; (R,) their shares of the bandwidth, `total` together.

    `busy` (R,) seconds of computing come first; `sending` (R,) are at a share of 1.

    >>> equalised(np.array([1.0, 1.0]), np.array([2.0, 2.0]), np.array([30.0, 30.0]), 2.0)
    (3.0, array([1., 1.]))
    """
    efficiency = log2(1 + snr)

    def shares(end: float) -> Floats:
        return needed(efficiency * sending / (end - busy), snr)

    low, high = float(busy.max()), float((busy + sending).max())
    while not shares(high).sum() <= total:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if shares(middle).sum() <= total else (middle, high)
    return high, shares(high)
