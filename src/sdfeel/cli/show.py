"""The command that shows runs again from their logs, and what others share with it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

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
from sdfeel.core.errors import RunError
from sdfeel.core.run_files import EVENTS, EXPERIMENT, PAGE, PICTURE
from sdfeel.report.curves import curves
from sdfeel.report.drawing import save
from sdfeel.report.history import History, default_target
from sdfeel.report.page import page, write_page
from sdfeel.report.tables import comparison, comparison_records, summary
from sdfeel.run import store


def show(
    directory: Annotated[Path, typer.Argument(help="A run, or a directory of runs.")],
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Show a run, or several side by side, again from their logs: table, picture and page.

    Examples:

      sdfeel show runs/compare-20260101-120000

      sdfeel show runs/compare-20260101-120000/sd-feel --json
    """
    check_target(target)
    single = (directory / EVENTS).is_file()
    found = [directory] if single else sorted(p.parent for p in directory.glob(f"*/{EVENTS}"))
    if not found:
        raise RunError(f"{directory} holds no runs: give a directory that `sdfeel run` wrote")
    histories = histories_of(found)
    goal = choose_target(histories, target)
    known = found[0] / EXPERIMENT
    text = known.read_text(encoding="utf-8", errors="replace") if known.exists() else ""
    write_report(directory, "A run" if single else "Runs compared", histories, goal, text)
    if as_json:
        print_json(
            outcome(directory, histories[0])
            if single
            else {"target": goal, "runs": comparison_records(histories, goal)}
        )
        return
    results.print(summary(histories[0], goal) if single else comparison(histories, goal))
    tell_files(directory)


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
    try:
        save(curves(histories, target), directory / PICTURE)
        write_page(directory / PAGE, page(title, histories, target, text))
    except OSError as error:  # looking at a run must work where nothing can be written
        people.print(f"note: no picture and no page: {error.strerror}: {error.filename}")


def tell_files(directory: Path) -> None:
    for name, file in (("picture", PICTURE), ("report", PAGE)):
        if (directory / file).exists():
            results.print(f"{name}: {escape(str(directory / file))}", soft_wrap=True)


def outcome(directory: Path, history: History) -> dict[str, Any]:
    """A run for machines."""
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
