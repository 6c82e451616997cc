"""Commands that show runs: from their logs, or live in a browser."""

from __future__ import annotations

import os
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from sdfeel.cli.common import AsJson, Target, Width, check_target, people, print_json, results
from sdfeel.cli.lazy import later
from sdfeel.core.errors import InputError
from sdfeel.core.run_files import PAGE, PICTURE
from sdfeel.report.history import History
from sdfeel.report.tables import comparison, summary
from sdfeel.report.timeline import Timeline, waiting
from sdfeel.report.units import percent
from sdfeel.run import store

with later():
    from sdfeel import show_runs
    from sdfeel.dashboard import app as dashboard
    from sdfeel.report import drawing, plan_pictures
    from sdfeel.report import gantt as charts
    from sdfeel.report import plan as plans


def show(
    directory: Annotated[Path, typer.Argument(help="A run, a directory of runs, or a plan.")],
    target: Target = None,
    picture: Annotated[
        Path | None, typer.Option(help="One more file for the picture: .pdf, .svg or .png.")
    ] = None,
    width: Width = None,
    as_json: AsJson = False,
) -> None:
    """Show one run, or several side by side, from their logs: table, picture and page.

    Examples:

      sdfeel show runs/race --picture race.pdf --width column

      sdfeel show runs/compare-20260101-120000

      sdfeel show plans/edge --picture plan.pdf --width page

      sdfeel show runs/compare-20260101-120000/sd-feel --json
    """
    check_target(target)
    if (directory / plans.RECORD).is_file() and not as_json:
        _tell_plan(directory, picture, width)
        return
    tell(show_runs.show(directory, target, picture, width), as_json)


def _tell_plan(directory: Path, picture: Path | None, width: str | None) -> None:
    """A plan again, from its record."""
    found = plans.read_plan(directory)
    results.print(plans.table(found))
    drawn = picture or directory / plans.PICTURE
    drawing.save(plan_pictures.plan_picture(found, width), drawn, width)
    results.print(f"picture: {escape(str(drawn))}", soft_wrap=True)


def tell(found: show_runs.Shown, as_json: bool = False) -> None:
    """Print what is shown: a table, or a JSON document."""
    for note in found.notes:
        people.print(f"note: {escape(note)}", soft_wrap=True)
    if found.alone and as_json:
        print_json(outcome(found.directory, found.histories[0]))
    elif as_json:
        print_json({"target": found.target, "runs": found.records})
    else:
        lines, goal = found.histories, found.target
        results.print(summary(lines[0], goal) if found.alone else comparison(lines, goal))
        tell_files(found.directory)


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
        typer.Option("--to", help="Last virtual second (default: after a few gossips)."),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Servers to show (default: the first that fit)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The picture: .pdf, .svg or .png (default: timeline.png)."
        ),
    ] = None,
    width: Width = None,
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
        drawing.save(charts.gantt(_named(lines), first, last, wanted, width), picture, width)
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
