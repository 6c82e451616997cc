"""Lanes are trained before their rounds end: nothing but the time that it takes may change."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions, uses_hearsay
from sdfeel.core.errors import Diverged
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Scheme
from sdfeel.engine.base import Engine, Scores, Task
from sdfeel.schemes import AsyncSDFeel, FedAsync, FedBuff, SDFeel
from sdfeel.sim.simulate import Simulation

CLIENTS, SERVERS = 12, 4
SCHEMES: list[Scheme] = [
    AsyncSDFeel(theta_min=2),
    AsyncSDFeel(theta_min=2, staleness="hearsay", psi="exponential"),
    FedAsync(tau1=3),
    FedBuff(tau1=2),
]


class Wanders:
    """Each step moves a model by an amount that only the client and the step know."""

    name = "wanders"

    def __init__(
        self, workers: int, beside: bool = False, fails: tuple[int, int] = (-1, 0)
    ) -> None:
        self.workers, self.trains_beside, self.fails = workers, beside, fails
        self.together: list[int] = []  # tasks of each call

    def initial(self) -> Tensor:
        return torch.linspace(-1, 1, 7)

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        self.together.append(len(tasks))
        row = torch.empty(7)  # one piece of memory, as real engines have
        for task in tasks:
            client, after = self.fails
            if task.client == client and task.first >= after:
                raise Diverged(f"client {client}")
            row.copy_(task.start)
            for step in range(task.first, task.first + task.steps):
                row += torch.sin(row + task.client + 0.1 * step)
            yield row

    def evaluate(self, model: Tensor) -> Scores:
        return Scores(float(model.sum()), 0.0, None)


def network() -> Network:
    ring = np.roll(np.eye(SERVERS), 1, axis=0) + np.roll(np.eye(SERVERS), -1, axis=0)
    home = np.arange(CLIENTS) % SERVERS
    return clustered(np.arange(1.0, CLIENTS + 1), home, ring)


def decisions(scheme: Scheme) -> Decisions:
    rates = dict.fromkeys(("client-server", "server-server", "server-cloud", "client-cloud"), 1e6)
    speeds = np.random.default_rng(3).uniform(0.1, 1.0, CLIENTS)
    return Decisions.of(scheme, network(), Cost(speeds, 1e5, rates), seed=5)  # type: ignore[arg-type]


def told(engine: Engine, scheme: Scheme, rounds: int = 60) -> list[object]:
    """Everything that a run says, and every model on the way."""
    run = Simulation(decisions(scheme), engine)
    said: list[object] = []
    for _ in range(rounds):
        event = next(run)
        said += [event, run.state.models.numpy().tobytes(), run.state.taken.tolist()]
    return said


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("beside", [False, True])
def test_training_ahead_changes_nothing(scheme: Scheme, beside: bool) -> None:
    one, many = Wanders(1), Wanders(4, beside)
    assert told(one, scheme) == told(many, scheme)
    assert len(many.together) < len(one.together) / 2
    assert sum(many.together) <= sum(one.together) + 16 * 4


@pytest.mark.parametrize("scheme", [AsyncSDFeel(theta_min=2), FedAsync(tau1=3)], ids=str)
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("fails", [(5, 0), (5, 6), (11, 9)])
def test_a_lane_that_fails_fails_in_its_own_round(
    scheme: Scheme, beside: bool, fails: tuple[int, int]
) -> None:
    def rounds(engine: Engine) -> int:
        run = Simulation(decisions(scheme), engine)
        with pytest.raises(Diverged, match=f"client {fails[0]}"):
            list(islice(run, 1000))
        return run.state.number

    assert rounds(Wanders(1, fails=fails)) == rounds(Wanders(4, beside, fails))


def test_a_task_that_is_not_what_was_expected_is_trained_again() -> None:
    engine = Wanders(4)
    run = Simulation(decisions(FedAsync(tau1=3)), engine)
    next(run)
    before = len(engine.together)
    ready = run._ahead._ready
    for key, (task, model) in ready.items():
        ready[key] = replace(task, rate=2.0), model
    next(run)
    assert len(engine.together) == before + 1


def test_only_schemes_that_ask_for_hearsay_pay_for_it() -> None:
    asks = [scheme for scheme in (*SCHEMES, SDFeel()) if uses_hearsay(decisions(scheme))]
    assert asks == [SCHEMES[1]]
    run = Simulation(decisions(SCHEMES[0]), Wanders(1))
    next(run)
    assert run.state.clocks.heard is None
