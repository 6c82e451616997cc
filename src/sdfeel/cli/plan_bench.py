"""The command that checks the planner against an exhaustive grid."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from sdfeel.cli.common import AsJson, Jobs, Out, fresh_directory, people, print_json, results
from sdfeel.cli.lazy import later
from sdfeel.core.errors import unknown
from sdfeel.report.units import duration

with later():
    from sdfeel.bench import planning as bench


def plan(
    situations: Annotated[
        str, typer.Option(metavar="NAME,...", help="The situations to try (default: all).")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed for data, models and mini-batches.")] = 0,
    online: Annotated[
        bool,
        typer.Option("--online", help="Compare periods that are chosen during training instead."),
    ] = False,
    out: Out = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Compare the planner's choice with every candidate, run to the end: takes minutes.

    The planner's goals: within 15 % of the grid's best, 1.5 times faster than the paper's default
    setting, with a tenth of the grid's compute. With --online, the scheme `adaptive` is compared
    with all fixed periods of sd-feel instead. With the same --out, finished parts of the grid are
    kept.

    Examples:

      sdfeel bench plan

      sdfeel bench plan --situations "slow backhaul,slow clients" --seed 1 --out runs/bench-plan

      sdfeel bench plan --online --out runs/bench-plan
    """
    names = [n.strip() for n in situations.split(",") if n.strip()] or list(bench.SITUATIONS)
    for name in names:
        if name not in bench.SITUATIONS:
            raise unknown("situation", name, bench.SITUATIONS)
    directory = out if out is not None else fresh_directory("bench-plan")
    if online:
        lines = [
            line
            for name in names
            for line in bench.online(name, _grid(name, directory, seed, jobs), seed)
        ]
        if as_json:
            print_json([_record(each) for each in lines])
        else:
            results.print(_online_table(lines))
        return
    found = []
    for name in names:
        with people.status(f"{name}: planning"):
            answer = bench.plan(name, seed)
        found.append(bench.verdict(name, answer, _grid(name, directory, seed, jobs)))
    if as_json:
        print_json([{**_record(each), "compute": each.compute} for each in found])
    else:
        results.print(_table(found))


def _grid(name: str, directory: Path, seed: int, jobs: int | None) -> list[bench.Tried]:
    """Run every candidate of a situation, and show progress."""
    tried = []
    with people.status(f"{name}: the grid") as status:
        for each in bench.grid(name, directory, seed, jobs):
            tried.append(each)
            status.update(f"{name}: the grid, {len(tried)} done")
    return tried


def _record(line: bench.SituationResult | bench.Online) -> dict[str, object]:
    return {**dataclasses.asdict(line), "behind": line.behind, "speedup": line.speedup}


def _table(verdicts: list[bench.SituationResult]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("situation")
    table.add_column("planned", overflow="fold")
    for title in ("time", "grid's best", "behind", "default", "faster", "compute"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in verdicts:
        table.add_row(
            each.situation,
            each.choice,
            duration(each.seconds),
            duration(each.best_seconds),
            _judged(f"{100 * (each.behind - 1):.0f} %", each.behind <= bench.NEAR),
            duration(each.default_seconds),
            _judged(f"{each.speedup:.1f} x", each.speedup >= bench.FASTER),
            _judged(f"{100 * each.compute:.1f} %", each.compute <= bench.CHEAP),
        )
    near = sum(each.behind <= bench.NEAR for each in verdicts)
    faster = sum(each.speedup >= bench.FASTER for each in verdicts)
    cheap = sum(each.compute <= bench.CHEAP for each in verdicts)
    table.caption = (
        f"of {len(verdicts)}: {near} within 15 % of the best, {faster} at least 1.5 x faster than "
        f"the default, {cheap} at a tenth of the compute or less; ! marks a missed goal"
    )
    table.caption_justify = "left"
    return table


def _online_table(lines: list[bench.Online]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("situation")
    table.add_column("rate", justify="right")
    table.add_column("online", justify="right")
    table.add_column("best fixed setting", overflow="fold")
    for title in ("time", "behind", "default", "faster"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in lines:
        table.add_row(
            each.situation,
            f"{each.rate:g}",
            duration(each.seconds),
            each.best.partition(" ")[2].rpartition(" ")[0],
            duration(each.best_seconds),
            "never reached" if each.seconds is None else f"{100 * (each.behind - 1):.0f} %",
            duration(each.default_seconds),
            f"{each.speedup:.1f} x",
        )
    return table


def _judged(text: str, good: bool) -> str:
    return text if good else f"! {text}"
