"""Runs shown again from their logs, with a picture and a page; what a run's directory holds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file
from torch import Tensor

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.errors import InputError, RunError, of_kind
from sdfeel.core.events import Evaluated, Event
from sdfeel.core.run_files import EVENTS, EXPERIMENT, MODEL, PAGE, PICTURE
from sdfeel.experiment.schema import Experiment
from sdfeel.report import curves, drawing
from sdfeel.report import page as pages
from sdfeel.report.history import History, check_target, default_target
from sdfeel.report.lines import Group, runs_below
from sdfeel.report.styles import style_of
from sdfeel.report.tables import comparison_records
from sdfeel.run import store
from sdfeel.run.provenance import Provenance, changed_files
from sdfeel.run.session import finished, recorded

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        return show_group(path, _group(path), target)
    history = History.of(path.name, store.read_events(path))
    history, text = replace(history, style=_style(path)), _experiment(path)
    goal = default_target([history]) if target is None else target
    page = pages.page("A run", [history], goal, text)
    notes = [*_change_notes(path), *_write(path, curves.curves([history], goal), page)]
    return Shown(path, [history], goal, True, tuple(notes))


def show_group(directory: Path, group: Group, target: float | None) -> Shown:
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
