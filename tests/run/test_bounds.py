"""Estimates during a run, and the bound next to them, on losses whose constants are known."""

import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.events import Evaluated, Event
from sdfeel.core.graphs import links
from sdfeel.core.network import Network, clustered
from sdfeel.core.seeds import rng
from sdfeel.experiment.loading import load
from sdfeel.run import bounds
from sdfeel.run.bounds import Covered, LossProbe, Promise
from sdfeel.run.drive import Drive, Goals
from sdfeel.run.loss_estimates import look
from sdfeel.run.session import resume, start
from sdfeel.run.theorem import Estimating
from sdfeel.schemes import SDFeel
from sdfeel.sim.simulate import Simulation
from sdfeel.theory import synchronous
from sdfeel.theory.problem import Problem
from tests.quadratic import QuadraticEngine, quadratic

RATES = {"client-server": 5e6, "server-server": 50e6, "server-cloud": 4e6, "client-cloud": 2.5e6}
SAMPLES = np.arange(1.0, 13.0)
CENTRES = np.random.default_rng(4).normal(size=(12, 3))
SHARES = SAMPLES / SAMPLES.sum()


def network() -> Network:
    return clustered(SAMPLES, [i % 4 for i in range(12)], links("ring", 4))


def measured(rate: float, period: int) -> tuple[Covered, list[Evaluated]]:
    """A run of SD-FEEL on |w - c_i|^2 / 2, and what was measured in it."""
    net = network()
    covered = Covered(rate, period, net.zeta, float(SHARES @ SHARES))
    cost = Cost(np.full(12, 0.01), 1e6, RATES)  # type: ignore[arg-type]
    simulation = Simulation(
        Decisions.of(SDFeel(tau1=period), net, cost), quadratic(CENTRES, SAMPLES, rate)
    )
    drive = Drive("sd-feel", simulation, Goals(60 * period), "", None, Estimating(covered))
    return covered, [event for event in drive if isinstance(event, Evaluated)]


@pytest.mark.parametrize("period", [1, 5])
def test_a_quadratics_bound_is_the_closed_formula_and_above_what_is_measured(period: int) -> None:
    largest = synchronous.largest_step(1.0, period, network().zeta)
    covered, events = measured(0.9 * largest, period)
    centre = SHARES @ CENTRES
    problem = Problem(
        smoothness=1.0,
        noise=0.0,
        divergence=float(SHARES @ ((CENTRES - centre) ** 2).sum(axis=1)),
        gap=float(SHARES @ (CENTRES**2).sum(axis=1)) / 2,
        concentration=covered.concentration,
    )
    slopes = np.array([event.metrics[bounds.SLOPE] for event in events])
    for n, event in enumerate(events[1:], 1):
        found = event.metrics
        assert found[bounds.SMOOTHNESS] == pytest.approx(1.0)
        assert found[bounds.NOISE] == pytest.approx(0.0)
        assert found[bounds.DIVERGENCE] == pytest.approx(problem.divergence)
        assert found[bounds.PROVEN] == pytest.approx(largest)
        assert found[bounds.COVERED] == 1
        told = synchronous.bound(problem, covered.rate, event.iterations, period, network().zeta)
        assert found[bounds.BOUND] == pytest.approx(told)
        assert found[bounds.MEAN] == pytest.approx(np.mean((slopes[:n] + slopes[1 : n + 1]) / 2))
        assert found[bounds.MEAN] <= found[bounds.BOUND]
    # The gradient at the mean model, by hand: the loss above its least value is half of it.
    lowest = problem.gap - float(centre @ centre) / 2
    assert slopes == pytest.approx([2 * (event.loss - lowest) for event in events])


