"""The commands as functions: compare, sweep and plan, and a run's directory to read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.errors import InputError, RunError, at_least, unknown
from sdfeel.core.events import Evaluated, Event
from sdfeel.core.run_files import EVENTS, EXPERIMENT, MODEL, PAGE, PICTURE
from sdfeel.engine.threads import cores
from sdfeel.experiment.loading import checked, load
from sdfeel.experiment.schema import Experiment
from sdfeel.planning.candidates import SCHEMES as SCHEMES_PLANNED
from sdfeel.planning.goal import Goal
from sdfeel.planning.goal import Kind as GoalKind
from sdfeel.planning.planner import EFFORT, Planner, Wishes
from sdfeel.planning.result import Plan
from sdfeel.report import curves, drawing
from sdfeel.report import page as pages
from sdfeel.report.history import History, default_target
from sdfeel.report.tables import comparison_records
from sdfeel.run import store
from sdfeel.run.many import Many, Progressed, QueuedRun, on_one_core
from sdfeel.run.session import finished
from sdfeel.schemes import described, find, label


def report(directory: Path) -> None:
    """Write the picture and the page of one run."""
    history = History.of(directory.name, store.read_events(directory))
    target = default_target([history])
    text = (directory / EXPERIMENT).read_text(encoding="utf-8")
    drawing.save(curves.curves([history], target), directory / PICTURE)
    pages.write_page(directory / PAGE, pages.page("A run", [history], target, text))


@dataclass(frozen=True)
class RunDirectory:
    """What a run has left in its directory."""

    path: Path

    @property
    def events(self) -> Iterator[Event]:
        """Everything that happened, in order."""
        return store.read_events(self.path)

    @property
    def experiment(self) -> Experiment:
        """What was run, with every choice filled in."""
        return load(self.path / EXPERIMENT)

    @property
    def finished(self) -> bool:
        return finished(self.path) is not None

    @property
    def curves(self) -> dict[str, Floats]:
        """Every measured number over the run: `curves["accuracy"]` beside `curves["seconds"]`."""
        seen = [event for event in self.events if isinstance(event, Evaluated)]
        rows = [
            {**event.metrics, **{name: getattr(event, name) for name in store.COLUMNS}}
            for event in seen
        ]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return {
            name: floats([nan if row.get(name) is None else row[name] for row in rows])
            for name in names
        }

    @property
    def model(self) -> dict[str, Tensor]:
        """The final model, as `load_state_dict` takes it."""
        if not (self.path / MODEL).is_file():
            raise RunError(f"{self.path} has no final model yet: finish it with `sdfeel resume`")
        return load_file(self.path / MODEL)


def open(directory: str | Path) -> RunDirectory:
    """A run's directory, to read."""
    path = Path(directory)
    if not (path / EVENTS).is_file():
        raise RunError(f"{path} is not a run: it has no {EVENTS}")
    return RunDirectory(path)


class RunSet:
    """Several runs side by side: iterate over their (label, event) pairs.

    Without a directory of their own they are kept in a temporary one until this is closed.
    """

    def __init__(
        self,
        experiments: Mapping[str, Experiment],
        lines: Mapping[str, Sequence[str]],
        out: str | Path | None = None,
        jobs: int | None = None,
    ) -> None:
        self._temporary = None if out is not None else TemporaryDirectory(prefix="sdfeel-")
        self.directory = Path(self._temporary.name if self._temporary else str(out))
        self.lines = {label: list(names) for label, names in lines.items()}
        at_once = min(jobs or cores(), len(experiments))
        self._many = Many(
            {
                name: QueuedRun(on_one_core(each), self.directory / name, notes=False)
                for name, each in experiments.items()
            },
            at_once,
        )

    def __iter__(self) -> Iterator[tuple[str, Event]]:
        for news in self._many:
            if isinstance(news, Progressed):
                yield news.label, news.event

    def stop(self) -> None:
        """End all runs after their current rounds; with `out`, they can be continued."""
        self._many.stop()

    def runs(self, label: str) -> list[RunDirectory]:
        """The runs of one line of the comparison: one for every seed."""
        return [open(self.directory / name) for name in self.lines[label]]

    def records(self, target: float | None = None) -> list[dict[str, Any]]:
        """The table of `sdfeel compare`: a record for every line, with means over its seeds."""
        if self._many.unfinished:
            for _ in self:  # to the end
                pass
        histories = [
            History.mean(label, [History.of(r.path.name, r.events) for r in self.runs(label)])
            for label in self.lines
        ]
        goal = default_target(histories) if target is None else target
        return comparison_records(histories, goal)

    def close(self) -> None:
        """Remove what was kept in a temporary directory."""
        if self._temporary is not None:
            self._temporary.cleanup()


