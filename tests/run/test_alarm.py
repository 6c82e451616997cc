"""A loss that explodes is reported once, while the model is still finite."""

from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sdfeel
from sdfeel.experiment.loading import load
from sdfeel.run.alarm import FAR, Alarm
from sdfeel.run.session import resume, start
from sdfeel.run.store import read_events
from tests.examples import examples

X = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
NONE = torch.zeros(0)


def told(losses: Sequence[float], guess: float, first: float) -> list[int]:
    alarm = Alarm(lambda model: guess, first)
    return [n for n, loss in enumerate(losses) if alarm.after(loss, lambda: NONE) is not None]


LOSS = st.floats(0, 1e30) | st.sampled_from([inf, nan])


@examples(200)
@given(st.lists(LOSS, max_size=6), st.floats(0, 1e12), st.floats(0, 1e12))
def test_it_warns_once_and_only_far_beyond_the_first_loss_and_a_constant_guess(
    losses: list[float], guess: float, first: float
) -> None:
    beyond = [n for n, loss in enumerate(losses) if not loss <= FAR * max(1, guess, first)]
    assert told(losses, guess, first) == beyond[:1]


def warned(events: Sequence[sdfeel.Event]) -> list[str]:
    words = [each.message for each in events if isinstance(each, sdfeel.Warned)]
    return [each for each in words if "diverges" in each]


def run(y: torch.Tensor, module: torch.nn.Module, **given: Any) -> list[sdfeel.Event]:
    data = sdfeel.federate((X, y), (X, y), clients=4)
    net = sdfeel.network(data, servers=2)
    parts = {"iterations": 10, "engine": "loop", **given}
    return list(sdfeel.Run(sdfeel.SDFeel(), net, module, data, **parts))


def test_a_run_that_explodes_says_so_once() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)  # from some models, one giant step leads to the right answers
        module = torch.nn.Linear(3, 2)
    (words,) = warned(run(Y, module, learning_rate=1e20))
    assert words.startswith("training diverges: the loss went from ")
    assert words.endswith("although the model is still finite; lower training.learning_rate")


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_sound_regressions_are_quiet_however_large_their_targets(scale: float) -> None:
    trained = torch.nn.Linear(3, 1)
    with torch.no_grad():
        trained.weight.fill_(scale)
        trained.bias.zero_()
    y = X.sum(1, keepdim=True) * scale
    mse = torch.nn.functional.mse_loss
    assert not warned(run(y, torch.nn.Linear(3, 1), loss=mse))
    events = run(y + scale, trained, loss=mse)  # it begins close to the best
    assert not warned(events)
    beginning = run(X.sum(1, keepdim=True) * scale, trained, loss=mse, learning_rate=1e-2)
    assert not warned(beginning)


def test_a_trained_model_that_is_spoilt_is_compared_with_a_guess_too() -> None:
    assert told([1e3], guess=1e4, first=1e-9) == []
    assert told([1e7], guess=1e4, first=1e-9) == []
    assert told([1e11], guess=1e4, first=1e-9) == [0]


def test_a_run_that_was_stopped_and_resumed_says_so_once_as_well(tmp_path: Path) -> None:
    small = ["network.clients=12", "network.servers=3", "data.classes_per_client=3"]
    wild = ["training.iterations=30", "training.learning_rate=1e20", "training.engine=loop"]
    often = ["checkpoint.every_seconds=0", "model.name=logistic", "evaluation.every=2"]
    experiment = load(None, [*small, *wild, *often])
    whole = list(start(experiment, tmp_path / "whole"))
    assert len(warned(whole)) == 1
    for rounds in (1, 3):  # before and after it is told
        session = start(experiment, tmp_path / f"{rounds}")
        for event in session:
            if isinstance(event, sdfeel.Round) and event.number == rounds:
                session.stop()
        list(resume(tmp_path / f"{rounds}"))
        found = list(read_events(tmp_path / f"{rounds}"))
        assert warned(found) == warned(whole)
