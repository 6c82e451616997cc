"""Estimates on the way: at every measurement a few gradients of every client, for the bounds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sdfeel.core.seeds import rng
from sdfeel.engine.probe import probing
from sdfeel.run.plan.probe import look
from sdfeel.run.promise import Covered, Promise
from sdfeel.sim.simulate import Simulation

ASKED = 200  # clients at most; of more, others are drawn every time


class Estimating:
    """Ask it at every measurement; between two, `record` is all that it must remember."""

    def __init__(self, covered: Covered | None, record: Mapping[str, Any] | None = None) -> None:
        self._covered = covered
        self._promise = None if record is None else Promise.from_record(record)

    @property
    def record(self) -> dict[str, Any] | None:
        """For a checkpoint."""
        return None if self._promise is None else self._promise.record()

    def __call__(self, simulation: Simulation) -> dict[str, float]:
        """What the clients' losses are like at the mean model, and what that promises."""
        net, state = simulation.net, simulation.state
        clients = net.clients
        if len(clients) > ASKED:
            draws = rng(simulation.seed, "estimates", state.number)
            clients = np.sort(draws.choice(clients, size=ASKED, replace=False))
        shares = net.samples[clients] / net.samples[clients].sum()
        # The mini-batches that come next: the model has not seen them, so nothing is flattered.
        steps = state.taken[clients]
        seen = look(probing(simulation.engine), clients, shares, simulation.model(), steps)
        if self._promise is None:
            self._promise = Promise.begin(seen)
        else:
            self._promise = self._promise.after(state.iterations, seen)
        return self._promise.measurements(self._covered)
