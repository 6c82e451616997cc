"""The command that chooses how to train."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer
from rich.markup import escape

from sdfeel.cli.common import (
    AsJson,
    ExperimentFile,
    Out,
    Settings,
    fresh_directory,
    people,
    print_json,
    results,
    stopping,
)
from sdfeel.cli.lazy import later
from sdfeel.core.errors import InputError
from sdfeel.planning.result import Plan
from sdfeel.report.units import duration

with later():
    from sdfeel import commands
    from sdfeel.experiment import loading
    from sdfeel.planning import planner as planning
    from sdfeel.report import plan as told

Accuracy = Annotated[
    float | None, typer.Option(metavar="A", help="Reach this test accuracy, 0 to 1, soonest.")
]
Loss = Annotated[float | None, typer.Option(metavar="L", help="Reach this training loss soonest.")]
Budget = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Get the best model within this virtual time."),
]
Schemes = Annotated[str, typer.Option(metavar="NAME,NAME,...", help="The schemes to choose from.")]
ChooseGraph = Annotated[
    bool, typer.Option("--choose-graph", help="Also choose the links between servers.")
]
Effort = Annotated[
    float,
    typer.Option(
        metavar="RUNS",
        help="How much planning may cost, in whole runs, give or take 30 % (0: rank only).",
    ),
]


def plan(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    target_accuracy: Accuracy = None,
    target_loss: Loss = None,
    budget: Budget = None,
    schemes: Schemes = "sd-feel,hierfavg,fedavg,async-sd-feel,scaffold,k-gt,free-tracking",
    choose_graph: ChooseGraph = False,
    effort: Effort = 16.0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Choose a scheme, its periods, mixing and learning rate for your links and devices.

    Ranks every candidate by the convergence bound and the latency, then simulates the promising
    ones and stops those that fall behind. Without a goal, it looks for the fastest way to the
    accuracy that the given experiment reaches. Writes an experiment file ready for `sdfeel run`, a
    picture and a record. Ctrl-C ends the search and keeps what was found.

    Examples:

      sdfeel plan --target-accuracy 0.9

      sdfeel plan my.toml --set latency.server_server_mbps=1 --budget 60

      sdfeel plan --set devices.spread=8 --schemes sd-feel,async-sd-feel --out plans/edge

      sdfeel plan --choose-graph --effort 4 --json
    """
    if sum(each is not None for each in (target_accuracy, target_loss, budget)) > 1:
        raise InputError(
            "a plan has one goal: use only one of --target-accuracy, --target-loss and --budget"
        )
    names = tuple(dict.fromkeys(name.strip() for name in schemes.split(",") if name.strip()))
    base = loading.load(experiment, settings or ())
    directory = out if out is not None else fresh_directory("plan")
    with people.status("measuring the task and ranking candidates"):
        planner = commands.planner(
            base,
            target_accuracy=target_accuracy,
            target_loss=target_loss,
            budget=budget,
            schemes=names,
            choose_graph=choose_graph,
            effort=effort,
        )
    found = _planned(planner)
    files = told.keep_plan(found, planning.experiment_of(base, found), directory)
    if as_json:
        print_json({"directory": str(directory), "files": files, **found.record()})
    else:
        _tell(found, files)
    if not found.finished:
        people.print("stopped; what was found so far is kept")
        raise typer.Exit(130)


def _planned(planner: planning.Planner) -> Plan:
    """What a planner finds until it is finished or stopped."""
    try:
        _search(planner)
        return planner.plan()
    finally:
        planner.close()


def _search(planner: planning.Planner) -> None:
    """Let candidates race, and show progress."""
    with (
        suppress(KeyboardInterrupt),
        people.status(f"{len(planner.entries)} candidates ranked") as status,
        stopping(planner.stop),
    ):
        for news in planner:
            lead = "none has reached the goal yet"
            if news.leader < float("inf"):
                lead = f"best so far {duration(news.leader)}"
            status.update(
                f"{news.phase}: {escape(news.entry.candidate.label)}; {lead}; "
                f"{100 * min(news.spent, 1):.0f} % of the allowance"
            )


def _tell(found: Plan, files: dict[str, str]) -> None:
    """Print the table, the reasons, and where the files are."""
    results.print(told.table(found))
    for sentence in told.reasons(found):
        results.print(escape(sentence), soft_wrap=True, highlight=False)
    for name, path in files.items():
        results.print(f"{name}: {escape(path)}", soft_wrap=True)
    if "experiment" in files:
        results.print(f"run it with: sdfeel run {escape(files['experiment'])}", soft_wrap=True)
