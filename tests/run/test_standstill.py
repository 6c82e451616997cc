"""A run makes progress or ends, with a sentence that says why."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

import sdfeel
from sdfeel.core.events import Event, Finished, Round
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.run import drive
from sdfeel.run.session import resume, start

SMALL = (
    "network.clients=8",
    "network.servers=4",
    "model.name=logistic",
    "training.engine=loop",
    "training.iterations=40",
    "evaluation.every=1000",
    "evaluation.train_examples=50",
    "evaluation.test_examples=50",
    "checkpoint.every_seconds=3600",
    "devices.gflops=0.0006",
)


def small(*settings: str) -> Experiment:
    return load(None, [*SMALL, *settings])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "PATIENCE", 30)


def ending(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


@pytest.mark.parametrize("late", ["drop", "drop-unbiased"])
@pytest.mark.parametrize("fading", ["off", "rayleigh"])
def test_adaptive_control_takes_fewer_steps_when_nobody_comes_in_time(
    late: str, fading: str, tmp_path: Path
) -> None:
    """Its budget calls for many steps, which no client finishes before the deadline."""
    chosen = small(
        "scheme.name=adaptive",
        "scheme.phi=0.025",
        "scheme.budget=1.0",
        "data.partition=iid",
        f"latency.late={late}",
        "latency.deadline_seconds=0.0055",
        f"radio.fading={fading}",
    )
    events = list(start(chosen, tmp_path / "run"))
    assert ending(events).reason == "all iterations done"
    lone = [event for event in events if isinstance(event, Round) and event.clients == 0]
    assert lone  # otherwise it proves nothing


@pytest.mark.usefixtures("impatient")
def test_a_run_without_progress_ends_and_says_what_to_do(tmp_path: Path) -> None:
    chosen = small(
        "latency.late=drop", "latency.deadline_seconds=0.008", "radio.fading=rayleigh", "seed=1"
    )
    end = ending(list(start(chosen, tmp_path / "run")))
    assert end.reason == (
        "no model has reached a server in 30 rounds: raise latency.deadline_seconds above 0.008"
    )
    assert end.iterations < 40


@pytest.mark.usefixtures("impatient")
def test_a_resumed_run_gives_up_in_the_same_round(tmp_path: Path) -> None:
    (tmp_path / "changes").write_text("round 3 cloud down", encoding="utf-8")
    chosen = small(
        "scheme.name=fedavg",
        f"network.changes={tmp_path / 'changes'}",
        "checkpoint.every_seconds=0",
    )
    whole = ending(list(start(chosen, tmp_path / "whole")))
    assert whole.reason.endswith("is away for good; change network.changes or network.whereabouts")
    assert whole.number == 3 + 30
    session = start(chosen, tmp_path / "parts")
    for _ in islice(session, 14):
        pass
    session.stop()
    assert ending(list(resume(tmp_path / "parts"))) == whole


@pytest.mark.usefixtures("impatient")
def test_a_long_absence_with_a_known_end_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "changes").write_text("round 3 cloud down\nround 90 cloud up", encoding="utf-8")
    chosen = small("scheme.name=fedavg", f"network.changes={tmp_path / 'changes'}")
    end = ending(list(start(chosen, tmp_path / "run")))
    assert end.reason == "all iterations done"
    assert end.number == 40 // 5 + 87


@pytest.mark.usefixtures("impatient")
def test_a_run_in_which_nobody_takes_a_step_ends() -> None:
    """Models arrive in every round, but they are those that were sent."""
    settings = {"network": {"clients": 6, "servers": 2}, "model": "logistic"}
    made = sdfeel.Run({**settings, "training": {"iterations": 5, "engine": "loop"}})
    drive_of_it = drive.Standstill(made.simulation.decisions)
    usual = next(event for event in made if isinstance(event, Round))
    for _ in range(40):
        drive_of_it.after(replace(usual, iterations=0))
    assert drive_of_it.reason is not None
    assert "no client has taken a step in 40 rounds" in drive_of_it.reason
    drive_of_it.after(usual)
    assert drive_of_it.reason is None
