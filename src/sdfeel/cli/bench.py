"""The command that times the engines."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich.table import Table

from sdfeel.cli.common import AsJson, people, print_json, results
from sdfeel.cli.lazy import Home, announce, later, lazy
from sdfeel.core.errors import unknown

with later():
    from sdfeel.bench import engines as ways_to_train

COMMANDS = {
    "plan": Home(
        "sdfeel.cli.plan_bench",
        "Compare the planner's choice with every candidate, run to the end: takes minutes.",
    ),
    "deploy": Home(
        "sdfeel.cli.deploy_bench",
        "Measure a real federation on this machine against its goals: takes minutes.",
    ),
}
bench = typer.Typer(
    cls=lazy(COMMANDS),
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="markdown",
)
announce(bench, COMMANDS)


@bench.callback()
def engines(
    context: typer.Context,
    works: Annotated[
        str,
        typer.Option(
            "--work",
            metavar="NAME,...",
            help="mnist-cnn, mlp, lenet, cifar-cnn, evaluation (10,000 images, MNIST CNN).",
        ),
    ] = "mnist-cnn,mlp,lenet,cifar-cnn,evaluation",
    ways: Annotated[
        str, typer.Option("--ways", metavar="NAME,...", help="What to time (default: all).")
    ] = "",
    repeats: Annotated[
        int, typer.Option(min=1, help="Repeats of each measurement; medians are shown.")
    ] = 7,
    as_json: AsJson = False,
) -> None:
    """Time the engines against plain torch code and the machine's limit, interleaved.

    Trust the ratios: samples per second depend on the machine and on what else it does.

    Examples:

      sdfeel bench

      sdfeel bench --work mnist-cnn --repeats 15 --json

      sdfeel bench plan

      sdfeel bench deploy
    """
    if context.invoked_subcommand is not None:
        return
    chosen = [ways_to_train.find(name.strip()) for name in works.split(",")]
    names = [name.strip() for name in ways.split(",") if name.strip()] or list(ways_to_train.WAYS)
    for name in names:
        if name not in ways_to_train.WAYS:
            raise unknown("way", name, ways_to_train.WAYS)
    if "loop" not in names:
        names.append("loop")  # everything is compared with it
    found = []
    for work in chosen:
        with people.status(f"timing {work.name}") as status:
            found += ways_to_train.compare(
                work,
                names,
                repeats,
                lambda way, done, all_, s=status, w=work.name: s.update(  # type: ignore[misc]
                    f"timing {w}: repeat {done} of {all_}, {way}"
                ),
            )
    if as_json:
        print_json([dataclasses.asdict(speed) for speed in found])
    else:
        results.print(_table(found))


def _table(speeds: list[Any]) -> Table:
    table = Table("work", "way", box=None, pad_edge=False)
    for title in ("samples/s", "x loop", "% of limit"):
        table.add_column(title, justify="right")
    before = ""
    for speed in speeds:
        table.add_row(
            speed.work if speed.work != before else "",
            speed.way,
            f"{speed.samples_per_second:,.0f}",
            f"{speed.of_loop:.2f}",
            f"{100 * speed.of_limit:.1f}",
        )
        before = speed.work
    return table
