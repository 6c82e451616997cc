"""`sdfeel fidelity`: deployed runs compared with simulations of the same experiments."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sdfeel.cli.common import AsJson, people, print_json, results
from sdfeel.cli.lazy import later
from sdfeel.core.run_files import write_atomic

with later():
    from sdfeel.deploy import fidelity as comparing
    from sdfeel.deploy import round_times


class Steps(StrEnum):
    """Where step times come from."""

    experiment = "experiment"
    run = "run"


def fidelity(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Directories of deployed runs.")
    ],
    steps: Annotated[
        Steps,
        typer.Option(
            help="Where clients' step times come from: the experiment, or the run itself."
        ),
    ] = Steps.experiment,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the fitted overheads to this file, as TOML keys."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Write the comparison to this file, as Markdown.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare deployed runs with simulations of the same experiments, in seconds per round.

    Runs of the same experiment count as repetitions. With six experiments or more, the overheads of
    deployment are fitted: each third of the experiments is predicted from the others.

    Examples:

      sdfeel fidelity runs/deploy-*

      sdfeel fidelity runs/deploy-* --out overheads.toml
    """
    found = comparing.compare([round_times.read(path) for path in runs], steps is Steps.run)
    if out is not None and found.fit is not None:
        write_atomic(out, found.fit.toml().encode())
    if table is not None:
        write_atomic(table, comparing.markdown(found).encode())
    if as_json:
        print_json(found.document())
        return
    for text in found.warnings:
        people.print(f"note: {escape(text)}", highlight=False)
    results.print(_table(found))
    results.print(_phases(found))
    _summary(found)


def _table(found: comparing.FidelityTable) -> Table:
    table = Table("configuration", box=None, header_style="bold")
    for column in ("runs", "deployed", "apart", "simulated", "error", "held out", "error"):
        table.add_column(column, justify="right")
    for row in found.rows:
        held = ("", "")
        if row.held_out is not None and row.fitted_error is not None:
            held = _ms(row.held_out), _percent(row.fitted_error)
        table.add_row(
            escape(row.name),
            str(row.runs),
            _ms(row.measured.seconds),
            f"{row.spread * 100:.1f} %" if row.runs > 1 else "",
            _ms(row.plain.seconds),
            _percent(row.error),
            *held,
        )
    return table


def _phases(found: comparing.FidelityTable) -> Table:
    title = "Milliseconds per round that the simulation misses"
    table = Table("scheme", box=None, header_style="bold", title=title, title_justify="left")
    for phase in ("compute", "upload", "mix", "rest"):
        table.add_column(phase, justify="right")
    for scheme, missed in found.by_scheme().items():
        table.add_row(escape(scheme), *(f"{each * 1e3:+.0f}" for each in missed.values()))
    return table


def _summary(found: comparing.FidelityTable) -> None:
    for text in comparing.summary(found):
        results.print(escape(text), highlight=False)
    if found.fit is None:
        need = comparing.FOLDS + comparing.LEAST
        results.print(f"No overheads were fitted: that takes {need} configurations")
        return
    results.print(escape(found.fit.toml()), highlight=False)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _percent(part: float) -> str:
    return f"{part * 100:+.1f} %"
