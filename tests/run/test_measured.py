"""On how many examples a run is measured."""

from pathlib import Path

import pytest

from sdfeel.core.events import Evaluated, Finished
from sdfeel.experiment.schema import Experiment, load
from sdfeel.run.session import start


def run(directory: Path, *settings: str) -> tuple[str, list[float]]:
    """The model's hash, and all accuracies."""
    small = ("training.iterations=10", "network.clients=10", "network.servers=2")
    events = list(start(load(None, (*small, *settings)), directory))
    end = next(event for event in events if isinstance(event, Finished))
    return end.model_sha256, [e.accuracy or 0.0 for e in events if isinstance(e, Evaluated)]


def test_fewer_test_examples_change_what_is_measured_and_nothing_else(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole")
    part, accuracies = run(tmp_path / "part", "evaluation.test_examples=50")
    assert whole == part
    assert [50 * each for each in accuracies] == pytest.approx([round(50 * a) for a in accuracies])


def test_more_than_there_are_is_all(tmp_path: Path) -> None:
    assert run(tmp_path / "all") == run(tmp_path / "more", "evaluation.test_examples=100000")


def test_runs_of_before_the_key_can_be_resumed() -> None:
    asked = load(None, ("evaluation.test_examples=50",))
    assert asked.fingerprint != Experiment().fingerprint
    assert load(None, ("evaluation.test_examples=0",)).fingerprint == Experiment().fingerprint
