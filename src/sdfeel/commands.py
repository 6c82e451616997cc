"""The commands as functions: compare, sweep and plan, and a run's directory to read."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file
from torch import Tensor

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.errors import InputError, RunError, of_kind, whole_number
from sdfeel.core.events import Evaluated, Event
from sdfeel.core.named import is_path, recorded_name
from sdfeel.core.run_files import EVENTS, EXPERIMENT, MODEL, PAGE, PICTURE
from sdfeel.engine.base import cores
from sdfeel.experiment import grid as grids
from sdfeel.experiment.build import settle
from sdfeel.experiment.loading import checked, in_our_words
from sdfeel.experiment.schema import Experiment
from sdfeel.planning.candidates import SCHEMES as SCHEMES_PLANNED
from sdfeel.planning.goal import Goal
from sdfeel.planning.goal import Kind as GoalKind
from sdfeel.planning.planner import EFFORT, Planner, Wishes
from sdfeel.planning.planner import experiment_of as experiment_of_plan
from sdfeel.planning.result import Plan
from sdfeel.report import curves, drawing
from sdfeel.report import page as pages
from sdfeel.report.history import History, check_target, default_target
from sdfeel.report.lines import Group, runs_below
from sdfeel.report.plan import keep_plan
from sdfeel.report.styles import style_of
from sdfeel.report.tables import comparison_records
from sdfeel.run import store
from sdfeel.run.many import Many, Planned, Progressed, QueuedRun, labelled, on_one_core
from sdfeel.run.provenance import Provenance, changed_files
from sdfeel.run.session import finished, recorded, start_or_resume
from sdfeel.schemes import described, find, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS = 10_000  # of a comparison, at most
KINDS: tuple[GoalKind, ...] = ("accuracy", "loss", "budget")


@dataclass(frozen=True)
class Shown:
    """Runs as `sdfeel show` shows them; their picture and page were written next to them."""

    directory: Path
    histories: list[History]  # one for each line: a run, or the mean over its seeds
    target: float | None  # accuracy
    alone: bool  # is it one run?
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> list[dict[str, Any]]:
        """The table: a record for every line."""
        return comparison_records(self.histories, self.target)


def show(
    directory: str | Path,
    target: float | None = None,
    picture: str | Path | None = None,
    width: str | None = None,
) -> Shown:
    """One run, or several side by side, from their logs; writes their picture and page.

    `picture` names one more file for the picture (.pdf, .svg or .png), at a `width` of print:
    column, page or slide.
    """
    of_kind("directory", directory, (str, PathLike), "a run's directory")
    check_target(target)
    if width is not None:
        drawing.inches(width)  # which refuses unknown names
        if picture is None:
            raise InputError("a width is that of a picture: name its file, too (picture)")
    path = Path(directory)
    found = _show_run(path, target)
    if picture is not None:
        panels = {} if found.alone else _group(path).panels
        drawing.save(_picture(panels, found.histories, found.target, width), picture, width)
    return found


def _show_run(path: Path, target: float | None) -> Shown:
    if not (path / EVENTS).is_file():
        return _show_group(path, _group(path), target)
    history = History.of(path.name, store.read_events(path))
    history, text = replace(history, style=_style(path)), _experiment(path)
    goal = default_target([history]) if target is None else target
    page = pages.page("A run", [history], goal, text)
    notes = [*_change_notes(path), *_write(path, curves.curves([history], goal), page)]
    return Shown(path, [history], goal, True, tuple(notes))


def _show_group(directory: Path, group: Group, target: float | None) -> Shown:
    histories = _histories(directory, group)
    goal = default_target(histories) if target is None else target
    page = pages.page(group.title, histories, goal, group.experiment, list(group.notes))
    changed = [note for each in group.directories(directory) for note in _change_notes(each)]
    picture = _picture(group.panels, histories, goal)
    notes = [*dict.fromkeys(changed), *_write(directory, picture, page)]
    return Shown(directory, histories, goal, False, tuple(notes))


def _group(directory: Path) -> Group:
    """The group as it was saved, or else every run below the directory separately."""
    if (group := Group.whole(directory)) is not None:
        return group
    names = [path.name for path in runs_below(directory)]
    text = _experiment(directory / names[0])
    return Group("A comparison of runs", text, {name: [name] for name in names})


def _histories(directory: Path, group: Group) -> list[History]:
    """One history for each line of a group: the mean over its runs."""
    saved = Group.saved(directory)
    styles = None if saved is None else saved.styles
    return [
        replace(_merged(label, [directory / name for name in names]), style=style_of(label, styles))
        for label, names in group.lines.items()
    ]


def _picture(
    panels: Mapping[str, Mapping[str, str]],
    histories: Sequence[History],
    target: float | None,
    width: str | None = None,
) -> "Figure":
    """A small picture for each panel, or one for all."""
    known = {history.label: history for history in histories}
    drawn = {
        head: [replace(known[label], label=short) for short, label in lines.items()]
        for head, lines in panels.items()
    }
    if drawn:
        return curves.multiples(drawn, target, width)
    return curves.curves(histories, target, width=width)


def _style(directory: Path) -> int:
    """A run's style: as in the picture of the group that it was made with, if there is one."""
    group = Group.saved(directory.resolve().parent)
    return style_of(directory.resolve().name, None if group is None else group.styles)


