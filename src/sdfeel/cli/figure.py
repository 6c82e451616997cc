"""The command that checks the paper's claims."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich import box
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sdfeel.cli.common import AsJson, Jobs, people, print_json, results, stopping
from sdfeel.cli.lazy import later
from sdfeel.core.errors import RunError
from sdfeel.core.events import Evaluated, Finished
from sdfeel.report.units import number, percent

with later():
    from sdfeel.engine import threads
    from sdfeel.experiment import schema
    from sdfeel.figures import catalogue, judging, pictures, running
    from sdfeel.figures import figure as definition
    from sdfeel.report import drawing


def figure(
    names: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="3, 4a, 4b, ... 11b, table1, remarks; several, separated by commas; or all.",
        ),
    ],
    scale: Annotated[
        Literal["quick", "reduced", "full"],
        typer.Option(
            help="quick: built-in digits, minutes for all. reduced: CIFAR-10 with fewer clients "
            "and iterations. full: the paper's setting."
        ),
    ] = "quick",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per curve; claims need 3.")] = 3,
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the pictures.")] = Path(
        "runs/figures"
    ),
    records: Annotated[
        Path | None,
        typer.Option(help="Also keep the verdicts as small files below this directory."),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Fail if a clear verdict differs from the one kept below this directory."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Directory with the data sets (default: the cache)."),
    ] = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Check the paper's claims: run what a figure needs, draw it, and judge each claim.

    Finished runs are kept in your cache: a second call only draws, and an interrupted one picks up
    where it left off.

    Examples:

      sdfeel figure 3

      sdfeel figure 4a --out pictures

      sdfeel figure all --check results

      sdfeel figure 4b --scale reduced --data ~/datasets

      sdfeel figure 8a,9a --scale full --data ~/datasets --json
    """
    figures = catalogue.chosen(names, scale)
    kept = [judging.load(check, scale, each.name) if check else None for each in figures]
    lines = [line for each in figures for line in each.lines(each.setting(scale))]
    _carry_out(running.wanted(lines, seeds), jobs, data)
    documents = [_finish(each, scale, seeds, out, records, data, as_json) for each in figures]
    if as_json:
        print_json({"figures": documents})
    if check is not None:
        _compare(kept, documents, check)


def _compare(kept: list[dict[str, Any] | None], now: list[dict[str, Any]], directory: Path) -> None:
    """Print the verdicts that differ from the kept ones; fail if a kept one was clear."""
    pairs = [(old, new) for old, new in zip(kept, now, strict=True) if old is not None]
    found = [flip for old, new in pairs for flip in judging.flips(old, new)]
    for flip in found:
        people.print(f"flipped: {flip}", markup=False, highlight=False)
    if any(flip.clear for flip in found):
        raise RunError(
            f"verdicts differ from those kept in {directory}: find out why, or keep the new ones "
            f"with --records {directory}"
        )


def _carry_out(runs: dict[str, schema.Experiment], jobs: int | None, data: Path | None) -> None:
    """Run what is missing under one progress bar."""
    left = running.missing(runs)
    if not left:
        return
    carrying = running.Carrying(runs, jobs or threads.cores(), data)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    people.print(f"{len(left)} of {len(runs)} runs are not in the cache yet", highlight=False)
    with Progress(*columns, console=people) as progress, stopping(carrying.stop):
        task = progress.add_task("runs", total=len(left))
        measured: dict[str, str] = {}
        for label, event in carrying:
            if isinstance(event, Evaluated):
                measured[label] = percent(event.accuracy)
                progress.update(task, description=escape(f"{label}: {measured[label]}"))
            elif isinstance(event, Finished):
                progress.advance(task)
                if not people.is_interactive:
                    people.print(
                        f"{label}: {measured.get(label, '')}", markup=False, highlight=False
                    )
    if carrying.unfinished:
        again = shlex.join(["sdfeel", *sys.argv[1:]])
        people.print(f"stopped; nothing is lost. Continue with: {escape(again)}", soft_wrap=True)
        raise typer.Exit(130)


def _finish(
    figure: definition.Figure,
    scale: definition.Scale,
    seeds: int,
    out: Path,
    records: Path | None,
    data: Path | None,
    as_json: bool,
) -> dict[str, Any]:
    """Judge, draw and print one figure."""
    found = judging.curves(figure, scale, seeds, data)
    judged = judging.judge(figure, scale, found)
    document = judging.record(figure, scale, seeds, found, judged)
    note = f"{scale} scale: {document['setting']}; {seeds} seeds, shaded from lowest to highest"
    drawn = pictures.picture(figure, found, note)
    file = out / scale / f"{figure.name}.png"
    if drawn is not None:
        drawing.save(drawn, file)
        document["picture"] = str(file)
    if records is not None:
        judging.save(records, {key: value for key, value in document.items() if key != "picture"})
    if not as_json:
        _tell(figure, scale, judged, file if drawn is not None else None)
    return document


def _tell(
    figure: definition.Figure, scale: str, judged: list[judging.Judged], file: Path | None
) -> None:
    colours = {"holds": "green", "does not hold": "red", "not decided": "yellow"}
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=Text(f"{figure.name}: {figure.title} ({scale} scale)", style="bold"),
        title_justify="left",
    )
    for name in ("claim", "", "prices", "verdict", "effect"):
        table.add_column(name, overflow="fold")
    told: set[str] = set()
    for each in judged:
        verdict = each.verdict
        first = each.claim.id not in told
        told.add(each.claim.id)
        size = (
            "" if verdict.effect != verdict.effect else f"{number(verdict.effect)} {verdict.unit}"
        )
        if verdict.error > 0:
            size += f" (error {number(verdict.error)}; {verdict.alike} of {verdict.seeds} seeds)"
        if verdict.state == "report only":
            size = ", ".join(f"{name} {number(value)}" for name, value in verdict.numbers.items())
        table.add_row(
            each.claim.id if first else "",
            Text(each.claim.sentence if first else ""),
            each.prices,
            Text(judging.MARKS[verdict.state], style=colours.get(verdict.state, "")),
            Text(size),
        )
    results.print(table)
    if file is not None:
        results.print(f"picture: {escape(str(file))}", soft_wrap=True)
