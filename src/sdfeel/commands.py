"""The commands as functions: compare, sweep and plan; `show` and `open` are in show_runs.py."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sdfeel.core.errors import InputError, RunError, of_kind, whole_number
from sdfeel.core.events import Event
from sdfeel.core.named import is_path, recorded_name
from sdfeel.core.run_files import EXPERIMENT
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
from sdfeel.report.history import check_target
from sdfeel.report.lines import Group
from sdfeel.report.plan import keep_plan
from sdfeel.run.many import Many, Planned, Progressed, QueuedRun, labelled, on_one_core
from sdfeel.run.session import start_or_resume
from sdfeel.schemes import described, find, label
from sdfeel.show_runs import RunDirectory, Shown, open, show_group

SEEDS = 10_000  # of a comparison, at most
KINDS: tuple[GoalKind, ...] = ("accuracy", "loss", "budget")
NUMBERS = ("target_accuracy", "target_loss", "budget", "effort")


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
        return show_group(self.directory, self.group, target)

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
    schemes = list(schemes)
    for each in schemes:
        of_kind("each of the schemes", each, str, "a scheme's name")
    if not isinstance(choose_graph, bool):
        of_kind("choose_graph", choose_graph, (), "True or False")
    for name, value in zip(NUMBERS, (target_accuracy, target_loss, budget, effort), strict=True):
        if value is not None or name == "effort":
            of_kind(name, value, (int, float, np.number), "a number")
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
