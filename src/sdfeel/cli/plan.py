"""The command that chooses how to train."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
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
from sdfeel.core.run_files import write_atomic
from sdfeel.planning.goal import Goal, Kind
from sdfeel.planning.result import Plan
from sdfeel.report.units import duration

with later():
    from sdfeel.experiment import loading, schema
    from sdfeel.planning import planner as planning
    from sdfeel.report import drawing
    from sdfeel.report import plan as told

PICTURE, RECORD, BEST = "plan.png", "plan.json", "best.toml"

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
    typer.Option(metavar="RUNS", help="How much planning may cost, in whole runs (0: rank only)."),
]


def plan(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    target_accuracy: Accuracy = None,
    target_loss: Loss = None,
    budget: Budget = None,
    schemes: Schemes = "sd-feel,hierfavg,fedavg,async-sd-feel",
    choose_graph: ChooseGraph = False,
    effort: Effort = 8.0,
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
    goal = _goal(target_accuracy, target_loss, budget)
    names = tuple(dict.fromkeys(name.strip() for name in schemes.split(",") if name.strip()))
    base = loading.load(experiment, settings or ())
    directory = out if out is not None else fresh_directory("plan")
    found = _planned(base, planning.Wishes(goal, names, choose_graph, effort))
    files = _write(directory, base, found)
    if as_json:
        print_json({"directory": str(directory), "files": files, **found.record()})
    else:
        _tell(found, files)
    if not found.finished:
        people.print("stopped; what was found so far is kept")
        raise typer.Exit(130)


def _goal(accuracy: float | None, loss: float | None, budget: float | None) -> Goal | None:
    asked: dict[Kind, float | None] = {"accuracy": accuracy, "loss": loss, "budget": budget}
    given = [Goal(kind, value) for kind, value in asked.items() if value is not None]
    if len(given) > 1:
        raise InputError(
            "a plan has one goal: use only one of --target-accuracy, --target-loss and --budget"
        )
    return given[0] if given else None


def _planned(base: schema.Experiment, wishes: planning.Wishes) -> Plan:
    """What a planner finds until it is finished or stopped."""
    with people.status("measuring the task and ranking candidates"):
        planner = planning.Planner(base, wishes)
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


def _write(directory: Path, base: schema.Experiment, found: Plan) -> dict[str, str]:
    """Write the record, the picture and the experiment file; return their paths."""
    files = {"record": directory / RECORD, "picture": directory / PICTURE}
    write_atomic(files["record"], (json.dumps(found.record(points=True), indent=1) + "\n").encode())
    drawing.save(told.picture(found), files["picture"])
    best = planning.experiment_of(base, found)
    if best is not None:
        files["experiment"] = directory / BEST
        write_atomic(files["experiment"], loading.template(best).encode())
    return {name: str(path) for name, path in files.items()}