def experiment_of(given: Experiment | Mapping[str, Any] | None) -> Experiment:
    """An experiment that may be given as a mapping, with the sections and keys of a file."""
    return given if isinstance(given, Experiment) else checked(given or {})


def compare(
    schemes: Iterable[Any],
    experiment: Experiment | Mapping[str, Any] | None = None,
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    jobs: int | None = None,
) -> RunSet:
    """Schemes (or whole experiments) on the same seeds, side by side."""
    at_least("seeds", seeds, 1)
    found, lines = compared(schemes, experiment_of(experiment), seeds)
    return RunSet(found, lines, out, jobs)


def compared(
    schemes: Iterable[Any], base: Experiment, seeds: int
) -> tuple[dict[str, Experiment], dict[str, list[str]]]:
    """The experiments of a comparison, and which of them form a line."""
    experiments: dict[str, Experiment] = {}
    lines: dict[str, list[str]] = {}
    for given in schemes:
        own = given if isinstance(given, Experiment) else None
        line = label(given) if own is None else own.scheme.label
        if line in lines:
            raise InputError(f"{line} is given twice: compare different schemes, or use sweep")
        values = (own or base).model_dump()
        for seed in range(values["seed"], values["seed"] + seeds):
            if own is None:
                find(given)
                options = {k: v for k, v in values["scheme"].items() if k != "name"}
                values["scheme"] = {**options, **described(given)}
            name = line if seeds == 1 else f"{line}-seed{seed}"
            experiments[name] = checked({**values, "seed": seed})
            lines.setdefault(line, []).append(name)
    if not lines:
        raise InputError("there is nothing to compare: name at least one scheme")
    return experiments, lines


def sweep(
    axes: Mapping[str, Iterable[Any]],
    experiment: Experiment | Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
) -> RunSet:
    """Every combination of values: `sweep({"scheme.tau1": [1, 5], "seed": range(3)})`."""
    base, found = experiment_of(experiment).model_dump(), dict[str, Experiment]()
    lines: dict[str, list[str]] = {}
    for values in product(*(list(each) for each in axes.values())):
        choices = dict(zip(axes, values, strict=True))
        nested = deepcopy({k: v for k, v in base.items() if not isinstance(v, dict)})
        nested |= {k: dict(v) for k, v in base.items() if isinstance(v, dict)}
        for key, value in choices.items():
            section, dot, own = key.partition(".")
            if dot and not isinstance(nested.get(section), dict):
                raise unknown("section", section, base)
            if dot:
                nested[section][own] = value
            else:
                nested[section] = value
        told = [f"{key.rpartition('.')[2]}={_short(value)}" for key, value in choices.items()]
        line = " ".join(t for t, k in zip(told, choices, strict=True) if k != "seed") or "all"
        name = "_".join(told).replace("/", "-") or "one"
        found[name] = checked(nested)
        lines.setdefault(line, []).append(name)
    return RunSet(found, lines, out, jobs)


def _short(value: Any) -> str:
    """A value in the name of a run."""
    plain = value is None or isinstance(value, str | int | float)
    return str(value) if plain else label(value)


def plan(
    experiment: Experiment | Mapping[str, Any] | None = None,
    *,
    target_accuracy: float | None = None,
    target_loss: float | None = None,
    budget: float | None = None,
    schemes: Iterable[str] = SCHEMES_PLANNED,
    choose_graph: bool = False,
    effort: float = EFFORT,
) -> Plan:
    """The best way to train that the planner finds: what `sdfeel plan` prints."""
    asked: dict[GoalKind, float | None] = {
        "accuracy": target_accuracy,
        "loss": target_loss,
        "budget": budget,
    }
    given = [Goal(kind, value) for kind, value in asked.items() if value is not None]
    if len(given) > 1:
        raise InputError("a plan has one goal: give target_accuracy, target_loss or budget")
    wishes = Wishes(given[0] if given else None, tuple(schemes), choose_graph, effort)
    return Planner(experiment_of(experiment), wishes).finished()
