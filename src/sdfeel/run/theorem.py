"""A run in the theorems' terms: which of them covers it, and up to which learning rate."""

from collections.abc import Callable, Mapping
from math import isfinite, nan
from typing import Any

import numpy as np

from sdfeel.core.errors import SdfeelError
from sdfeel.core.named import recorded_name
from sdfeel.core.scheme import Terms
from sdfeel.core.seeds import rng
from sdfeel.engine.batches import passes
from sdfeel.engine.estimates import probing
from sdfeel.experiment.build import Prepared
from sdfeel.experiment.build_training import preset_of
from sdfeel.run.bounds import Covered, Promise
from sdfeel.run.loss_estimates import curvature, look
from sdfeel.schemes import terms as terms_of
from sdfeel.sim.simulate import Simulation
from sdfeel.theory import asynchronous
from sdfeel.theory.problem import Problem, warning

ASKED = (2, 12)  # clients asked for their curvature: at least, at most
SHARE = 1 / 2000  # of a run's gradients that this may cost: each client takes two


def covered(ready: Prepared) -> Covered | None:
    """The run in Theorem 1's terms; None if it does things that the theorem does not cover."""
    terms, net, batches = terms_of(ready.scheme), ready.net, _batches(ready)
    if terms is None or terms.theorem != 1 or not _plain(ready) or net.peers is not None:
        return None
    zeta = net.zeta if len(net.servers) > 1 else 0.0
    contraction = 0.0 if terms.alpha is None else zeta**terms.alpha
    told = [f"{key}={value}" for key, value in _named(terms) if value is not None]
    words = ", ".join(told if terms.alpha is None else [*told, f"zeta={zeta:.3g}"])
    shares = net.samples[net.clients] / net.samples[net.clients].sum()
    return Covered(
        rate=ready.experiment.training.learning_rate,
        period=terms.tau1 * (terms.tau2 or 1) * batches,
        contraction=contraction,
        concentration=float(shares @ shares),
        words=words if batches == 1 else f"{words}, {batches} batches in an iteration",
    )


def _named(terms: Terms) -> list[tuple[str, int | None]]:
    return [("tau1", terms.tau1), ("tau2", terms.tau2), ("alpha", terms.alpha)]


def notes(ready: Prepared) -> tuple[str, ...]:
    """A sentence if the learning rate is beyond what is proven for this run."""
    known = _regime(ready)
    if known is None:
        return ()
    try:
        steepest = _steepest(ready)
    except SdfeelError:
        steepest = nan
    if not isfinite(steepest):
        return ()  # training itself reports what is wrong with the data or the model
    theorem, largest, words = known
    rate = ready.experiment.training.learning_rate
    said = warning(rate, largest(steepest), theorem, f"{words}, measured L={steepest:.3g}")
    return () if said is None else (said,)


def _regime(ready: Prepared) -> tuple[int, Callable[[float], float], str] | None:
    """The theorem that covers a run, its largest step for a given L, and the run in words."""
    known = covered(ready)
    if known is not None:
        return 1, known.largest, known.words
    terms = terms_of(ready.scheme)
    if terms is None or terms.theorem != 2 or not _plain(ready):
        return None
    pace = _pace(ready)

    def largest(smoothness: float) -> float:
        return asynchronous.largest_step(Problem(smoothness, 0, 0, 0, 0), pace)

    return 2, largest, f"{pace.theta_min:g} to {pace.theta_max:g} steps in a round"


def _plain(ready: Prepared) -> bool:
    """Is it plain SGD by everyone in every round, on models that arrive as they were sent?"""
    training = ready.experiment.training
    return (
        recorded_name(training.optimizer) == "sgd"
        and recorded_name(training.loss) == "cross-entropy"
        and not training.momentum
        and not training.proximal
        and not any(training.penalties.values())
        and ready.packing is None
        and ready.personal is None
        and ready.decisions.outages is None
        and ready.decisions.late.seconds is None
    )


def _batches(ready: Prepared) -> int:
    """Steps in one local iteration; if it is a pass over the data, those of the largest client."""
    if preset_of(ready.experiment).iteration_unit == "batch":
        return 1
    size = ready.experiment.training.batch_size
    return max(passes(part, size) for part in ready.data.parts)


def _pace(ready: Prepared) -> asynchronous.ClusterPace:
    """How unevenly clusters advance. Mixing is taken as immediate (rho is 0), which can only make
    the largest step look larger."""
    steps, seconds = [], []
    for number in range(len(ready.decisions.lanes)):
        first = ready.decisions.round(number, 0)
        steps += first.done[first.done > 0].tolist()
        seconds.append(first.bill.seconds)
    batches = _batches(ready)
    return asynchronous.ClusterPace(
        theta_min=min(steps) * batches,
        theta_max=max(steps) * batches,
        age=asynchronous.oldest(seconds),
        rho=0.0,
    )


def _steepest(ready: Prepared) -> float:
    """The largest curvature that a few clients see where training begins: a lower bound on L."""
    clients, seed = ready.net.clients, ready.experiment.seed
    gradients = SHARE * len(clients) * ready.experiment.training.iterations
    asked = min(int(np.clip(gradients / 2, *ASKED)), len(clients))
    start = ready.engine.initial()
    who = rng(seed, "curvature").choice(clients, size=asked, replace=False)
    seen = [curvature(probing(ready.engine), int(client), start) for client in who]
    return float(np.max(seen))


MOST_ASKED = 200  # clients, at most; if there are more, others are drawn every time


class Estimating:
    """Estimates the theorem's constants: call it at every measurement. `record` is its state."""

    def __init__(self, covered: Covered | None, record: Mapping[str, Any] | None = None) -> None:
        self._covered = covered
        self._promise = None if record is None else Promise.from_record(record)

    @property
    def record(self) -> dict[str, Any] | None:
        """For a checkpoint."""
        return None if self._promise is None else self._promise.record()

    def __call__(self, simulation: Simulation) -> dict[str, float]:
        """Estimates from the clients' losses at the mean model, and what they promise."""
        net, state = simulation.net, simulation.state
        clients = net.clients
        if len(clients) > MOST_ASKED:
            draws = rng(simulation.seed, "estimates", state.number)
            clients = np.sort(draws.choice(clients, size=MOST_ASKED, replace=False))
        shares = net.samples[clients] / net.samples[clients].sum()
        # The next mini-batches: the model has not seen them, so they do not flatter it.
        steps = state.taken[clients]
        seen = look(probing(simulation.engine), clients, shares, simulation.model(), steps)
        if self._promise is None:
            self._promise = Promise.begin(seen)
        else:
            self._promise = self._promise.after(state.iterations, seen)
        return self._promise.measurements(self._covered)
