"""What the methods that cancel drift share: variates, directions, and the shift between them.

A client's variate is the mean gradient of its last round. A server's direction is the one that its
clients should follow. Each client adds the difference to every local gradient, so that clients with
different data move in parallel.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError
from sdfeel.core.link_times import Link
from sdfeel.core.mixing import Mixing, of_matrix, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.portable import dot
from sdfeel.core.scheme import Facts, Local, Mix, View, Work
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates
from sdfeel.schemes.d_squared import damped
from sdfeel.schemes.fed_nova import norm
from sdfeel.schemes.two_levels import Gossiping

Trust = Annotated[
    float,
    "how far a correction may move a client in a round, in lengths of its model (0: any)",
]
TRUST = 0.1  # longer corrections feed on themselves where losses are not convex
# What such schemes do not tolerate, and why.
UNJUDGED = "keeps corrections of gradients, too, which no rule judges"
WHOLE = "corrects by what each client really did"
STEPS = "reads gradients off every iteration of an update"
EVERYBODY = "needs every cluster in every round"
CONSTANT = "needs a constant mixing matrix"
SETTLED = "keeps corrections that belong to a cluster's clients"
TRACKING = Tolerates(
    EDGE,
    overlap=IGNORED,
    peers=CONSTANT,
    moving_clients=SETTLED,
    drop_unbiased=WHOLE,
    cluster_rule=UNJUDGED,
    server_rule=UNJUDGED,
    fedrep=STEPS,
)
VARIATE = Shelf("variate", "client", "client", "zero")
DIRECTION = Shelf("direction", "server", start="zero")


def shift(net: Network, clients: Ints | None = None) -> Mixing:
    """direction - variate, for each of `clients` (default: all)."""
    return _shift_of_all(net) if clients is None else _shift(net, clients)


@lru_cache(maxsize=16)
def _shift_of_all(net: Network) -> Mixing:
    return _shift(net, net.clients)


def _shift(net: Network, clients: Ints) -> Mixing:
    own, way = net.shelf(VARIATE.name)[clients], net.shelf(DIRECTION.name)[net.home[clients]]
    rows = zip(clients.tolist(), own.tolist(), way.tolist(), strict=True)
    return of_rows({i: {b: 1.0, c: -1.0} for i, c, b in rows}, "client-server")


def learned(net: Network, who: Ints, scale: Floats, via: Link) -> Mixing:
    """What updates add to models, variates and directions.

    `scale` (R,) turns the updates of the clients `who` into gradients. A model moves by the mean of
    the updates that arrived. A variate becomes its client's mean gradient. A direction moves as far
    as its cluster's gradients have; clients whose updates did not arrive keep theirs.
    """
    own, ways = net.shelf(VARIATE.name)[who].tolist(), net.shelf(DIRECTION.name).tolist()
    everyone, count = net.clients, len(net.servers)
    cluster = np.bincount(net.home[everyone], net.samples[everyone], minlength=count)
    came = np.bincount(net.home[who], net.samples[who], minlength=count)
    rows: dict[int, dict[int, float]] = {}
    for i, variate, each in zip(who.tolist(), own, scale.tolist(), strict=True):
        d = int(net.home[i])
        way, size = ways[d], float(net.samples[i])
        rows.setdefault(d, {})[i] = size / float(came[d])
        rows.setdefault(way, {way: -float(came[d] / cluster[d])})
        rows[way][i] = -size / float(cluster[d]) * each
        rows[variate] = {way: -1.0, i: -each}
    return of_rows(rows, via)


def per_gradient(view: View, who: Ints, steps: Ints) -> Floats:
    """(R,) the factor that turns each update, of so many steps, into its mean gradient."""
    local = view.local
    gradients = local.gradients(steps, view.net.samples[who])
    return floats(1 / (local.rate * norm(gradients, local)))


def per_round(view: View, steps: int, ago: int = 0) -> float:
    """The factor that turns a cluster's move in a round of `steps` steps into a gradient.

    All clusters share it. The round is this one, or the one so many rounds `ago`, when the learning
    rate may have been different.
    """
    if ago and view.local.schedule is not None:
        view = view.changed(local=view.local.in_another_round(view.k - ago, steps))
    net, who = view.net, view.net.clients
    scale = 1 / per_gradient(view, who, np.full(len(who), steps))
    return float(net.samples[who].sum() / dot(net.samples[who], scale))


def per_meeting(view: View, steps: int, rounds: int) -> float:
    """The same for a move in all `rounds` rounds since the servers last met, this one included."""
    if view.local.schedule is None:
        return per_round(view, steps) / rounds
    return 1 / sum(1 / per_round(view, steps, ago) for ago in range(rounds))


def since_met(view: View, tau2: int) -> int:
    """Rounds since the servers last met in the cloud, if it was not away; this one included."""
    return int(view.memory.get("since", view.k % tau2)) + 1


def remembering_meetings(mix: Mix, view: View, tau2: int, meets: bool) -> Mix:
    """The same; if the cloud was away, it remembers how long ago the servers met."""
    rounds = 0 if meets and view.cloud else since_met(view, tau2)
    usual = (view.k + 1) % tau2
    return mix if rounds == usual else replace(mix, memory={"since": floats(rounds)})


@lru_cache(maxsize=16)
def calm_gossip(net: Network, hops: int) -> Mixing:
    """Servers mix with their neighbours; corrections need weights that do not oscillate."""
    return of_matrix(damped(net.mixing), hops=hops)


def corrected(name: str, view: View, work: Work, trust: float, by: Mixing | None = None) -> Work:
    """The same work with corrected steps: by direction - variate, or by what `by` says.

    No correction moves a client further than the share `trust` of its model's length. `name` is the
    scheme's, for refusals.
    """
    _check(name, view.local)
    who = work.down.rows
    if by is None:
        by = shift(view.net, None if len(who) == len(view.net.clients) else who)
    if not trust:
        return replace(work, shift=by)
    scale = per_gradient(view, who, np.full(len(who), work.steps))
    return replace(work, shift=by, clip=trust * float(scale.min()))


def check_trust(trust: float) -> None:
    """Refuse a trust below 0, or one that is not a number."""
    if not trust >= 0:
        raise InputError(
            f"scheme.trust must be at least 0, got {trust:g}: 0 trusts corrections of any length"
        )


def _check(name: str, local: Local) -> None:
    """Refuse local steps from which no gradient can be read."""
    if not local.sums:
        raise InputError(
            f"scheme.name is {name}, which reads gradients off the clients' updates, but "
            f"training.optimizer is {local.optimizer}: set it to sgd"
        )


@dataclass(frozen=True)
class Tracking(Gossiping):
    """What the schemes share that are SD-FEEL with corrected clients."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = TRACKING
    called: ClassVar[str]  # the scheme's name, for refusals
    shelves: ClassVar[tuple[Shelf, ...]]

    trust: Trust = TRUST

    def __post_init__(self) -> None:
        super().__post_init__()
        check_trust(self.trust)

    def adapt(self, net: Network) -> Network:
        return replace(net, shelves=self.shelves)

    def work(self, view: View) -> Work:
        return corrected(self.called, view, super().work(view), self.trust)
