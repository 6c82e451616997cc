"""An experiment from Python is kept, continued, compared and read like one from a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sdfeel
from sdfeel.commands import experiment_of
from sdfeel.core.errors import InputError

SMALL: dict[str, Any] = {
    "network": {"clients": 4, "servers": 2, "server_up_seconds": 5.0, "server_down_seconds": 0.1},
    "data": {"classes_per_client": 5},
    "model": "logistic",
    "radio": {"fading": "rayleigh"},
    "training": {"iterations": 20, "engine": "loop"},
    "evaluation": {"every": 1},
    "checkpoint": {"every_seconds": 0.0},
}


def experiment(**more: Any) -> sdfeel.Experiment:
    return experiment_of({**SMALL, **more})


def end_of(run: Any) -> sdfeel.Finished:
    last = list(run)[-1]
    assert isinstance(last, sdfeel.Finished)
    return last


def test_a_run_with_out_is_as_durable_as_one_of_the_command_line(tmp_path: Path) -> None:
    where = tmp_path / "run"
    whole = end_of(sdfeel.Run(SMALL))
    assert not list(tmp_path.iterdir())  # without out, nothing is written
    begun = sdfeel.Run(experiment(), out=where)
    for event in begun:
        if isinstance(event, sdfeel.Round) and event.number == 2:
            break  # as if the program had been stopped
    begun.close()
    rest = sdfeel.Run(experiment(), out=where)
    assert end_of(rest).model_sha256 == whole.model_sha256
    assert (where / "report.html").is_file()
    kept = sdfeel.open(where)
    assert kept.finished
    assert len(kept.curves["accuracy"]) == len(kept.curves["seconds"]) > 2
    assert np.isfinite(kept.curves["test_loss"]).all()
    assert kept.experiment.network.clients == 4
    for name, value in rest.module.state_dict().items():
        assert torch.equal(value, kept.model[name])
    assert end_of(sdfeel.Run(experiment(), out=where)).model_sha256 == whole.model_sha256


def test_own_data_with_numbers_as_targets_are_continued_by_the_same_program(tmp_path: Path) -> None:
    def line() -> sdfeel.Experiment:
        x = torch.linspace(-1, 1, 40)[:, None]
        torch.manual_seed(0)
        return experiment(
            data={"name": ((x, 3 * x[:, 0]), (x, 3 * x[:, 0])), "partition": "iid"},
            model=torch.nn.Linear(1, 1),
            training={"iterations": 20, "loss": "mse", "engine": "loop"},
            evaluation={"every": 1, "metrics": ["mae", "r2"]},
        )

    begun = sdfeel.Run(line(), out=tmp_path / "run")
    for event in begun:
        if isinstance(event, sdfeel.Round) and event.number == 2:
            break
    begun.close()
    end = end_of(sdfeel.Run(line(), out=tmp_path / "run"))
    assert end.model_sha256 == end_of(sdfeel.Run(line())).model_sha256
    kept = sdfeel.open(tmp_path / "run")
    assert kept.curves["mae"][-1] < kept.curves["mae"][0]
    model = experiment_of({"model": torch.nn.Linear(1, 1)}).model
    other = line().model_copy(update={"model": model})
    with pytest.raises(sdfeel.RunError, match="another experiment"):
        sdfeel.Run(other, out=tmp_path / "run")


def test_schemes_are_compared_and_values_swept(tmp_path: Path) -> None:
    runs = sdfeel.compare([sdfeel.SDFeel(tau1=2), "hierfavg"], experiment(), seeds=2, out=tmp_path)
    seen = {label for label, event in runs if isinstance(event, sdfeel.Finished)}
    assert seen == {f"{name}-seed{seed}" for name in ("sd-feel", "hierfavg") for seed in (0, 1)}
    table = runs.records()
    assert [row["scheme"] for row in table] == ["sd-feel", "hierfavg"]
    assert runs.runs("sd-feel")[0].experiment.scheme.options["tau1"] == 2
    swept = sdfeel.sweep({"scheme.tau1": [1, 2], "seed": range(1)}, experiment())
    assert list(swept.lines) == ["tau1=1", "tau1=2"]
    assert len(swept.records()) == 2
    swept.close()
    assert not swept.directory.exists()


def test_nonsense_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(sdfeel.InputError, match="given twice"):
        sdfeel.compare(["fedavg", "fedavg"], experiment())
    with pytest.raises(sdfeel.RunError, match="is not a run"):
        sdfeel.open(tmp_path)
    with pytest.raises(sdfeel.InputError, match="one goal"):
        sdfeel.plan(experiment(), target_accuracy=0.9, budget=3)
    with pytest.raises(sdfeel.InputError, match="are both called function: give a mapping"):
        sdfeel.sweep({"model.name": [lambda: None, lambda: None]}, experiment())


@pytest.mark.parametrize("target", [80, 0, -0.5, float("nan"), "0.8", True])
def test_a_target_is_an_accuracy_wherever_it_is_given(tmp_path: Path, target: Any) -> None:
    *_, _ = sdfeel.Run(experiment(), out=tmp_path / "a")
    askers: tuple[Any, ...] = (sdfeel.show, sdfeel.export)
    for ask in askers:
        with pytest.raises(sdfeel.InputError, match="target must be above 0 and at most 1"):
            ask(tmp_path / "a", target=target)


def test_a_width_is_that_of_a_picture(tmp_path: Path) -> None:
    with pytest.raises(sdfeel.InputError, match="no width 'huge': choose one of column"):
        sdfeel.show(tmp_path, width="huge")
    with pytest.raises(sdfeel.InputError, match="name its file, too"):
        sdfeel.show(tmp_path, width="column")
    with pytest.raises(sdfeel.InputError, match="no width 'huge'"):
        sdfeel.export(tmp_path, width="huge")


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"scheme.name": ["sd-feel", "fedavg", "feel"]}, "scheduled is 5, but the server reaches"),
        ({"network.servers": [1, 2, 9]}, "servers=9: .*clients"),
        (
            {"data.partition": ["iid", "classes"], "data.classes_per_client": [2]},
            "4 clients with 2",
        ),
    ],
)
def test_if_one_of_many_runs_cannot_work_none_of_them_begins(
    axes: dict[str, Any], words: str, jobs: int, tmp_path: Path
) -> None:
    many = sdfeel.sweep(axes, experiment(), out=tmp_path / "many", jobs=jobs)
    with pytest.raises(InputError, match=words):
        list(many)
    assert not list(tmp_path.rglob("events.jsonl"))
