"""Figures' runs are done once, continue after a stop, and may diverge."""

from math import inf
from pathlib import Path

import numpy as np
import pytest

from sdfeel.core.errors import RunError
from sdfeel.core.events import Finished, Started
from sdfeel.experiment.schema import Experiment
from sdfeel.figures import cache, kept_curves
from sdfeel.figures.curves import RunTrack, read
from sdfeel.figures.judging import ACCURACY
from sdfeel.figures.lines import FigureLine, changed
from sdfeel.figures.running import Carrying, missing, wanted
from sdfeel.figures.settings import fedavg, hierfavg, sd_feel, setting
from sdfeel.run.store import locked
from tests.tools.spot_check import RESULTS, computed_again, differences, kept_runs


def runs_of(lines: list[FigureLine], seeds: int) -> dict[str, Experiment]:
    return wanted(("A", line, seed) for seed in range(seeds) for line in lines)


def small(*changes: str) -> Experiment:
    own = setting("mnist", "quick").experiment(*changes)
    few = ("network.clients=20", "network.servers=4", "training.iterations=20")
    return changed(own, *few, "evaluation.every=2", "training.engine=loop")


def test_the_same_run_under_two_labels_is_run_once() -> None:
    everyone = small(*hierfavg())
    lines = [FigureLine("HierFAVG", everyone), FigureLine("FedAvg", everyone, small(*fedavg()))]
    assert list(runs_of(lines, 2)) == ["HierFAVG (A), seed 0", "HierFAVG (A), seed 1"]


def test_equal_labels_of_two_figures_are_told_apart() -> None:
    lines = [
        FigureLine("SD-FEEL", small(*sd_feel())),
        FigureLine("SD-FEEL", small(*sd_feel(alpha=2))),
    ]
    assert list(runs_of(lines, 1)) == ["SD-FEEL (A), seed 0", "SD-FEEL (A), seed 0 (2)"]


def test_the_key_is_what_was_asked_for() -> None:
    one = small(*sd_feel())
    assert cache.key(one) == cache.key(changed(one, "training.workers=2"))
    assert cache.key(one) == cache.key(changed(one, "data.directory=/somewhere/else"))
    assert cache.key(one) != cache.key(changed(one, "seed=1"))
    assert cache.key(one) != cache.key(changed(one, "scheme.alpha=2"))
    assert cache.key(one) != cache.key(changed(one, "training.learning_rate=0.9"))


def test_a_second_call_runs_nothing() -> None:
    runs = runs_of([FigureLine("SD-FEEL", small(*sd_feel()))], 2)
    first = [type(event) for _, event in Carrying(runs, 2)]
    assert first.count(Finished) == 2
    assert missing(runs) == {}
    assert list(Carrying(runs, 2)) == []


def test_a_stopped_run_can_be_resumed() -> None:
    line = FigureLine("SD-FEEL", small(*sd_feel(), "checkpoint.every_seconds=0"))
    runs = runs_of([line], 1)
    carrying = Carrying(runs, 1)
    for _, event in carrying:
        if not isinstance(event, Started):
            carrying.stop()
    assert carrying.unfinished
    again = Carrying(runs, 1)
    assert any(isinstance(event, Finished) for _, event in again)
    assert not again.unfinished
    assert read(line, 0).x["iterations"][-1] == 20


def begun(line: FigureLine) -> None:
    """Stop after the first round."""
    carrying = Carrying(runs_of([line], 1), 1)
    for _, event in carrying:
        if not isinstance(event, Started):
            carrying.stop()
    assert carrying.unfinished


@pytest.mark.parametrize("file", ["experiment.toml", "checkpoint.safetensors"])
def test_what_an_earlier_version_began_is_started_again(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = FigureLine("SD-FEEL", small(*sd_feel(), "checkpoint.every_seconds=0"))
    if file == "experiment.toml":  # it says another thing than the same request does today
        begun(line)
        known = cache.directory_of(line.trained) / file
        text = known.read_text(encoding="utf-8")
        known.write_text(text.replace("alpha = 1", "alpha = 2"), encoding="utf-8")
    else:  # its fingerprint was made in another way
        with monkeypatch.context() as earlier:
            earlier.setattr(Experiment, "fingerprint", property(lambda _: "an earlier one"))
            begun(line)
    again = Carrying(runs_of([line], 1), 1)
    assert [type(event) for _, event in again].count(Started) == 1
    assert not again.unfinished
    assert read(line, 0).x["iterations"][-1] == 20


def test_a_run_that_another_process_is_at_is_not_thrown_away() -> None:
    line = FigureLine("SD-FEEL", small(*sd_feel(), "checkpoint.every_seconds=0"))
    begun(line)
    with locked(cache.directory_of(line.trained)), pytest.raises(RunError, match="in use"):
        cache.forget(line.trained)
    assert (cache.directory_of(line.trained) / "experiment.toml").is_file()


def test_a_run_that_diverges_is_a_finding_and_the_others_continue() -> None:
    mad = FigureLine("mad", small(*sd_feel(), "training.learning_rate=1e30"))
    sane = FigureLine("sane", small(*sd_feel()))
    runs = runs_of([mad, sane], 1)
    list(Carrying(runs, 1))
    assert missing(runs) == {}
    assert (read(mad, 0).diverged, read(sane, 0).diverged) == (True, False)


def test_only_the_log_is_kept(tmp_path: Path) -> None:
    line = FigureLine("SD-FEEL", small(*sd_feel()))
    list(Carrying(runs_of([line], 1), 1))
    kept = {file.name for file in cache.directory_of(line.trained).iterdir()}
    assert kept == {
        "experiment.toml",
        "events.jsonl",
        "metrics.csv",
        "provenance.json",
        ".lock",
    }


def test_a_kept_run_can_be_computed_again() -> None:
    figure, place = next(
        (figure, place)
        for figure, place in kept_runs("quick")
        if (figure.name, place) == ("6a", ("A", "HierFAVG", 0))
    )
    kept = kept_curves.load(RESULTS, "quick", figure)
    assert kept is not None
    found = differences(kept.runs[place].track, computed_again(figure, "quick", place))
    assert found["iterations"] == found["seconds"] == 0
    assert found["accuracy"] < ACCURACY  # 0 where there is a compiler, whatever the CPU


def test_runs_that_were_measured_at_other_times_differ() -> None:
    x, y = np.array([0.0, 1.0]), np.array([0.1, 0.5])
    one, other = (RunTrack({"seconds": x[:n]}, {"accuracy": y[:n]}) for n in (2, 1))
    assert differences(one, other) == {"seconds": inf, "accuracy": inf}
    assert differences(one, RunTrack({"seconds": x}, {"accuracy": y + 0.25})) == {
        "seconds": 0, "accuracy": 0.25
    }  # fmt: skip
