"""Which runs the theorems cover, and what is said about learning rates beyond them."""

import re
from pathlib import Path

import pytest

from sdfeel.core.events import Started, Warned
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.run.session import Session, start
from sdfeel.run.theorem import covered, notes
from sdfeel.theory import synchronous

SMALL = ("network.clients=8", "network.servers=4", "training.iterations=10")


def ready(*settings: str) -> Prepared:
    return prepare(load(None, [*SMALL, "model.name=logistic", *settings]))


def largest(text: str) -> float:
    found = re.search(r"proves convergence \(([^,]+),", text)
    assert found is not None
    return float(found[1])


def test_a_step_beyond_the_proof_gets_a_warning_and_a_smaller_one_does_not() -> None:
    (said,) = notes(ready())
    assert re.fullmatch(
        r"learning rate 0\.05 is at least [\d.]+ times the largest step for which Theorem 1 proves "
        r"convergence \(\S+, with tau1=5, tau2=1, alpha=1, zeta=\S+, measured L=\S+\); training "
        r"may work all the same",
        said,
    )
    assert notes(ready(f"training.learning_rate={0.99 * largest(said)}")) == ()


def test_longer_periods_are_proven_for_smaller_steps_only() -> None:
    steps = [largest(*notes(ready(f"scheme.tau1={tau1}"))) for tau1 in (1, 5, 20)]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 3


@pytest.mark.parametrize(
    ("settings", "period", "cloud"),
    [
        (("scheme.tau1=3", "scheme.tau2=2"), 6, False),
        (("scheme.name=hierfavg", "scheme.tau1=3", "scheme.tau2=2"), 6, True),
        (("scheme.name=fedavg", "scheme.tau1=3"), 3, True),
        (("network.servers=1",), 5, True),
    ],
)
def test_schemes_in_the_theorems_terms(settings: tuple[str, ...], period: int, cloud: bool) -> None:
    found = covered(ready(*settings))
    assert found is not None
    assert found.period == period
    assert (found.contraction == 0) == cloud
    assert found.largest(2.0) == synchronous.largest_step(2.0, period, found.contraction)


def test_a_pass_over_the_data_is_many_steps() -> None:
    short = covered(ready("data.partition=iid"))
    whole = covered(ready("data.partition=iid", "latency.preset=paper-epoch"))
    assert short is not None
    assert whole is not None
    assert whole.period == short.period * 18  # 1437 examples, 8 clients, 10 in a batch
    assert "18 batches in an iteration" in whole.words


@pytest.mark.parametrize(
    "setting",
    [
        "scheme.name=feel",
        "scheme.name=adaptive",
        "training.momentum=0.9",
        "training.optimizer=Adam",
        "training.proximal=0.1",
        "compression.uplink=uniform",
        "network.link_chance=0.9",
    ],
)
def test_runs_that_no_theorem_covers_get_no_note(setting: str) -> None:
    assert notes(ready(setting)) == ()


def test_asynchronous_runs_have_the_second_theorem() -> None:
    (said,) = notes(ready("scheme.name=async-sd-feel", "devices.spread=4"))
    assert "Theorem 2" in said
    assert "5 to " in said
    assert notes(ready("scheme.name=async-sd-feel", "training.learning_rate=1e-6")) == ()


def test_what_cannot_be_measured_is_left_to_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = ready()
    broken = prepared.engine.initial() * float("nan")
    monkeypatch.setattr(prepared.engine, "initial", lambda: broken)
    assert notes(prepared) == ()


def test_the_note_follows_the_start_in_the_log_and_changes_no_bit(tmp_path: Path) -> None:
    experiment = load(None, [*SMALL, "model.name=logistic"])
    told = list(start(experiment, tmp_path / "told"))
    assert isinstance(told[0], Started)
    assert [event for event in told if isinstance(event, Warned)] == told[1:2]
    assert [told[0], *told[2:]] == list(Session(prepare(experiment), tmp_path / "untold"))
