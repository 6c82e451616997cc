"""The command that shows runs from their logs, and what other commands share with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from sdfeel.cli.common import (
    AsJson,
    Target,
    check_target,
    people,
    print_json,
    results,
)
from sdfeel.cli.lazy import later
from sdfeel.core.errors import RunError
from sdfeel.core.run_files import EVENTS, EXPERIMENT, GROUP, PAGE, PICTURE, write_atomic
from sdfeel.report.history import History, default_target
from sdfeel.report.tables import comparison, comparison_records, summary
from sdfeel.run import store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

with later():
    from sdfeel.report import curves, drawing
    from sdfeel.report import page as pages


def show(
    directory: Annotated[Path, typer.Argument(help="A run, or a directory of runs.")],
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Show one run, or several side by side, from their logs: table, picture and page.

    Examples:

      sdfeel show runs/compare-20260101-120000

      sdfeel show runs/compare-20260101-120000/sd-feel --json
    """
    check_target(target)
    if (directory / EVENTS).is_file():
        history, text = histories_of([directory])[0], _experiment(directory)
        goal = choose_target([history], target)
        write_report(directory, "A run", [history], goal, text)
        if as_json:
            print_json(outcome(directory, history))
        else:
            results.print(summary(history, goal))
            tell_files(directory)
        return
    group = Group.found(directory)
    histories = group.histories(directory)
    goal = choose_target(histories, target)
    group.write_report(directory, histories, goal)
    if as_json:
        print_json({"target": goal, "runs": comparison_records(histories, goal)})
    else:
        results.print(comparison(histories, goal))
        tell_files(directory)


@dataclass(frozen=True)
class Group:
    """Why several runs share a directory: which of them form a line, and which a panel."""

    title: str
    experiment: str  # as text: what they have in common
    lines: Mapping[str, Sequence[str]]  # label -> the runs that it is the mean of
    panels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # head -> text -> label
    notes: Sequence[str] = ()

    @classmethod
    def found(cls, directory: Path) -> Group:
        """The group as it was saved, or else every run below the directory by itself."""
        try:
            kept = json.loads((directory / GROUP).read_text(encoding="utf-8"))
            group = cls(**kept)
            if group.lines and all((d / EVENTS).is_file() for d in group.directories(directory)):
                return group
        except (OSError, ValueError, TypeError):
            pass  # there is none, or somebody has edited it
        names = sorted(path.parent.name for path in directory.glob(f"*/{EVENTS}"))
        if not names:
            raise RunError(
                f"{directory} contains no runs: give a directory that `sdfeel run` wrote"
            )
        text = _experiment(directory / names[0])
        return cls("Runs compared", text, {name: [name] for name in names})

    def keep(self, directory: Path) -> None:
        """Save the group, so that `show` can draw the same picture again."""
        write_atomic(directory / GROUP, json.dumps(asdict(self), indent=1).encode())

    def directories(self, directory: Path) -> list[Path]:
        return [directory / name for names in self.lines.values() for name in names]

    def histories(self, directory: Path) -> list[History]:
        """One history for each line: the mean over its runs."""
        return [
            merged(label, [directory / name for name in names])
            for label, names in self.lines.items()
        ]

    def write_report(self, directory: Path, histories: list[History], target: float | None) -> None:
        """Write the picture and the page."""
        known = {history.label: history for history in histories}
        panels = {
            head: [replace(known[label], label=short) for short, label in lines.items()]
            for head, lines in self.panels.items()
        }
        drawn = curves.multiples(panels, target) if panels else curves.curves(histories, target)
        shown = pages.page(self.title, histories, target, self.experiment, list(self.notes))
        _write(directory, drawn, shown)


def _experiment(directory: Path) -> str:
    known = directory / EXPERIMENT
    return known.read_text(encoding="utf-8", errors="replace") if known.exists() else ""


def merged(label: str, directories: list[Path]) -> History:
    members = histories_of(directories)
    if len(members) == 1:
        return History.of(label, members[0].events)
    return History.mean(label, members)


def histories_of(directories: Iterable[Path]) -> list[History]:
    return [History.of(path.name, store.read_events(path)) for path in directories]


def choose_target(histories: list[History], target: float | None) -> float | None:
    return target if target is not None else default_target(histories)


def write_report(
    directory: Path, title: str, histories: list[History], target: float | None, text: str
) -> None:
    _write(directory, curves.curves(histories, target), pages.page(title, histories, target, text))


def _write(directory: Path, picture: Figure, text: str) -> None:
    try:
        drawing.save(picture, directory / PICTURE)
        pages.write_page(directory / PAGE, text)
    except OSError as error:  # showing a run must work where nothing can be written
        people.print(
            f"note: could not write the picture and the page: {error.strerror}: {error.filename}"
        )


def tell_files(directory: Path) -> None:
    for name, file in (("picture", PICTURE), ("report", PAGE)):
        if (directory / file).exists():
            results.print(f"{name}: {escape(str(directory / file))}", soft_wrap=True)


def outcome(directory: Path, history: History) -> dict[str, Any]:
    """A run as a JSON document."""
    last, end = history.last, history.end
    return {
        "run": str(directory),
        "scheme": history.scheme,
        "state": "finished" if history.finished is not None else "unfinished",
        "reason": history.finished.reason if history.finished is not None else None,
        "seed": history.started.seed if history.started is not None else None,
        "zeta": history.started.zeta if history.started is not None else None,
        "engine": history.started.engine if history.started is not None else None,
        "iterations": end.iterations if end is not None else 0,
        "rounds": end.number if end is not None else 0,
        "virtual_seconds": end.seconds if end is not None else 0.0,
        "bytes": end.bytes if end is not None else 0,
        "joules": end.joules if end is not None else 0.0,
        "accuracy": last.accuracy if last is not None else None,
        "loss": last.loss if last is not None else None,
        "test_loss": last.test_loss if last is not None else None,
        "spread": last.spread if last is not None else None,
        "metrics": last.metrics if last is not None else {},
        "model_sha256": history.finished.model_sha256 if history.finished is not None else None,
        "warnings": history.warnings,
    }
