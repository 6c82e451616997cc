"""Commands that show runs, again from their logs or live, and what others share with them."""

from __future__ import annotations

import json
import os
import webbrowser
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from sdfeel.cli.common import AsJson, Target, check_target, people, print_json, results
from sdfeel.cli.lazy import later
from sdfeel.core.errors import InputError, RunError
from sdfeel.core.run_files import EVENTS, EXPERIMENT, GROUP, PAGE, PICTURE, write_atomic
from sdfeel.report.history import History, default_target
from sdfeel.report.tables import comparison, comparison_records, summary
from sdfeel.report.timeline import Timeline, waiting
from sdfeel.report.units import percent
from sdfeel.run import store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

with later():
    from sdfeel.dashboard import app as dashboard
    from sdfeel.report import curves, drawing
    from sdfeel.report import gantt as charts
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


TIMELINE = "timeline.png"


def timeline(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Directories that `sdfeel run` wrote.")
    ],
    begin: Annotated[
        float | None, typer.Option("--from", help="First virtual second (default: 0).")
    ] = None,
    end: Annotated[
        float | None,
        typer.Option("--to", help="Last virtual second (default: a few gossips in)."),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Servers to show (default: the first)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The picture, .png or .svg (default: timeline.png)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw who computed, waited, uploaded and gossiped when, from a run's log.

    Several runs share one time axis. With --json, the picture is drawn only if --out names it.

    Examples:

      sdfeel timeline runs/sd-feel-20260101-120000

      sdfeel timeline sync async --servers 0,3 --to 0.5 --out both.png

      sdfeel timeline async --from 10 --to 12 --json
    """
    wanted = None if servers is None else _numbers(servers)
    lines: dict[str, Timeline] = {}
    windows: list[tuple[float, float]] = []
    for path in runs:
        try:
            lines[str(path)] = line = _read(path)
            windows.append(line.window(begin, end, wanted))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    first, last = windows[0][0], max(end for _, end in windows)
    picture = out if out is not None or as_json else _default_picture(runs)
    if picture is not None:
        drawing.save(charts.gantt(_named(lines), first, last, wanted), picture)
    records = [_record(name, line, first, last, wanted) for name, line in lines.items()]
    if as_json:
        drawn = str(picture) if picture is not None else None
        print_json({"from": first, "to": last, "picture": drawn, "runs": records})
        return
    for record in records:
        results.print(_sentence(record), soft_wrap=True)
    results.print(f"picture: {escape(str(picture))}", soft_wrap=True)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise InputError(
            f"--servers '{text}' must be server numbers, such as --servers 0,1"
        ) from None


def _read(path: Path) -> Timeline:
    return Timeline.of(store.read_events(path))


def _default_picture(runs: list[Path]) -> Path:
    return runs[0] / TIMELINE if len(runs) == 1 else Path(TIMELINE)


def _named(lines: dict[str, Timeline]) -> list[tuple[str, Timeline]]:
    """Runs, named by the last part of their paths where that is enough to tell them apart."""
    short = [Path(name).resolve().name for name in lines]
    return list(zip(short if len(set(short)) == len(short) else lines, lines.values(), strict=True))


def _record(
    name: str, line: Timeline, begin: float, end: float, servers: tuple[int, ...] | None
) -> dict[str, Any]:
    spans = line.spans(begin, end, servers)
    return {
        "run": name,
        "scheme": line.scheme,
        "clients_wait": waiting(spans, "client"),
        "servers_wait": waiting(spans, "server"),
        "spans": [asdict(span) for span in spans],
    }


def _sentence(record: dict[str, Any]) -> str:
    shares = [("clients", record["clients_wait"]), ("servers", record["servers_wait"])]
    told = [f"{who} wait {percent(share)}" for who, share in shares if share is not None]
    return f"{escape(record['run'])}: {', '.join(told)} of the time"


TOKEN = "SDFEEL_DASH_TOKEN"


def dash(
    directory: Annotated[Path, typer.Argument(help="The directory with the runs.")] = Path("runs"),
    host: Annotated[
        str, typer.Option(help=f"Address to listen on; any but loopback needs a token (${TOKEN}).")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on (0: any free one).")
    ] = 0,
    allow_start: Annotated[
        bool, typer.Option("--allow-start", help="Let the page start and stop runs.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Watch runs in a browser, live: curves, the server graph over time, who waits for whom.

    Shows every run below the directory; nothing outside it is ever served.

    Examples:

      sdfeel dash

      sdfeel dash runs/race --port 8080 --no-browser

      sdfeel dash --allow-start
    """

    def ready(address: str) -> None:
        results.print(escape(address), soft_wrap=True)
        people.print("press Ctrl-C to stop it" + (" and the runs started from it" * allow_start))
        if browser:
            webbrowser.open(address)

    dashboard.serve(
        dashboard.ServeOptions(directory, host, port, allow_start, os.environ.get(TOKEN) or None),
        ready,
    )
