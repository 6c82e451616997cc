"""Commands that carry runs elsewhere: into a paper, and into trackers of experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sdfeel.cli.common import Target, check_target, people
from sdfeel.cli.lazy import later
from sdfeel.core.errors import RunError
from sdfeel.core.run_files import EVENTS

with later():
    from sdfeel.report import export as papers
    from sdfeel.run import tracking


def export(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIRECTORY...", help="Runs, or directories of runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A file for the table: .tex, .csv or .md."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", help="markdown, latex or csv (default: by --out)."),
    ] = None,
    target: Target = None,
    against: Annotated[
        str | None, typer.Option(help="The line that others are compared with (default: first).")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="A file for the curves: .pdf, .svg or .png."),
    ] = None,
    width: Annotated[
        str, typer.Option(help="Width of the picture: column, page or slide (text of 7 to 9 pt).")
    ] = "column",
) -> None:
    """Write tables for a paper: means with intervals, paired differences, costs to the target.

    Runs that differ only in their seeds form a line. Intervals are Student's, 95 %. A seed that
    never reaches the target is not left out: the mean is then given as a lower bound.

    Examples:

      sdfeel export runs/race

      sdfeel export runs/race --target 0.9 --out race.tex --picture race.pdf

      sdfeel export runs/a runs/b --against fedavg --format csv
    """
    check_target(target)
    text = papers.export(
        directories,
        format=format,  # type: ignore[arg-type]  # it is checked there
        out=out,
        target=target,
        against=against,
        picture=picture,
        width=width,
    )
    if out is None:
        typer.echo(text, nl=False)
    for file in (out, picture):
        if file is not None:
            people.print(f"wrote {escape(str(file))}", soft_wrap=True)


def track(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIRECTORY...", help="Runs, or directories of runs.")
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME,...",
            help="tensorboard, mlflow, wandb, trackio, or package.module:name.",
        ),
    ],
) -> None:
    """Send runs to an experiment tracker, from their logs.

    Whatever was sent about a run before is replaced. To follow a run while it runs, set
    tracking.to.

    Examples:

      sdfeel track runs/race --to tensorboard

      sdfeel track runs/race/sd-feel --to mlflow,wandb
    """
    for given in directories:
        found = [given] if (given / EVENTS).is_file() else [p.parent for p in _logs(given)]
        if not found:
            raise RunError(f"{given} contains no runs: give a directory that `sdfeel run` wrote")
        for directory in found:
            tracking.track(directory, *to.split(","))
            people.print(f"sent {escape(str(directory))} to {escape(to)}", soft_wrap=True)


def _logs(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*/{EVENTS}"))
