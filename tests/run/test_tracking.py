"""Trackers follow runs; what real packages write, their own readers can read."""

import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import sdfeel
from sdfeel.run.tracking import measured
from tests.cli.command import call

SMALL: dict[str, Any] = {
    "network": {"clients": 4, "servers": 2},
    "data": {"classes_per_client": 5},
    "model": "logistic",
    "training": {"iterations": 20, "engine": "loop"},
    "evaluation": {"every": 1, "metrics": ["top-5"], "train_examples": 50, "test_examples": 50},
    "checkpoint": {"every_seconds": 0.0},
}


class Diary:
    """A tracker of one's own."""

    def __init__(self) -> None:
        self.run: sdfeel.TrackedRun | None = None
        self.events: list[sdfeel.Event] = []
        self.ended = 0

    def begin(self, run: sdfeel.TrackedRun) -> None:
        self.run = run

    def log(self, event: sdfeel.Event) -> None:
        self.events.append(event)

    def end(self) -> None:
        self.ended += 1


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in its directory, stopped on the way and continued."""
    directory = tmp_path_factory.mktemp("runs") / "mine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdfeel.report.drawing._rendered", lambda figure, kind: b"<svg/>")
        begun = sdfeel.Run(SMALL, out=directory)
        for event in begun:
            if isinstance(event, sdfeel.Round) and event.number == 2:
                break
        begun.close()
        assert list(sdfeel.Run(SMALL, out=directory))
    return directory


def evaluations(directory: Path) -> list[sdfeel.Evaluated]:
    return [e for e in sdfeel.open(directory).events if isinstance(e, sdfeel.Evaluated)]


def test_trackers_get_every_event_and_change_nothing() -> None:
    diary, seen = Diary(), list[sdfeel.Event]()
    tracked = list(sdfeel.Run({**SMALL, "tracking": {"to": [diary, seen.append]}}))
    assert tracked == diary.events == seen == list(sdfeel.Run(SMALL))
    assert diary.ended == 1
    assert diary.run is not None
    assert (diary.run.name, diary.run.settings["network.clients"]) == ("sd-feel", 4)
    wrapped = Diary()
    assert list(sdfeel.track(sdfeel.Run(SMALL), wrapped)) == wrapped.events == tracked


def test_a_run_that_continues_is_the_same_run_and_a_run_that_stops_is_ended(
    tmp_path: Path,
) -> None:
    first, second = Diary(), Diary()
    begun = sdfeel.Run({**SMALL, "tracking": {"to": [first]}}, out=tmp_path / "run")
    for event in begun:
        if isinstance(event, sdfeel.Round) and event.number == 2:
            break
    begun.close()
    assert first.ended == 1
    rest = list(sdfeel.Run({**SMALL, "tracking": {"to": [second]}}, out=tmp_path / "run"))
    assert second.events == rest
    assert first.run is not None
    assert second.run is not None
    assert first.run.key == second.run.key
    assert isinstance(second.events[-1], sdfeel.Finished)


@pytest.mark.parametrize("where", ["begin", "log", "end"])
def test_a_tracker_that_fails_does_not_end_the_run(where: str, tmp_path: Path, kept: Path) -> None:
    class Broken(Diary):
        pass

    def fail(self: Diary, *_: object) -> None:
        raise ConnectionError("nobody is there")

    setattr(Broken, where, fail)
    healthy = Diary()
    events = list(sdfeel.track(sdfeel.Run(SMALL), [Broken, healthy]))
    (note,) = [e for e in events if isinstance(e, sdfeel.Warned)]
    assert note.message.startswith(
        "Broken no longer follows this run: ConnectionError: nobody is there"
    )
    assert [e for e in events if e is not note] == healthy.events
    with pytest.raises(sdfeel.RunError, match=r"mine: Broken no longer follows .* nobody is there"):
        sdfeel.track(kept, Broken)


def test_a_file_names_trackers_like_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_diary.py").write_text(
        "def note(event):\n"
        "    with open('diary.txt', 'a') as file:\n"
        "        file.write(type(event).__name__ + '\\n')\n"
    )
    done = call("track", kept.parent, "--to", "own_diary:note")
    assert done.code == 0, done.err
    told = (tmp_path / "diary.txt").read_text().split()
    assert told == [type(event).__name__ for event in sdfeel.open(kept).events]
    experiment = sdfeel.load(None, ["tracking.to=mlflow,own_diary:note"])
    assert experiment.tracking.to == ["mlflow", "own_diary:note"]
    assert experiment.fingerprint == sdfeel.load(None).fingerprint


def test_what_is_no_tracker_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, sentence in [
        ("tensorbord", "unknown tracker 'tensorbord': did you mean 'tensorboard'"),
        (object(), "object is not a tracker: give a name"),
    ]:
        with pytest.raises(sdfeel.InputError, match=sentence):
            sdfeel.Run({**SMALL, "tracking": {"to": [given]}}, out=tmp_path / "run")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(sdfeel.InputError, match=r"pip install 'sdfeel\[track\]'"):
        sdfeel.track(sdfeel.Run(SMALL), "mlflow")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def _unwarned() -> Iterator[None]:
    """Other people's packages warn about each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("_unwarned")
