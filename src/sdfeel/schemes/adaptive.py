"""Adaptive control: how often to average is chosen in every round, from measurements.

Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing Systems", 2019.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError, at_least, repeated
from sdfeel.core.mixing import Mixing, average, broadcast, collect, gossip
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Estimates, Facts, Lane, Mix, Setting, View, Work, check_kinds
from sdfeel.core.tolerance import AMONG_SERVERS, EDGE, IGNORED, Tolerates

GROWTH = 10  # factor by which the number of steps may grow from one round to the next
FLAT = 1e-5  # a smaller smoothness is taken as this one
MOST = 20  # exchanges in one meeting, at most
RECENT = 0.2  # how much the newest round counts for the usual number of exchanges

NEWEST = Shelf("newest", "server")  # the round's start, until its loss is known
BEST = Shelf("best", "server", returned=True)  # of known losses, the lowest
GOING_ON, LAST_TRAINING, LAST_LOSS = 0, 1, 2  # once the budget ends, two more rounds


@dataclass(frozen=True)
class Adaptive:
    """Servers average and gossip after as many steps as the measured gradients call for."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        overlap=IGNORED,
        peers="counts exchanges by a constant mixing matrix",
        moving_clients="counts exchanges by a constant mixing matrix",
        sampling="asks every client for the losses of models that it was sent before",
        server_optimizer="chooses its periods for servers that only average",
        server_rule="counts exchanges by a constant mixing matrix",
        personal="compares the losses of one model that all share",
        private="asks clients for gradients and losses of their own",
    )

    budget: Annotated[float, "seconds of virtual time that training may take"] = 100.0
    alpha: Annotated[
        int | None,
        "exchanges with the neighbours after every averaging (none: as many as needed)",
        AMONG_SERVERS,
    ] = None
    every: Annotated[int, "rounds between two choices"] = 1
    tau_max: Annotated[int, "most local iterations between two averagings"] = 100
    phi: Annotated[float, "how much a larger step gains (0.025 suits linear models)"] = 5e-5

    def __post_init__(self) -> None:
        check_kinds(self)
        at_least("scheme.every", self.every, 1)
        if self.alpha is not None:
            repeated("scheme.alpha", self.alpha, "exchanges")
        repeated("scheme.tau_max", self.tau_max, "local iterations")
        for name in ("budget", "phi"):
            if not getattr(self, name) > 0:
                raise InputError(f"scheme.{name} must be above 0, got {getattr(self, name):g}")

    def adapt(self, net: Network) -> Network:
        return replace(net, shelves=(NEWEST, BEST))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        tau, _ = self._choice(view)
        # Clients report it when the next round ends, and the round after that uses it.
        asked = (view.k + 2) % self.every == 0 or _stage(view) == LAST_TRAINING
        # Every client has been sent the best models, and has kept its own.
        return Work(broadcast(view.net), tau, measure=asked, compare=_known(view.net, BEST))

    def mix(self, view: View, done: Ints) -> Mix:
        tau, alpha = self._choice(view)
        one, step, sending = _prices(view)
        usual = view.memory.get("usual", np.array([float(alpha)]))
        quiet = _remembered(view, "quiet") + 1 if alpha == 0 else 0.0
        spent = max(_remembered(view, "spent"), view.seconds)
        spent += min(tau * step + sending, view.patience) + alpha * one
        later = self._next(view, tau, alpha, quiet)
        if not done.any():  # everyone was late: all we learn is that the round is too long
            later = max(1, tau // 2), alpha
        stage, chosen = self._ending(view, *later, spent)
        return Mix(
            up=collect(view.net),
            across=self._stages(view, alpha),
            memory={
                "choice": np.array([float(chosen), later[1]]),
                "usual": usual + RECENT * (alpha - usual),
                "quiet": np.array([quiet]),
                "spent": np.array([spent]),
                "stage": np.array([float(stage)]),
            },
            over=f"the budget of {self.budget:g} s is spent" if stage > LAST_LOSS else None,
        )

    def _stages(self, view: View, alpha: int) -> tuple[Mixing, ...]:
        """The model at the round's start is kept if its loss is the lowest; then servers mix."""
        net, seen = view.net, view.measured
        better = seen is not None and seen.loss < seen.compared
        kept = (_copied(net, BEST, NEWEST),) if better else ()
        mixed = (gossip(net, alpha),) if alpha and len(net.present) > 1 else ()
        return (*kept, *mixed, _copied(net, NEWEST))

    def _choice(self, view: View) -> tuple[int, int]:
        """Local steps and exchanges of this round."""
        tau, alpha = view.memory.get("choice", np.array([1.0, self.alpha or 1])).tolist()
        return int(tau), int(alpha)

    def _next(self, view: View, tau: int, alpha: int, quiet: float) -> tuple[int, int]:
        """Local steps and exchanges of the next round, from what was measured before this one."""
        if view.measured is None:
            return tau, alpha
        chosen = self._tau(view, view.measured, tau)
        if self.alpha is None:
            one, step, sending = _prices(view)
            # An exchange serves until the next one: the longer ago the last one was, the cheaper it
            # is.
            price = one / (one + sending + chosen * step) / (1 + quiet)
            alpha = exchanges(view.net.zeta, view.measured, view.local.rate * chosen, price)
        return chosen, alpha

    def _ending(self, view: View, tau: int, alpha: int, spent: float) -> tuple[int, int]:
        """The stage of the run after this round, and the steps of the next round.

        The last training round is shortened to leave time for one more step and averaging, in which
        clients report the loss of the model that it led to.
        """
        one, step, sending = _prices(view)
        stage = _stage(view)
        if stage > GOING_ON:
            return stage + 1, 1
        left = self.budget - spent - step - 2 * (sending + alpha * one)
        if tau * step < left:
            return GOING_ON, tau
        return LAST_TRAINING, min(max(int(left / step), 1), tau)

    def _tau(self, view: View, seen: Estimates, last: int) -> int:
        one, step, sending = _prices(view)
        # Exchanges may happen only in some rounds: what counts is what they cost on average.
        meeting = sending + one * float(view.memory.get("usual", np.ones(1))[0])
        taus = np.arange(1, min(GROWTH * last, self.tau_max) + 1)
        score = bound(taus, seen, view.local.rate, self.phi, step, meeting, self.budget)
        return int(taus[np.argmin(score)])


def _remembered(view: View, name: str) -> float:
    """A remembered number; 0 at first."""
    return float(view.memory.get(name, np.zeros(1))[0])


def _stage(view: View) -> int:
    """How close the end is."""
    return int(_remembered(view, "stage"))


@lru_cache(maxsize=16)
def _copied(net: Network, to: Shelf, of: Shelf | None = None) -> Mixing:
    """Every server copies its own row of a shelf (None: its model) to another."""
    sources = np.arange(len(net.servers)) if of is None else net.shelf(of.name)
    return average(net.shelf(to.name), sources, via="server-server")


@lru_cache(maxsize=16)
def _known(net: Network, shelf: Shelf) -> Mixing:
    """For every client, its own server's row of a shelf."""
    return average(net.clients, net.shelf(shelf.name)[net.home[net.clients]])


def _prices(view: View) -> tuple[float, float, float]:
    """Seconds of one exchange between servers, of a local iteration, and of an upload."""
    clients, alone = view.net.clients, len(view.net.present) == 1
    step = float(view.step_seconds[clients].max())
    sending = float(view.link_times.uploads(len(view.step_seconds))[clients].max())
    return 0.0 if alone else view.link_times.exchange(view.net.links), step, sending


def exchanges(zeta: float, seen: Estimates, reach: float, price: float) -> int:
    """Exchanges after which one more is not worth its price; none while servers are close.

    `reach` is the step size times the local steps, so that clients' gradients drive models apart
    by `reach` times delta. In that unit the servers' distance is weighed against time: an exchange
    shrinks it by the factor zeta, and takes the part `price` of a round.

    >>> seen = Estimates(rho=1, beta=1, delta=2, spread=0.8)
    >>> [exchanges(0.5, seen, reach=0.5, price=price) for price in (0.9, 0.3, 0.1, 0.01)]
    [0, 1, 2, 6]
    """
    away = reach * seen.delta
    if away <= 0:
        return 1
    counts = np.arange(MOST + 1)
    return int(np.argmin(price * counts + seen.spread / away * zeta**counts))


def drift(tau: Ints, seen: Estimates, rate: float) -> Floats:
    """How far local training leads away from training on all data, after `tau` steps.

    >>> drift(np.array([1, 2]), Estimates(rho=1, beta=2, delta=3), 0.1).round(6)
    array([0.  , 0.06])
    """
    beta = max(seen.beta, FLAT)
    away = seen.delta / beta * ((rate * beta + 1) ** tau.astype(float) - 1)
    return np.maximum(0.0, away - seen.delta * rate * tau)


def bound(
    tau: Ints,
    seen: Estimates,
    rate: float,
    phi: float,
    step: float,
    meeting: float,
    budget: float,
) -> Floats:
    """The loss that is guaranteed when the budget is spent, for each number of steps `tau`."""
    iterations = np.maximum(budget - step - meeting, step) * tau / (step * tau + meeting)
    away = drift(tau, seen, rate)
    root = np.sqrt(1 + 4 * iterations**2 * phi * seen.rho * rate * away / tau)
    return np.asarray((1 + root) / (2 * iterations * rate * phi) + seen.rho * away)
