"""Which runs form a line: as their group says, or else those that differ only in their seeds."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any

from sdfeel.core.errors import InputError, RunError, of_kind
from sdfeel.core.run_files import EVENTS, EXPERIMENT, GROUP, of_toml, write_atomic
from sdfeel.report.history import History
from sdfeel.report.styles import SEED, group_styles
from sdfeel.run import store

# What does not make two runs different experiments.
ASIDE = {"seed", "evaluation", "checkpoint", "tracking"}


@dataclass(frozen=True)
class Group:
    """Runs that share a directory because they were made together, with their lines and panels."""

    title: str
    experiment: str  # as text: what they have in common
    lines: Mapping[str, Sequence[str]]  # label -> the runs that it is the mean of
    panels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # head -> text -> label
    notes: Sequence[str] = ()

    @classmethod
    def read(cls, text: str | bytes) -> "Group | None":
        """A group as `keep` wrote it; None if the file is damaged.

        >>> Group.read('{"lines": {"a": ["a-seed0"]}}').styles
        {'a-seed0': 0, 'a': 0}
        >>> Group.read("[1"), Group.read("[1]"), Group.read('{"lines": {}}')
        (None, None, None)
        """
        try:
            kept = json.loads(text)
            lines = {str(label): [*map(str, runs)] for label, runs in kept["lines"].items()}
            panels = {
                str(head): {str(short): str(label) for short, label in panel.items()}
                for head, panel in kept.get("panels", {}).items()
            }
            notes = [*map(str, kept.get("notes", ()))]
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        drawn = {label for panel in panels.values() for label in panel.values()}
        if not lines or not drawn <= lines.keys():
            return None
        title, experiment = str(kept.get("title", "")), str(kept.get("experiment", ""))
        return cls(title, experiment, lines, panels, notes)

    @classmethod
    def saved(cls, directory: Path) -> "Group | None":
        """The group that was saved in a directory, if there is one."""
        try:
            return cls.read((directory / GROUP).read_bytes())
        except OSError:
            return None

    @classmethod
    def whole(cls, directory: Path) -> "Group | None":
        """The group that was saved in a directory, if all of its runs are still there."""
        group = cls.saved(directory)
        there = group and all((d / EVENTS).is_file() for d in group.directories(directory))
        return group if there else None

    def keep(self, directory: Path) -> None:
        """Save the group, so that `show` can draw the same picture again."""
        write_atomic(directory / GROUP, json.dumps(asdict(self), indent=1).encode())

    def directories(self, directory: Path) -> list[Path]:
        return [directory / name for names in self.lines.values() for name in names]

    @property
    def styles(self) -> dict[str, int]:
        """How its lines and runs look, by label and by directory."""
        return group_styles(self.lines, self.panels)


def runs_below(directory: Path) -> list[Path]:
    """The directories of runs in a directory, by name; refused if there are none."""
    found = sorted(path.parent for path in directory.glob(f"*/{EVENTS}"))
    if not found:
        raise RunError(f"{directory} contains no runs: give a directory that `sdfeel run` wrote")
    return found


@dataclass(frozen=True)
class Line:
    """Runs that differ in their seeds only."""

    label: str
    runs: Mapping[int, History]  # by seed

    @property
    def history(self) -> History:
        """The mean over its runs."""
        members = list(self.runs.values())
        alone = len(members) == 1
        return (
            History.of(self.label, members[0].events)
            if alone
            else History.mean(self.label, members)
        )


def lines_of(given: Iterable[Any]) -> list[Line]:
    """The lines that runs form; runs of one experiment with different seeds are one line."""
    found: dict[str, Line] = {}
    places = [each for run in given for each in (run if isinstance(run, list | tuple) else [run])]
    if not places:
        raise InputError("there is nothing to export: give directories of runs")
    given = [getattr(each, "directory", getattr(each, "path", each)) for each in places]
    for each in given:
        of_kind("what is exported", each, (str, PathLike), "a run's directory")
    paths = [Path(each) for each in given]
    alone = [path for path in paths if (path / EVENTS).is_file()]
    members = _alike(alone)
    for each, path in zip(places, paths, strict=True):
        if path not in alone:
            own = getattr(each, "lines", None) or _group(path)
            several = {label: [path / name for name in names] for label, names in own.items()}
            for label, directories in several.items():
                members[f"{path.name}/{label}" if label in members else label] = directories
    for label, directories in members.items():
        found[label] = _line(label, directories)
    return list(found.values())


def _group(directory: Path) -> Mapping[str, Sequence[str]]:
    """The runs below a directory by line: as its group says, or else by their experiments."""
    if (group := Group.whole(directory)) is not None:
        return group.lines
    alike = _alike(runs_below(directory))
    return {label: [path.name for path in own] for label, own in alike.items()}


def _alike(directories: Sequence[Path]) -> dict[str, list[Path]]:
    """Directories of one experiment with different seeds, by what their names have in common."""
    found: dict[str, list[Path]] = {}
    for _, group in groupby(sorted(directories, key=_experiment), _experiment):
        own = sorted(group)
        names = [path.resolve().name for path in own]
        label = SEED.sub("", names[0]) if len(own) > 1 else names[0]
        found[label if label not in found else str(own[0])] = own
    return {label: found[label] for label in sorted(found, key=lambda each: found[each])}


def _experiment(directory: Path) -> str:
    try:
        known = of_toml((directory / EXPERIMENT).read_bytes())
    except (OSError, ValueError):
        return str(directory)
    return same_but_for_seed(known)


def same_but_for_seed(experiment: Mapping[str, Any]) -> str:
    """What the user asked for, as text that differs if anything but the seed does.

    How often a run is measured may differ from seed to seed, so it is left out.
    """
    training = experiment.get("training")
    asked = {key: value for key, value in experiment.items() if key not in ASIDE}
    if isinstance(training, dict):
        asked["training"] = {key: each for key, each in training.items() if key != "workers"}
    return json.dumps(asked, sort_keys=True, default=str)


def _line(label: str, directories: Sequence[Path]) -> Line:
    runs: dict[int, History] = {}
    for place, path in enumerate(directories):
        history = History.of(path.name, store.read_events(path))
        seed = history.started.seed if history.started is not None else place
        if seed in runs:
            raise InputError(
                f"'{label}' has two runs with seed {seed}, {runs[seed].label} and {path.name}: "
                f"export one of them"
            )
        runs[seed] = history
    return Line(label, runs)
