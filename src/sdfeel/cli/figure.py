"""The command that checks the paper's claims."""

from __future__ import annotations

import os
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

from sdfeel.cli.common import AsJson, Jobs, Width, people, print_json, results, stopping
from sdfeel.cli.lazy import later
from sdfeel.core.errors import InputError, RunError
from sdfeel.core.events import Evaluated, Finished
from sdfeel.report.units import number, percent

with later():
    from sdfeel.engine import base as engine
    from sdfeel.experiment import schema
    from sdfeel.figures import all_figures, judging, kept_curves, pictures, running, verdicts
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
        Literal["quick", "small", "full"] | None,
        typer.Option(
            help="quick: built-in digits, minutes for all. small: fewer clients, or images at half "
            "the resolution. full: the paper's setting. Default: the costliest that is kept; with "
            "--run, quick."
        ),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Compute what is not kept yet; without it, only draw.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per curve, with --run.")] = 5,
    reading: Annotated[
        Literal["A", "E"] | None,
        typer.Option(
            help="With --run, compute only one reading of the paper's local iteration: A, a batch, "
            "or E, a pass over a client's data (default: all of a figure's)."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the pictures.")] = Path(
        "runs/figures"
    ),
    form: Annotated[
        Literal["png", "svg", "pdf"], typer.Option("--format", help="Format of the pictures.")
    ] = "png",
    width: Width = None,
    kept: Annotated[
        Path, typer.Option("--results", help="Directory with the kept curves and verdicts.")
    ] = Path("results"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep curves and verdicts in that directory.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Fail if a clear verdict or a line's final numbers differ from the kept ones; "
            "with --run, everything is computed anew.",
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Directory with the data sets (default: the cache)."),
    ] = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Check the paper's claims: draw a figure from its kept curves, and judge each claim.

    With --run, curves are computed first. Finished runs stay in your cache, so an interrupted call
    picks up where it left off.

    Examples:

      sdfeel figure 4a

      sdfeel figure 4a --format pdf --width column --out pictures

      sdfeel figure all --scale quick --run --check

      sdfeel figure 8a,9a --scale full --run --keep --data ~/datasets
    """
    if data is not None:
        os.environ["SDFEEL_DATA"] = str(data.resolve())  # for data sets that are made from these
    if run:
        scale = scale or "quick"
    figures = all_figures.chosen(names, scale)
    scales = {each.name: scale or _costliest_kept(kept, each) for each in figures}
    known = {each.name: _known(kept, scales[each.name], each, run) for each in figures}
    if run:
        base = {
            each.name: kept_curves.KeptFigure()
            if check
            else kept_curves.with_shared(known[each.name], kept, scales[each.name], each, seeds)
            for each in figures
        }
        _compute(figures, scales, seeds, reading, base, jobs, data)
        known = {
            each.name: kept_curves.gathered(each, scales[each.name], seeds, base[each.name], data)
            for each in figures
        }
    documents = [
        _finish(each, scales[each.name], known[each.name], (out, form, width), as_json)
        for each in figures
    ]
    if as_json:
        print_json({"figures": documents})
    if check:
        _compare(documents, kept)
    if keep:
        _keep(figures, known, documents, kept)


def _costliest_kept(results: Path, figure: definition.Figure) -> definition.Scale:
    """Of the scales with kept curves, the one nearest to the paper's."""
    if not figure.data:
        return "quick"
    order: tuple[definition.Scale, ...] = ("full", "small", "quick")
    for scale in order:
        if kept_curves.file_of(results, scale, figure.name).is_file():
            return scale
    return figure.scales[0]


def _known(
    results: Path, scale: definition.Scale, figure: definition.Figure, run: bool
) -> kept_curves.KeptFigure:
    """The kept runs; without --run there must be some."""
    figure.setting(scale)  # a scale that it does not have is reported first
    found = kept_curves.load(results, scale, figure)
    if found is None and not run and figure.data:
        raise InputError(
            f"{results} has no curves of figure {figure.name} at {scale} scale: compute them with "
            f"sdfeel figure {figure.name} --scale {scale} --run, or name another directory with "
            f"--results"
        )
    return found or kept_curves.KeptFigure()


def _compute(
    figures: list[definition.Figure],
    scales: dict[str, definition.Scale],
    seeds: int,
    only: definition.Reading | None,
    known: dict[str, kept_curves.KeptFigure],
    jobs: int | None,
    data: Path | None,
) -> None:
    """Train whatever is neither kept nor in the cache."""
    asked = [
        (reading, line, seed)
        for each in figures
        for (reading, label, seed), line in kept_curves.places(each, scales[each.name], seeds)
        if only in (None, reading) and not known[each.name].has((reading, label, seed), line)
    ]
    _carry_out(running.wanted(sorted(asked, key=lambda one: one[2])), jobs, data)


def _compare(now: list[dict[str, Any]], directory: Path) -> None:
    """Print what differs from the kept records; fail if that is more than noise."""
    wrong = False
    for document in now:
        old = judging.load(directory, document["scale"], document["figure"])
        if old is None:
            continue
        flipped, shifted = judging.flips(old, document), judging.shifts(old, document)
        for flip in flipped:
            people.print(f"flipped: {flip}", markup=False, highlight=False)
        for shift in shifted:
            people.print(f"shifted: {shift}", markup=False, highlight=False)
        wrong = wrong or bool(shifted) or any(flip.clear for flip in flipped)
    if wrong:
        raise RunError(
            f"verdicts or numbers differ from those kept in {directory}: find out why, or keep the "
            f"new ones with --run --keep"
        )


def _keep(
    figures: list[definition.Figure],
    known: dict[str, kept_curves.KeptFigure],
    documents: list[dict[str, Any]],
    results: Path,
) -> None:
    """Write curves and verdicts."""
    for figure, document in zip(figures, documents, strict=True):
        if known[figure.name].runs:
            kept_curves.save(results, document["scale"], figure, known[figure.name])
        judging.save(results, {k: v for k, v in document.items() if k != "picture"})


def _carry_out(runs: dict[str, schema.Experiment], jobs: int | None, data: Path | None) -> None:
    """Run what is missing under one progress bar."""
    left = running.missing(runs)
    if not left:
        return
    carrying = running.Carrying(runs, jobs or engine.cores(), data)
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
    known: kept_curves.KeptFigure,
    place: tuple[Path, str, str | None],
    as_json: bool,
) -> dict[str, Any]:
    """Judge, draw and print one figure; `place`: its directory, format and width in print."""
    out, form, width = place
    found = known.curves(figure, scale)
    document = judging.record(figure, scale, found)
    drawn = pictures.picture(figure, scale, found, width)
    file = out / scale / f"{figure.name}.{form}"
    if drawn is not None:
        drawing.save(drawn, file, width)
        document["picture"] = str(file)
    if not as_json:
        _tell(figure, scale, judging.judge(figure, scale, found), file if drawn else None)
        _tell_what_is_missing(figure, scale, known)
    return document