def test_tensorboard_reads_what_was_measured(kept: Path) -> None:
    pytest.importorskip("tensorboard")
    reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    for _ in range(2):  # again, and it is replaced
        sdfeel.track(kept, "tensorboard")
    found = reader.EventAccumulator(str(kept / "tensorboard"))
    found.Reload()
    events = evaluations(kept)
    for name in measured(events[-1]):
        points = found.Scalars(name.replace(" ", "_"))
        assert [point.step for point in points] == [e.iterations for e in events]
        assert [point.value for point in points] == pytest.approx(
            [measured(event)[name] for event in events], rel=1e-6
        )
        assert [p.wall_time for p in points] == pytest.approx([e.seconds for e in events])


@pytest.mark.usefixtures("_unwarned")
def test_mlflow_reads_what_was_measured(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for _ in range(2):  # again, and it is replaced
        sdfeel.track(kept, "mlflow")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("sdfeel").experiment_id])
    end = list(sdfeel.open(kept).events)[-1]
    assert isinstance(end, sdfeel.Finished)
    assert run.info.status == "FINISHED"
    assert run.data.tags["model_sha256"] == end.model_sha256
    assert run.data.params["network.clients"] == "4"
    events = evaluations(kept)
    points = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(p.step, p.value) for p in points] == [(e.iterations, e.accuracy) for e in events]
    begun = sdfeel.Run({**SMALL, "tracking": {"to": ["mlflow"]}}, out=tmp_path / "live")
    for event in begun:
        if isinstance(event, sdfeel.Round) and event.number == 2:
            break
    begun.close()
    found = client.search_runs([run.info.experiment_id], "attributes.run_name = 'live'")
    assert [each.info.status for each in found] == ["KILLED"]
    list(sdfeel.Run({**SMALL, "tracking": {"to": ["mlflow"]}}, out=tmp_path / "live"))
    found = client.search_runs([run.info.experiment_id], "attributes.run_name = 'live'")
    assert [each.info.status for each in found] == ["FINISHED"]
    assert {p.step for p in client.get_metric_history(found[0].info.run_id, "loss")} == {
        e.iterations for e in evaluations(tmp_path / "live")
    }


@pytest.mark.usefixtures("_unwarned")
@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_others_take_a_run_without_a_network(
    package: str, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pytest.importorskip(package)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    logged: list[int] = []
    begin = found.init

    def init(**arguments: Any) -> Any:
        run = begin(**arguments)
        log = run.log

        def note(values: Any, step: int) -> None:
            logged.append(step)
            log(values, step=step)

        monkeypatch.setattr(run, "log", note)
        return run

    monkeypatch.setattr(found, "init", init)
    sdfeel.track(kept, package)
    assert logged == [event.iterations for event in evaluations(kept)]
    if package == "wandb":
        assert list(kept.glob("wandb/offline-run-*/*.wandb"))
