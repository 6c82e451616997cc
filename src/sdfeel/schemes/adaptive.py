"""Adaptive control: how often to average is chosen anew every round, from what is measured.

Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing Systems", 2019.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError, at_least
from sdfeel.core.estimates import Estimates
from sdfeel.core.mixing import broadcast, collect, gossip
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Mix, View, Work

GROWTH = 10  # times that the number of steps may grow from one round to the next
FLAT = 1e-5  # a smaller smoothness is taken as this one
CLOSE = 0.5  # share of what one round drives models apart that may be left after mixing
MOST = 20  # exchanges


@dataclass(frozen=True)
class Adaptive:
    """Servers average and gossip after as many steps as the measured gradients call for."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)

    budget: Annotated[float, "seconds of virtual time that training may take"] = 100.0
    alpha: Annotated[
        int | None, "exchanges with the neighbours after every averaging (none: chosen, too)"
    ] = None
    every: Annotated[int, "rounds between two choices"] = 1
    tau_max: Annotated[int, "most local iterations between two averagings"] = 100
    phi: Annotated[float, "how much a larger step gains (0.025 suits linear models, 5e-5 CNNs)"] = (
        0.025
    )

    def __post_init__(self) -> None:
        at_least("scheme.every", self.every, 1)
        if self.alpha is not None:
            at_least("scheme.alpha", self.alpha, 1)
        at_least("scheme.tau_max", self.tau_max, 1)
        for name in ("budget", "phi"):
            if not getattr(self, name) > 0:
                raise InputError(f"scheme.{name} must be above 0, got {getattr(self, name):g}")

    def adapt(self, net: Network) -> Network:
        return net

    def lanes(self, net: Network) -> tuple[Lane, ...]:
        return (net.servers,)

    def work(self, view: View) -> Work:
        tau, _ = self._choice(view)
        asked = (view.k + 1) % self.every == 0  # the next round chooses
        return Work(down=broadcast(view.net), steps=tau, measure=asked)

    def mix(self, view: View, done: Ints) -> Mix:
        tau, alpha = self._choice(view)
        alone = len(view.net.servers) == 1
        return Mix(
            up=collect(view.net),
            across=None if alone else gossip(view.net, alpha),
            memory={"choice": np.array([tau, alpha], dtype=float)},
        )

    def _choice(self, view: View) -> tuple[int, int]:
        """Local steps and exchanges of this round."""
        last = view.memory.get("choice", np.array([1.0, self.alpha or 1]))
        tau, alpha = int(last[0]), int(last[1])
        if view.measured is None:
            return tau, alpha
        chosen = self._tau(view, view.measured, tau, alpha)
        if self.alpha is None:
            alpha = exchanges(view.net.zeta, view.measured, view.local.rate * chosen)
        return chosen, alpha

    def _tau(self, view: View, seen: Estimates, last: int, alpha: int) -> int:
        step = float(view.step_seconds[view.net.clients].max())
        hops = alpha if len(view.net.servers) > 1 else 0
        sending = float(view.air.uploads(len(view.step_seconds))[view.net.clients].max())
        meeting = sending + hops * view.air.transfer["server-server"]
        taus = np.arange(1, min(GROWTH * last, self.tau_max) + 1)
        score = bound(taus, seen, view.local.rate, self.phi, step, meeting, self.budget)
        return int(taus[np.argmin(score)])


def exchanges(zeta: float, seen: Estimates, reach: float) -> int:
    """Exchanges until the servers are no further apart than their clients' gradients drive them.

    `reach` is the step size times the local steps. Each exchange shrinks the distance by zeta.

    >>> exchanges(0.5, Estimates(rho=1, beta=1, delta=2, spread=0.8), reach=0.1)
    3
    """
    bearable = CLOSE * reach * seen.delta
    if zeta <= 0 or seen.spread <= bearable or bearable <= 0:
        return 1
    return int(np.clip(np.ceil(np.log(bearable / seen.spread) / np.log(zeta)), 1, MOST))


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
