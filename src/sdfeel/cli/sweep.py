"""The command that runs a grid."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdfeel.cli.common import (
    AsJson,
    Jobs,
    Out,
    Settings,
    Target,
    check_target,
    fresh_directory,
    print_json,
    results,
)
from sdfeel.cli.runs import choose_target, execute_many, merged, tell_files
from sdfeel.core.run_files import PAGE, PICTURE

if TYPE_CHECKING:
    from sdfeel.experiment.grid import GridPoint
    from sdfeel.report.history import History


def sweep(
    axes: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE,VALUE...", help="The axes of the grid.")
    ],
    experiment: Annotated[
        Path | None, typer.Option("--experiment", "-e", help="An experiment file to start from.")
    ] = None,
    settings: Settings = None,
    out: Out = None,
    target: Target = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Run every combination of values, over all cores; seeds are averaged.

    Called again with the same --out, it keeps what is finished and goes on with the rest.

    Examples:

      sdfeel sweep scheme.tau1=1,3,20 network.graph=ring,complete seed=0..2 --out runs/sweep

      sdfeel sweep scheme.alpha=1,2,5 -s scheme.tau2=5 -s training.iterations=200
    """
    from sdfeel.experiment.grid import axis, points
    from sdfeel.report.charts import save
    from sdfeel.report.multiples import multiples
    from sdfeel.report.page import page, write_page
    from sdfeel.report.tables import comparison, comparison_records
    from sdfeel.run.many import QueuedRun

    check_target(target)
    grid = points(experiment, settings or (), [axis(text) for text in axes])
    directory = out if out is not None else fresh_directory("sweep")
    again = shlex.join(["sdfeel", *sys.argv[1:]])
    execute_many(
        {p.name: QueuedRun(p.experiment, directory / p.name, notes=False) for p in grid},
        jobs,
        again if out is not None else f"{again} --out {directory}",
    )
    histories = grouped(grid, directory)
    goal = choose_target(histories, target)
    save(multiples(panels(grid, histories), goal), directory / PICTURE)
    text = grid[0].experiment.text()
    write_page(directory / PAGE, page("A sweep", histories, goal, text, [" ".join(axes)]))
    if as_json:
        records = comparison_records(histories, goal)
        print_json({"directory": str(directory), "target": goal, "runs": records})
    else:
        results.print(comparison(histories, goal))
        tell_files(directory)


def grouped(grid: "list[GridPoint]", directory: Path) -> "list[History]":
    """One history per combination, the mean over its seeds."""
    members: dict[str, list[Path]] = {}
    for point in grid:
        members.setdefault(point.label, []).append(directory / point.name)
    return [merged(label, paths) for label, paths in members.items()]


def panels(grid: "list[GridPoint]", histories: "list[History]") -> "dict[str, list[History]]":
    """The histories by the first axis: a small picture for each of its values."""
    from dataclasses import replace

    known = {history.label: history for history in histories}
    found: dict[str, dict[str, History]] = {}
    for point in grid:
        named = [(k, v) for k, v in point.choices.items() if k != "seed"]
        head = "=".join(named[0]) if len(named) > 1 else "all"
        rest = " ".join(
            f"{k.rpartition('.')[2]}={v}" for k, v in named[1 if len(named) > 1 else 0 :]
        )
        history = known[point.label]
        found.setdefault(head, {})[point.label] = replace(history, label=rest or history.label)
    return {head: list(lines.values()) for head, lines in found.items()}
