"""Runs in TensorBoard, MLflow, W&B and trackio: trackers consume the events, now or later.

A tracker that fails is dropped, and a note says so: no run ends because a server elsewhere is down.
"""

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib import import_module
from math import isfinite
from pathlib import Path
from re import sub
from typing import Any, Protocol
from uuid import uuid4

from sdfeel.core.errors import InputError, RunError, told
from sdfeel.core.events import Evaluated, Event, Finished, Started, Warned
from sdfeel.core.named import Kind
from sdfeel.core.run_files import EXPERIMENT
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.run import store

AFTERWARDS = "`sdfeel track` can send it the whole run later"
PROJECT = "sdfeel"  # where a tracker sorts runs by projects, unless its own variable says otherwise


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker learns before the first event."""

    name: str
    settings: Mapping[str, Any]  # "scheme.tau1": 5, ...
    directory: Path | None = None
    later: bool = False  # the run is over: replace whatever was tracked of it before
    key: str = field(default_factory=lambda: uuid4().hex)  # the same for a run that continues


class Tracker(Protocol):
    """Something that follows a run; a function of an event will do, too."""

    def begin(self, run: TrackedRun) -> None:
        """The run begins, or continues."""

    def log(self, event: Event) -> None:
        """Something happened."""

    def end(self) -> None:
        """There will be no more events."""


def measured(event: Evaluated) -> dict[str, float]:
    """Everything finite that was measured, by name."""
    names = [name for name in store.COLUMNS if name not in ("number", "iterations")]
    found = {**event.metrics, **{name: getattr(event, name) for name in names}}
    return {name: float(v) for name, v in found.items() if v is not None and isfinite(v)}


class TensorBoard:
    """Scalars and texts below `tensorboard` in the run's directory.

    Its axis "Relative" shows the run's own seconds, which are virtual in a simulation.
    """

    def __init__(self) -> None:
        _package("tensorboard", "track")
        self._module = import_module("torch.utils.tensorboard")
        self._writer: Any = None

    def begin(self, run: TrackedRun) -> None:
        place = run.directory / "tensorboard" if run.directory else Path("tensorboard") / run.name
        if run.later:
            for old in place.glob("events.out.tfevents.*"):
                old.unlink()
        self._writer = self._module.SummaryWriter(str(place))
        lines = [f"    {name} = {value}" for name, value in run.settings.items()]
        self._writer.add_text("experiment", "\n".join(lines))

    def log(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            for name, value in measured(event).items():
                self._writer.add_scalar(name, value, event.iterations, walltime=event.seconds)
        elif isinstance(event, Warned):
            self._writer.add_text("note", event.message)
        elif isinstance(event, Finished):
            self._writer.add_text("end", f"{event.reason}, model {event.model_sha256}")

    def end(self) -> None:
        self._writer.close()


class MLflow:
    """A run of MLflow with parameters, metrics by iteration, and the model's hash as a tag.

    MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where.
    """

    def __init__(self) -> None:
        self._module = _package("mlflow", "track")
        self._entities = import_module("mlflow.entities")
        self._client: Any = None
        self._run, self._status = "", "KILLED"

    def begin(self, run: TrackedRun) -> None:
        self._client = self._module.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        place = known.experiment_id if known else self._client.create_experiment(name)
        earlier = self._client.search_runs([place], f"tags.sdfeel = '{run.key}'")
        if run.later:
            for old in earlier:
                self._client.delete_run(old.info.run_id)
            earlier = []
        if earlier:
            self._run = earlier[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"sdfeel": run.key, "directory": str(run.directory or "")}
        self._run = self._client.create_run(place, run_name=run.name, tags=tags).info.run_id
        values = [(key, str(value)[:500]) for key, value in run.settings.items()]
        for first in range(0, len(values), 100):  # MLflow takes no more at a time
            own = [self._entities.Param(*pair) for pair in values[first : first + 100]]
            self._client.log_batch(self._run, params=own)

    def log(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            now = int(time.time() * 1000)
            metrics = [
                self._entities.Metric(sub(r"[^\w ./:-]", "_", name), value, now, event.iterations)
                for name, value in measured(event).items()
            ]
            self._client.log_batch(self._run, metrics=metrics)
        elif isinstance(event, Finished):
            self._client.set_tag(self._run, "model_sha256", event.model_sha256)
            self._client.set_tag(self._run, "reason", event.reason)
            self._status = "FINISHED"

    def end(self) -> None:
        self._client.set_terminated(self._run, self._status)


class WeightsAndBiases:
    """A run of W&B, or of trackio, which is used in the same way.

    WANDB_PROJECT (or TRACKIO_PROJECT) names the project; WANDB_MODE=offline sends nothing.
    """

    def __init__(self, package: str = "wandb") -> None:
        self._name, self._module = package, _package(package)
        self._run: Any = None

    def begin(self, run: TrackedRun) -> None:
        own: dict[str, Any] = {}
        if self._name == "wandb":
            own = {"id": run.key, "dir": run.directory and str(run.directory)}
        self._run = self._module.init(
            project=os.environ.get(f"{self._name.upper()}_PROJECT", PROJECT),
            name=run.name,
            config=dict(run.settings),
            resume="allow",
            **own,
        )

    def log(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self._run.log(measured(event), step=event.iterations)
        elif isinstance(event, Finished) and self._name == "wandb":
            self._run.summary["model_sha256"] = event.model_sha256
            self._run.summary["reason"] = event.reason

    def end(self) -> None:
        self._run.finish()


class _Calling:
    """A function of an event, as a tracker."""

    def __init__(self, function: Callable[[Event], object]) -> None:
        self._function = function

    def begin(self, run: TrackedRun) -> None:
        """Nothing to do."""

    def log(self, event: Event) -> None:
        self._function(event)

    def end(self) -> None:
        """Nothing to do."""


TRACKERS: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
    "trackio": lambda: WeightsAndBiases("trackio"),
}
NAMED = Kind("tracker", TRACKERS, "sdfeel.trackers")


def _package(name: str, extra: str = "") -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        wanted = f"'sdfeel[{extra}]'" if extra else name
        raise InputError(
            f"tracking to {name} needs {name}: install it with `pip install {wanted}`"
        ) from None


def tracker(given: Any) -> tuple[str, Tracker]:
    """The label of a tracker, and the tracker, ready to begin; InputError if it is not one."""
    found = NAMED.find(given)
    label = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    if given in TRACKERS or isinstance(found, type):
        found = found()
    if all(callable(getattr(found, name, None)) for name in ("begin", "log", "end")):
        return label, found
    if callable(found):
        return label, _Calling(found)
    raise InputError(
        f"{label} is not a tracker: give a name ({', '.join(TRACKERS)}), a function of an event, "
        f"or an object with the methods begin, log and end"
    )


def tracked(
    events: Iterable[Event],
    to: Iterable[tuple[str, Tracker]],
    experiment: Experiment | None = None,
    directory: Path | None = None,
    later: bool = False,
) -> Generator[Event]:
    """The same events, sent to trackers on the way; a note follows when a tracker fails."""
    working, stream = _Working(dict(to)), iter(events)
    try:
        for event in stream:
            notes: list[Warned] = []
            if isinstance(event, Started) and not working.begun:
                run = _described(event, experiment, directory, later)
                notes = working.tell("begin", run)
                working.begun = True
            notes += working.tell("log", event)
            yield event
            yield from notes
        yield from working.end()
    finally:
        if hasattr(stream, "close"):
            stream.close()
        working.end()


class _Working:
    """The trackers that have not failed yet."""

    def __init__(self, trackers: dict[str, Tracker]) -> None:
        self._trackers, self.begun = trackers, False

    def tell(self, what: str, *about: object) -> list[Warned]:
        """Call this method of all trackers; drop those that fail, and return notes about them."""
        notes = []
        for label, tracker in list(self._trackers.items()):
            try:
                getattr(tracker, what)(*about)
            except Exception as error:  # somebody else's package may raise anything
                del self._trackers[label]
                notes.append(
                    Warned(f"{label} no longer follows this run: {told(error)}; {AFTERWARDS}")
                )
        return notes

    def end(self) -> list[Warned]:
        """There is nothing more to tell."""
        notes = self.tell("end") if self.begun else []
        self._trackers.clear()
        return notes


def _described(
    started: Started, experiment: Experiment | None, directory: Path | None, later: bool
) -> TrackedRun:
    names = ("scheme", "clients", "servers", "parameters", "engine", "seed", "zeta")
    about = {name: value for name, value in asdict(started).items() if name in names}
    settings = {} if experiment is None else _flat(experiment.model_dump(mode="json"))
    name = started.scheme if directory is None else directory.resolve().name
    if directory is None:
        return TrackedRun(name, {**about, **settings}, None, later)
    key = sha256(str(directory.resolve()).encode()).hexdigest()[:32]
    return TrackedRun(name, {**about, **settings}, directory, later, key)


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested values by dotted names.

    >>> _flat({"seed": 1, "scheme": {"tau1": 5}})
    {'seed': 1, 'scheme.tau1': 5}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        own = _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {}
        found |= own or {f"{before}{name}": value}
    return found


def track(run: Any, *to: Any) -> Iterator[Event]:
    """The events of a run, sent to trackers on the way: names, objects or package.module:name.

    `run` is a `Run`; iterate over this in its place. If it is the directory of a run (or what
    `open` gives), everything in its log is sent at once.
    """
    names = (name for each in to for name in (each if isinstance(each, list) else [each]))
    asked = [tracker(name) for name in names]
    path = getattr(run, "path", run)
    if not isinstance(path, str | Path):
        return tracked(run, asked)
    directory = Path(path)
    known = directory / EXPERIMENT
    experiment = load(known) if known.is_file() else None
    events = list(store.read_events(directory))
    sent = list(tracked(events, asked, experiment, directory, later=True))
    if len(sent) > len(events):
        failed = next(e for e in sent if isinstance(e, Warned) and AFTERWARDS in e.message)
        raise RunError(f"{directory}: {failed.message.removesuffix(f'; {AFTERWARDS}')}")
    return iter(events)