def test_beyond_the_proof_the_bound_is_that_of_the_largest_step() -> None:
    _, events = measured(0.5, 5)
    last = events[-1].metrics
    assert last[bounds.COVERED] == 0
    assert last[bounds.PROVEN] < 0.5
    _, within = measured(last[bounds.PROVEN] * 0.999999, 5)
    assert last[bounds.BOUND] == pytest.approx(within[-1].metrics[bounds.BOUND], rel=1e-4)
    assert bounds.BOUND not in events[0].metrics  # before the first iteration it is infinite


def test_the_worst_that_was_seen_counts() -> None:
    mild, harsh = LossProbe(2.0, 1.0, 3.0, 4.0, 5.0), LossProbe(1.0, 0.5, 6.0, 7.0, 8.0)
    covered = Covered(1e-4, 5, 0.4, 0.1)
    later = Promise.begin(mild).after(100, harsh).after(200, mild)
    assert later.problem(0.1) == Problem(6.0, 7.0, 8.0, 2.0, 0.1)
    assert later.mean == 0.75
    assert later.measurements(covered)[bounds.SMOOTHNESS] == 3.0  # as it was seen last
    assert later.measurements(None).keys() == {
        bounds.SLOPE,
        bounds.MEAN,
        bounds.SMOOTHNESS,
        bounds.NOISE,
        bounds.DIVERGENCE,
    }
    assert Promise.from_record(json.loads(json.dumps(later.record()))) == later


SMALL = (
    "network.clients=6",
    "network.servers=3",
    "model.name=logistic",
    "training.iterations=40",
    "evaluation.every=2",
    "checkpoint.every_seconds=0",
    "evaluation.estimates=true",
)


def evaluations(events: list[Event]) -> list[Evaluated]:
    return [event for event in events if isinstance(event, Evaluated)]


def test_a_stopped_and_resumed_run_has_the_same_estimates(tmp_path: Path) -> None:
    whole = evaluations(list(start(load(None, SMALL), tmp_path / "whole")))
    stopped = start(load(None, SMALL), tmp_path / "parts")
    seen = count()
    first = []
    for event in stopped:
        first.append(event)
        if isinstance(event, Evaluated) and next(seen) == 2:
            stopped.stop()
    second = list(resume(tmp_path / "parts"))
    assert 0 < len(evaluations(second)) < len(whole)
    assert evaluations([*first, *second]) == whole
    assert set(whole[-1].metrics) == set(bounds.NAMES)


def test_estimates_change_no_bit_of_the_training(tmp_path: Path) -> None:
    with_them = list(start(load(None, SMALL), tmp_path / "with"))
    without = list(start(load(None, [*SMALL, "evaluation.estimates=false"]), tmp_path / "without"))
    assert with_them[-1] == without[-1]


def test_many_clients_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdfeel.run.theorem.MOST_ASKED", 4)
    _, events = measured(0.01, 1)
    divergences = {event.metrics[bounds.DIVERGENCE] for event in events}
    assert len(divergences) > 5


class Noisy(QuadraticEngine):
    """Gradients with a variance of 3 in all, drawn by client and step."""

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]:
        loss, gradient = super().loss_and_gradient(client, model, step)
        return loss, gradient + torch.as_tensor(rng(0, "noise", client, step).normal(size=3))


def test_the_noise_of_batches_is_found_and_is_not_taken_for_a_slope() -> None:
    clients, dimension = 4000, 3
    centres = 2 + rng(1, "centres").normal(size=(clients, dimension))
    shares = np.full(clients, 1 / clients)
    engine = Noisy(torch.as_tensor(centres), 0.1, torch.as_tensor(shares))
    who, steps = np.arange(clients), np.zeros(clients, dtype=np.int64)
    seen = look(engine, who, shares, torch.as_tensor(centres.mean(axis=0)), steps)
    assert seen.noise == pytest.approx(3, rel=0.05)
    assert seen.slope == pytest.approx(0, abs=0.01)  # the mean model is the best one
    assert seen.divergence == pytest.approx(3, rel=0.1)
    assert seen.loss == pytest.approx(1.5, rel=0.1)
    assert seen.smoothness == pytest.approx(1.0)