def _experiment(directory: Path) -> str:
    known = directory / EXPERIMENT
    return known.read_text(encoding="utf-8", errors="replace") if known.exists() else ""


def _merged(label: str, directories: Sequence[Path]) -> History:
    members = [History.of(path.name, store.read_events(path)) for path in directories]
    one = len(members) == 1
    return History.of(label, members[0].events) if one else History.mean(label, members)


def _change_notes(directory: Path) -> list[str]:
    """A sentence about each file that is no longer what the run began with."""
    began = Provenance.kept(directory)
    changed = [] if began is None else changed_files(began)
    return [f"{file} has changed since this was run" for file in changed]


def _write(directory: Path, picture: "Figure", text: str) -> list[str]:
    """Write the picture and the page; a sentence where that cannot be done."""
    try:
        drawing.save(picture, directory / PICTURE)
        pages.write_page(directory / PAGE, text)
    except OSError as error:  # showing a run must work where nothing can be written
        return [f"could not write the picture and the page: {error.strerror}: {error.filename}"]
    return []


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
        return recorded(self.path)

    @property
    def provenance(self) -> Provenance | None:
        """Versions, machine, data and code it began with; None for runs of earlier versions."""
        return Provenance.kept(self.path)

    @property
    def finished(self) -> bool:
        return finished(self.path) is not None

    @property
    def curves(self) -> dict[str, Floats]:
        """Every measured number over the run: `curves["accuracy"]`, `curves["seconds"]`."""
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
    of_kind("directory", directory, (str, PathLike), "a run's directory")
    path = Path(directory)
    if not (path / EVENTS).is_file():
        raise RunError(f"{path} is not a run: it has no {EVENTS}")
    return RunDirectory(path)


class RunSet:
    """Several runs side by side: iterate over their (label, event) pairs.

    With `out`, they are kept there with their picture and page, as by the command line. Without
    it, they are kept in a temporary directory until this is closed.
    """

    def __init__(
        self,
        experiments: Mapping[str, Experiment],
        group: Group,
        out: str | Path | None = None,
        jobs: int | None = None,
        accept_changes: bool = False,
    ) -> None:
        if jobs is not None:
            whole_number("jobs", jobs, 1)
        if out is not None:
            of_kind("out", out, (str, PathLike), "a directory")
        self._temporary = None if out is not None else TemporaryDirectory(prefix="sdfeel-")
        self.directory = Path(self._temporary.name if self._temporary else str(out))
        if (self.directory / EXPERIMENT).exists():
            raise RunError(f"{self.directory} is a single run: choose another directory with --out")
        self.group, self.experiments = group, dict(experiments)
        self._at_once = min(jobs or cores(), len(experiments))
        self._accept = accept_changes
        self.unfinished = set(experiments)
        self._stop: Callable[[], None] = lambda: None
        self._stopped = False

    @property
    def lines(self) -> dict[str, list[str]]:
        """The runs of each line of the comparison: one for every seed."""
        return {label: list(names) for label, names in self.group.lines.items()}

    def __iter__(self) -> Iterator[tuple[str, Event]]:
        for news in self.news():
            if isinstance(news, Progressed):
                yield news.label, news.event
        if not self.unfinished and self._temporary is None:
            self.show()

    def news(self) -> Iterator[Progressed | Planned]:
        """Everything that happens, with how many rounds each run has."""
        yield from self._one_by_one() if self._at_once == 1 else self._side_by_side()
        if not self.unfinished:
            self.group.keep(self.directory)

    def _one_by_one(self) -> Iterator[Progressed | Planned]:
        """One run at a time, which may have all cores."""
        sessions = {}
        for name, each in self.experiments.items():
            with labelled(name):
                sessions[name] = start_or_resume(each, self.directory / name, False, self._accept)
        for name, session in sessions.items():
            yield Planned(name, session.total_rounds)
        for name, session in sessions.items():
            self._stop = session.stop
            if not session.finished and not self._stopped:
                for event in session:
                    yield Progressed(name, event)
            if session.finished:
                self.unfinished.discard(name)

    def _side_by_side(self) -> Iterator[Progressed | Planned]:
        # Keys of other schemes are expected here: notes about them would only distract.
        queued = {
            name: QueuedRun(on_one_core(each), self.directory / name, False, self._accept)
            for name, each in self.experiments.items()
        }
        many = Many(queued, self._at_once)
        self._stop = many.stop
        self._check()
        if self._stopped:
            return
        try:
            yield from many
        finally:
            self.unfinished = many.unfinished

    def _check(self) -> None:
        """Refuse what cannot go together before any run begins, and not when its turn comes."""
        for first, *_ in self.group.lines.values():
            own, begun = self.experiments[first], (self.directory / first).exists()
            code = is_path(recorded_name(own.data.name))  # which may take long
            if self._stopped or begun or code:
                continue
            with labelled(first):
                settle(own)

    def stop(self) -> None:
        """End all runs after their current rounds; with `out`, they can be continued."""
        self._stopped = True
        self._stop()

    def runs(self, label: str) -> list[RunDirectory]:
        """The runs of one line of the comparison: one for every seed."""
        return [open(self.directory / name) for name in self.group.lines[label]]

    def show(self, target: float | None = None) -> Shown:
        """The comparison, with its picture and page written anew; runs what is left to run."""
        check_target(target)
        if self.unfinished and not self._stopped:
            for _ in self.news():
                pass
        return _show_group(self.directory, self.group, target)

    def records(self, target: float | None = None) -> list[dict[str, Any]]:
        """The table of `sdfeel compare`: a record for every line, with means over its seeds."""
        return self.show(target).records

    def close(self) -> None:
        """Remove what was kept in a temporary directory."""
        if self._temporary is not None:
            self._temporary.cleanup()


