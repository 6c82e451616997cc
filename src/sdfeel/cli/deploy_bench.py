"""The command that measures what a deployment costs on this machine."""

from __future__ import annotations

import dataclasses
import os
from contextlib import nullcontext
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from sdfeel.cli.common import AsJson, Out, fresh_directory, people, print_json, results
from sdfeel.cli.lazy import later
from sdfeel.core.errors import unknown

with later():
    from sdfeel.bench import deployment
    from sdfeel.engine import threads


def deploy(
    parts: Annotated[
        str, typer.Option(metavar="NAME,...", help="round, transfer, links, idle (default: all).")
    ] = "",
    urgent: Annotated[
        bool,
        typer.Option(
            "--urgent", help="Take precedence over everything else on this machine (needs root)."
        ),
    ] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure a real federation on this machine against its goals: takes minutes.

    Runs real processes with certificates and durable state on loopback, and measures how long a
    round without training takes, how fast a large model moves, how closely rounds over links of a
    known speed match the simulator's clock, and what idle connections cost. Shaped links need Linux
    with `unshare`, `ip` and `tc`. Measure while nothing else is running, or use --urgent.

    Examples:

      sdfeel bench deploy

      sdfeel bench deploy --parts round,transfer --json
    """
    names = [name.strip() for name in parts.split(",") if name.strip()] or list(deployment.PARTS)
    for name in names:
        if name not in deployment.PARTS:
            raise unknown("part", name, deployment.PARTS)
    directory = out if out is not None else fresh_directory("bench-deploy")
    before = os.getloadavg()[0]
    found: list[deployment.MeasuredGoal] = []
    for name in names:
        haste = deployment.ahead_of_others() if urgent else nullcontext()
        with people.status(f"measuring: {name}") as status, haste:
            for line in deployment.PARTS[name](directory / name):
                found.append(line)
                status.update(f"measuring: {name}, {len(found)} lines so far")
    if as_json:
        print_json({"load": before, "cores": threads.cores(), "lines": [*map(_record, found)]})
    else:
        results.print(_table(found, before))


def _record(line: deployment.MeasuredGoal) -> dict[str, object]:
    return dataclasses.asdict(line)


def _table(lines: list[deployment.MeasuredGoal], load: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("what", overflow="fold", ratio=5)
    table.add_column("goal", overflow="fold", ratio=2)
    table.add_column("measured", overflow="fold", ratio=3)
    table.add_column("met", no_wrap=True)
    for line in lines:
        what = f"{line.what}\n  [dim]{line.note}[/dim]" if line.note else line.what
        table.add_row(what, line.goal, line.measured, _WORDS[line.met])
    met = sum(line.met is True for line in lines)
    table.caption = (
        f"{met} of {len(lines)} met; {threads.cores()} cores, load average {load:.1f} beforehand"
    )
    table.caption_justify = "left"
    return table


_WORDS = {True: "yes", False: "no", None: "-"}
