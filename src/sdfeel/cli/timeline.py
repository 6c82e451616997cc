"""The command that draws who did what, and when."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from sdfeel.cli.common import AsJson, print_json, results
from sdfeel.cli.lazy import later
from sdfeel.core.errors import InputError
from sdfeel.report.timeline import Timeline, waiting
from sdfeel.report.units import percent
from sdfeel.run import store

with later():
    from sdfeel.report import drawing
    from sdfeel.report import gantt as charts

PICTURE = "timeline.png"


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
    return runs[0] / PICTURE if len(runs) == 1 else Path(PICTURE)


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
