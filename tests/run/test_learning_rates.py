"""Schedules of the learning rate, and clipped gradients: the same in every engine and deployed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sdfeel
from sdfeel.core.learning_rates import NAMED, Schedule, schedule
from sdfeel.engine.base import Task
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from tests.engine.native.helpers import needs_compiler

SMALL = (
    "network.clients=6",
    "network.servers=3",
    "data.classes_per_client=5",
    "model.name=logistic",
    "training.iterations=20",
    "training.engine=loop",
    "checkpoint.every_seconds=0",
)


def half(iteration: float, iterations: float) -> float:
    return 0.5


def small(**training: Any) -> Experiment:
    values = load(None, SMALL).model_dump()
    return Experiment.model_validate({**values, "training": {**values["training"], **training}})


def model_of(experiment: Experiment) -> str:
    last = list(sdfeel.Run(experiment))[-1]
    assert isinstance(last, sdfeel.Finished)
    return last.model_sha256


def test_a_factor_of_a_half_is_half_the_learning_rate() -> None:
    assert model_of(small(schedule=half)) == model_of(small(learning_rate=0.025))
    assert model_of(small(schedule=half)) != model_of(small())


@pytest.mark.parametrize("name", sorted(NAMED.known))
@pytest.mark.parametrize("unit", ["iteration", "round"])
def test_factors_are_within_bounds_and_never_grow_after_the_warm_up(name: str, unit: Any) -> None:
    options = {"every": 4, "factor": 0.5} if name == "step" else {}
    made = schedule(name, options, 3, unit, 40)
    found = [made.factor(k, 2.0) for k in range(40)]  # twice as far as the run goes
    risen = 3 if unit == "round" else 2
    assert found[0] == pytest.approx(1 / 3)
    assert all(0 < factor <= 1 for factor in found)
    assert all(a >= b for a, b in zip(found[risen:], found[risen + 1 :], strict=False))


@needs_compiler
def test_engines_agree_and_a_scheme_knows_the_rate_of_its_round() -> None:
    steep = {"schedule": "step", "schedule_options": {"every": 5, "factor": 0.5}, "warmup": 10}
    rows = {}
    for engine in ("loop", "parallel", "native"):
        ready = prepare(small(engine=engine, workers=2, **steep))
        simulation = ready.simulation()
        for _ in range(4):
            next(simulation)
        rows[engine] = simulation.model().clone()
        ready.engine.close()
    assert torch.equal(rows["loop"], rows["parallel"])
    assert torch.allclose(rows["loop"], rows["native"], atol=1e-5)
    views = [ready.decisions.view(0, k) for k in range(4)]  # rounds of 5 iterations
    assert [v.local.rate for v in views] == pytest.approx([0.005, 0.015, 0.0125, 0.00625])
    rates = ready.decisions.work(views[1]).rates
    assert rates is not None
    assert np.allclose(rates, 0.3)


def test_a_run_with_a_schedule_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    chosen = small(schedule="cosine", warmup=4, clip_norm=0.5, average=0.6)
    for event in sdfeel.Run(chosen, out=tmp_path / "run"):
        if isinstance(event, sdfeel.Round) and event.number == 2:
            break
    rest = list(sdfeel.resume(tmp_path / "run").session)[-1]
    assert isinstance(rest, sdfeel.Finished)
    assert rest.model_sha256 == model_of(chosen)


def test_a_gradient_is_clipped_to_its_norm_and_otherwise_left_alone() -> None:
    ready = prepare(small(iterations=1, clip_norm=0.01, learning_rate=1.0))
    start = ready.engine.initial()
    row = next(ready.engine.train([Task(0, start, 1, 0)]))
    assert float(torch.linalg.vector_norm(row - start)) == pytest.approx(0.01, rel=1e-3)
    assert model_of(small(clip_norm=1e6)) == model_of(small())
    adam = prepare(small(optimizer="adam", clip_norm=0.01)).engine
    assert torch.isfinite(next(adam.train([Task(0, start, 1, 0)]))).all()


def test_an_average_of_models_is_measured_and_returned() -> None:
    ready = prepare(small(average=0.5))
    simulation = ready.simulation()
    rows = []
    for _ in range(4):
        next(simulation)
        rows.append(simulation.state.servers.double().mean(0))
    kept, expected = [min(0.5, n / (9 + n)) for n in range(1, 5)], rows[0]
    for share, row in zip(kept[1:], rows[1:], strict=True):
        expected = share * expected + (1 - share) * row
    assert torch.allclose(simulation.model().double(), expected, atol=1e-5)
    assert model_of(small(average=0.5)) != model_of(small())


def test_nonsense_is_refused() -> None:
    with pytest.raises(sdfeel.InputError, match="unknown schedule 'cosin': did you mean 'cosine'"):
        prepare(small(schedule="cosin"))
    with pytest.raises(sdfeel.InputError, match="does not accept its options"):
        prepare(small(schedule="step"))
    with pytest.raises(sdfeel.InputError, match="needs whole gradients"):
        prepare(small(optimizer="newton-diagonal", clip_norm=1.0))
    bad = Schedule(lambda position, end: -1.0, 10)
    with pytest.raises(sdfeel.InputError, match="must be above 0"):
        bad.factor(0, 5.0)
