"""Asynchronous SD-FEEL: each server has its own deadline and mixes by staleness.

Sun et al., "Semi-Decentralized Federated Edge Learning With Data and Device Heterogeneity".
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, repeated
from sdfeel.core.mixing import Mixing, broadcast, broadcast_within, star_among
from sdfeel.core.network import Network
from sdfeel.core.portable import dot
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, Terms, View, Work, check_kinds
from sdfeel.core.staleness import Counter, trust
from sdfeel.core.tolerance import AMONG_SERVERS, EDGE, IGNORED, Only, Tolerates

NO_LIMIT = 2**31  # steps; the deadline is the limit
OLDEST, LEAST = np.array([2**53]), 1e-200  # an age that no model reaches; what still counts


@dataclass(frozen=True)
class AsyncSDFeel:
    """Every edge server keeps its own deadline and weights its neighbours by staleness."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        mixing=IGNORED,
        overlap=IGNORED,
        moving_clients="has no common round at which a client could change its server",
        server_optimizer="lets neighbours change a server's model at any time",
        server_rule="lets a server mix for its neighbours, too, which then judge nothing",
    )

    theta_min: Annotated[
        int,
        "steps that a cluster's slowest client takes before its deadline",
        Only("scheme.deadline", (None,)),
    ] = 5
    deadline: Annotated[
        float | tuple[float, ...] | None,
        "seconds of computation for all servers, or one number each (none: from theta_min)",
    ] = None
    psi: Annotated[
        Literal["paper", "constant", "polynomial", "hinge", "exponential"],
        "how much an old model counts; constant is the vanilla variant",
        AMONG_SERVERS,
    ] = "paper"
    psi_a: Annotated[
        float,
        "polynomial: exponent; hinge: slope; exponential: scale",
        Only("scheme.psi", ("polynomial", "hinge", "exponential")),
        AMONG_SERVERS,
    ] = 0.5
    psi_b: Annotated[
        float,
        "hinge: age up to which a model counts in full",
        Only("scheme.psi", ("hinge",)),
        AMONG_SERVERS,
    ] = 4.0
    staleness: Annotated[
        Counter,
        "what counts as a model's age: rounds of any server (global), rounds since anyone changed "
        "the model (touched), or rounds that its server has heard of (hearsay)",
        AMONG_SERVERS,
    ] = "global"
    balanced: Annotated[
        bool, "keep the mean weighted by cluster sizes (the paper does not)", AMONG_SERVERS
    ] = False

    def __post_init__(self) -> None:
        if isinstance(self.deadline, list | np.ndarray):  # as programs write several numbers
            object.__setattr__(self, "deadline", tuple(np.asarray(self.deadline).tolist()))
        check_kinds(self)
        repeated("scheme.theta_min", self.theta_min, "local iterations")
        trust(self.psi, np.zeros(1, dtype=np.int64), self.psi_a, self.psi_b)
        given = self.deadline if isinstance(self.deadline, tuple) else (self.deadline,)
        for seconds in given:
            if seconds is not None and not seconds > 0:
                raise InputError(f"scheme.deadline must be above 0 seconds, got {seconds:g}")

    @property
    def terms(self) -> Terms:
        return Terms(2, self.theta_min)

    @property
    def repeats(self) -> bool:
        """Does even the oldest model count? A server whose model counts nothing sends none."""
        return bool(trust(self.psi, OLDEST, self.psi_a, self.psi_b)[0] > LEAST)

    def adapt(self, net: Network) -> Network:
        if isinstance(self.deadline, tuple) and len(self.deadline) != len(net.servers):
            raise InputError(
                f"scheme.deadline gives {len(self.deadline)} numbers for {len(net.servers)} "
                f"servers: give one each, or a single number"
            )
        return net

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return tuple((d,) for d in setting.servers)

    def work(self, view: View) -> Work:
        (d,) = view.lane
        if view.drawn is not None:
            return Work(broadcast(view.net, view.drawn), *self._limits(view))
        key = "until the deadline", d, self.theta_min, self.deadline
        seconds, found = view.net.memo.get(key, (None, None))
        if found is None or seconds is not view.step_seconds:
            found = Work(broadcast_within(view.net, d), *self._limits(view))
            view.net.memo[key] = view.step_seconds, found
        work: Work = found
        return work

    def _limits(self, view: View) -> tuple[int, float]:
        """Steps and seconds that a round's clients have."""
        (d,) = view.lane
        mine = view.net.cluster(d)
        slowest = float(view.step_seconds[mine].max())
        deadline = self.deadline[d] if isinstance(self.deadline, tuple) else self.deadline
        if deadline is None:
            deadline = self.theta_min * slowest
        # A client that finishes no step has nothing to contribute: everybody gets time for one.
        return NO_LIMIT, max(deadline, slowest)

    def mix(self, view: View, done: Ints) -> Mix:
        (d,) = view.lane
        net = view.net
        ages = view.clocks.ages(d, self.staleness, net.neighbourhood(d))
        # Neighbours often have the same ages as in some earlier round.
        key = "star", d, ages.tobytes(), self.psi, self.psi_a, self.psi_b, self.balanced
        across = net.recent(key, lambda: self._star(net, d, ages))
        return Mix(_collected(net, d, done), across, payload="update")

    def _star(self, net: Network, server: int, ages: Ints) -> Mixing | None:
        """How a server mixes with neighbours of these ages."""
        counts = trust(self.psi, ages, self.psi_a, self.psi_b)
        alone = not net.linked.row(server).size
        return None if alone else star_among(net, server, counts, self.balanced)


def _collected(net: Network, server: int, done: Ints) -> Mixing:
    """A server's weights for its clients' updates, reused while they take the same steps."""
    mine = net.cluster(server)
    key = "collected", server
    steps = done[mine].tobytes()
    known, found = net.memo.get(key, (b"", None))
    if found is None or known != steps:
        mine = mine[done[mine] > 0]
        share = net.samples[mine] / net.samples[mine].sum()
        # A fast client takes more steps; scaling its update to the mean number of steps keeps
        # it from pulling the model towards its own data.
        weights = share * dot(share, done[mine]) / done[mine]
        one = np.array([0, len(mine)])
        found = Mixing(np.array([server]), one, mine, weights, "client-server", votes=share)
        net.memo[key] = steps, found
    collected: Mixing = found
    return collected