def experiment_of(given: Experiment | Mapping[str, Any] | None) -> Experiment:
    """An experiment that may be given as a mapping, with the sections and keys of a file."""
    if isinstance(given, Experiment) or given is None:
        return given or Experiment()
    of_kind("experiment", given, Mapping, "an Experiment, or a mapping with the keys of a file")
    return checked(given)


def compare(
    schemes: Iterable[Any],
    experiment: Experiment | Mapping[str, Any] | None = None,
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    jobs: int | None = None,
    accept_changes: bool = False,
) -> RunSet:
    """Schemes (or whole experiments) on the same seeds, side by side."""
    whole_number("seeds", seeds, 1)
    if seeds > SEEDS:
        raise InputError(f"seeds must be at most {SEEDS:,}, got {seeds:,}")
    several = not isinstance(schemes, str | bytes | Mapping | type) and hasattr(schemes, "__iter__")
    if not several:
        of_kind("schemes", schemes, (), "a list of schemes")
    base = experiment_of(experiment)
    found, lines = compared(schemes, base, seeds)
    group = Group("A comparison of schemes", base.text(), lines)
    return RunSet(found, group, out, jobs, accept_changes)


@in_our_words()
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
    accept_changes: bool = False,
) -> RunSet:
    """Every combination of values: `sweep({"scheme.tau1": [1, 5], "seed": range(3)})`.

    Where an axis is a mapping, its values go by the names that they have in it.
    """
    of_kind("axes", axes, Mapping, "a mapping of keys to the values that they take")
    if not axes:
        raise InputError("there is nothing to sweep over: name at least one key and its values")
    for key, values in axes.items():
        of_kind("a key of axes", key, str, "a text such as scheme.tau1")
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            of_kind(f"the values of {key}", values, (), "a list")
    named = {
        key: dict(values) if isinstance(values, Mapping) else grids.by_name(key, values)
        for key, values in axes.items()
    }
    if empty := [key for key, values in named.items() if not values]:
        raise InputError(f"{empty[0]} has no values to sweep over: give at least one")
    grid = grids.points(experiment_of(experiment), named)
    told = [" ".join(f"{key}={','.join(values)}" for key, values in named.items())]
    group = Group("A sweep", grid[0].experiment.text(), grids.lines(grid), grids.panels(grid), told)
    return RunSet({p.name: p.experiment for p in grid}, group, out, jobs, accept_changes)


def planner(
    experiment: Experiment | Mapping[str, Any] | None = None,
    *,
    target_accuracy: float | None = None,
    target_loss: float | None = None,
    budget: float | None = None,
    schemes: Iterable[str] = SCHEMES_PLANNED,
    choose_graph: bool = False,
    effort: float = EFFORT,
) -> Planner:
    """A search for the best way to train, step by step."""
    if isinstance(schemes, str) or not hasattr(schemes, "__iter__"):
        of_kind("schemes", schemes, (), "a list of schemes")
    asked = zip(KINDS, (target_accuracy, target_loss, budget), strict=True)
    given = [Goal(kind, value) for kind, value in asked if value is not None]
    if len(given) > 1:
        raise InputError("a plan has one goal: give target_accuracy, target_loss or budget")
    wishes = Wishes(given[0] if given else None, tuple(schemes), choose_graph, effort)
    return Planner(experiment_of(experiment), wishes)


def plan(
    experiment: Experiment | Mapping[str, Any] | None = None,
    *,
    target_accuracy: float | None = None,
    target_loss: float | None = None,
    budget: float | None = None,
    schemes: Iterable[str] = SCHEMES_PLANNED,
    choose_graph: bool = False,
    effort: float = EFFORT,
    out: str | Path | None = None,
) -> Plan:
    """The best way to train that the planner finds; with `out`, with the files of `sdfeel plan`."""
    base = experiment_of(experiment)
    found = planner(
        base,
        target_accuracy=target_accuracy,
        target_loss=target_loss,
        budget=budget,
        schemes=schemes,
        choose_graph=choose_graph,
        effort=effort,
    ).finished()
    if out is not None:
        keep_plan(found, experiment_of_plan(base, found), Path(out))
    return found