def _tell_what_is_missing(
    figure: definition.Figure, scale: definition.Scale, known: kept_curves.KeptFigure
) -> None:
    """Print which readings have no curves yet, and the command that computes them."""
    if not figure.data:
        return
    have = {reading: len(known.seeds(figure, scale, reading)) for reading in figure.readings}
    lacking = [reading for reading, seeds in have.items() if not seeds]
    if lacking:
        where = "" if scale == "quick" else " --data DIRECTORY"
        results.print(
            f"not computed: reading {' and '.join(lacking)}; sdfeel figure {figure.name} --scale "
            f"{scale} --run{where} does that",
            soft_wrap=True,
        )


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
    for name in ("claim", "", "reading", "verdict", "effect"):
        table.add_column(name, overflow="fold")
    told: set[str] = set()
    for each in judged:
        first = each.claim.id not in told
        told.add(each.claim.id)
        table.add_row(
            each.claim.id if first else "",
            Text(each.claim.sentence if first else ""),
            each.reading or "",
            Text(judging.MARKS[each.verdict.state], style=colours.get(each.verdict.state, "")),
            Text(_size(each.verdict)),
        )
    results.print(table)
    if file is not None:
        results.print(f"picture: {escape(str(file))}", soft_wrap=True)


def _size(verdict: verdicts.Verdict) -> str:
    """The effect with its interval and the seeds behind it."""
    if verdict.state == "report only":
        return ", ".join(f"{name} {number(value)}" for name, value in verdict.numbers.items())
    said = "" if verdict.effect != verdict.effect else f"{number(verdict.effect)} {verdict.unit}"
    if verdict.low < verdict.high:
        said += f" [{number(verdict.low)}, {number(verdict.high)}]"
    if verdict.margin:
        said += f", margin {number(verdict.margin)}"
    if verdict.seeds:
        said += f"; {verdict.agree} of {verdict.seeds} seeds for, {verdict.against} against"
    return said
