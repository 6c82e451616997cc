"""Commands that run experiments: one, several schemes, a whole grid."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sdfeel.cli.common import (
    AsJson,
    ExperimentFile,
    Jobs,
    Out,
    Settings,
    Target,
    check_target,
    fresh_directory,
    people,
    print_json,
    results,
    stopping,
)
from sdfeel.cli.lazy import later
from sdfeel.core.errors import InputError, RunError
from sdfeel.core.run_files import EXPERIMENT, PAGE, PICTURE
from sdfeel.report.progress import Progress
from sdfeel.report.tables import comparison, comparison_records, shares, summary
from sdfeel.schemes import SCHEMES, find

with later():
    from sdfeel.cli import show as shown
    from sdfeel.engine import threads
    from sdfeel.experiment import grid as grids
    from sdfeel.experiment import loading
    from sdfeel.run import many as queue
    from sdfeel.run import session as durable

COMPARED = "sd-feel,hierfavg,fedavg,feel"


def run(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    out: Out = None,
    profile: Annotated[bool, typer.Option(help="Show how the run spent its real time.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run one experiment.

    Examples:

      sdfeel run

      sdfeel run --set scheme.name=hierfavg --set scheme.tau2=2 --out runs/hier

      sdfeel run my.toml --set training.learning_rate=0.1 --set seed=3 --json
    """
    chosen = loading.load(experiment, settings or ())
    directory = out if out is not None else fresh_directory(chosen.scheme.label)
    session = durable.start(chosen, directory)
    _finish_one(session, as_json)
    if profile:
        people.print(shares(session.profile()))


def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a stopped or killed run.")],
    as_json: AsJson = False,
) -> None:
    """Continue a run that was stopped or killed; it ends as if nothing had happened.

    Example:

      sdfeel resume runs/sd-feel-20260101-120000
    """
    _finish_one(durable.resume(directory), as_json)


def compare(
    experiment: ExperimentFile = None,
    schemes: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="The schemes to compare, or all.")
    ] = COMPARED,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs per scheme, with consecutive seeds; means are shown.")
    ] = 1,
    settings: Settings = None,
    out: Out = None,
    target: Target = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Compare schemes on the same data, seed and latency model. Start here.

    Writes one run per scheme, a picture and a report that opens without a network. If you call it
    again with the same --out, it keeps what is finished and continues with the rest.

    Examples:

      sdfeel compare

      sdfeel compare --schemes sd-feel,hierfavg --set network.graph=complete --out runs/race

      sdfeel compare --seeds 3 --set network.servers=5

      sdfeel compare my.toml --target 0.9 --json
    """
    check_target(target)
    names = list(dict.fromkeys(name.strip() for name in schemes.split(",") if name.strip()))
    names = list(SCHEMES) if names == ["all"] else names
    if not names:
        raise InputError(f"--schemes '{schemes}' names no scheme: see `sdfeel schemes`")
    for name in names:
        find(name)
    base = loading.load(experiment, settings or ())
    directory = out if out is not None else fresh_directory("compare")
    if (directory / EXPERIMENT).exists():
        raise RunError(f"{directory} is a single run: choose another directory with --out")
    runs: dict[str, queue.QueuedRun] = {}
    members: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        for seed in range(base.seed, base.seed + seeds):
            values = base.model_dump()
            values["seed"], values["scheme"]["name"] = seed, name
            label = name if seeds == 1 else f"{name}-seed{seed}"
            # Keys of other schemes are expected here: notes about them would only distract.
            runs[label] = queue.QueuedRun(loading.checked(values), directory / label, notes=False)
            members[name].append(label)
    again = shlex.join(["sdfeel", *sys.argv[1:]])
    execute_many(runs, jobs, again if out is not None else f"{again} --out {directory}")
    group = shown.Group("Schemes compared", base.text(), members)
    group.keep(directory)
    histories = group.histories(directory)
    goal = shown.choose_target(histories, target)
    group.write_report(directory, histories, goal)
    if as_json:
        print_json(
            {
                "directory": str(directory),
                "target": goal,
                "runs": comparison_records(histories, goal),
                "picture": str(directory / PICTURE),
                "report": str(directory / PAGE),
            }
        )
    else:
        results.print(comparison(histories, goal))
        shown.tell_files(directory)


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
    """Run every combination of values on all cores, and average over seeds.

    If you call it again with the same --out, it keeps what is finished and continues with the rest.

    Examples:

      sdfeel sweep scheme.tau1=1,3,20 network.graph=ring,complete seed=0..2 --out runs/sweep

      sdfeel sweep scheme.alpha=1,2,5 -s scheme.tau2=5 -s training.iterations=200
    """
    check_target(target)
    grid = grids.points(experiment, settings or (), [grids.axis(text) for text in axes])
    directory = out if out is not None else fresh_directory("sweep")
    again = shlex.join(["sdfeel", *sys.argv[1:]])
    execute_many(
        {p.name: queue.QueuedRun(p.experiment, directory / p.name, notes=False) for p in grid},
        jobs,
        again if out is not None else f"{again} --out {directory}",
    )
    group = shown.Group(
        "A sweep", grid[0].experiment.text(), grouped(grid), panels(grid), [" ".join(axes)]
    )
    group.keep(directory)
    histories = group.histories(directory)
    goal = shown.choose_target(histories, target)
    group.write_report(directory, histories, goal)
    if as_json:
        records = comparison_records(histories, goal)
        print_json({"directory": str(directory), "target": goal, "runs": records})
    else:
        results.print(comparison(histories, goal))
        shown.tell_files(directory)


def grouped(grid: list[grids.GridPoint]) -> dict[str, list[str]]:
    """The runs of each combination: one for every seed."""
    members: dict[str, list[str]] = {}
    for point in grid:
        members.setdefault(point.label, []).append(point.name)
    return members


def panels(grid: list[grids.GridPoint]) -> dict[str, dict[str, str]]:
    """The combinations by the first axis: a small picture for each of its values."""
    found: dict[str, dict[str, str]] = {}
    for point in grid:
        named = [(k, v) for k, v in point.choices.items() if k != "seed"]
        head = "=".join(named[0]) if len(named) > 1 else "all"
        rest = " ".join(
            f"{k.rpartition('.')[2]}={v}" for k, v in named[1 if len(named) > 1 else 0 :]
        )
        found.setdefault(head, {})[rest or point.label] = point.label
    return found


def _finish_one(session: durable.Session, as_json: bool) -> None:
    """Run one session to its end, and report the result."""
    _execute({session.experiment.scheme.label: session}, f"sdfeel resume {session.directory}")
    histories = shown.histories_of([session.directory])
    goal = shown.choose_target(histories, None)
    shown.write_report(session.directory, "A run", histories, goal, session.experiment.text())
    if as_json:
        print_json(shown.outcome(session.directory, histories[0]))
    else:
        results.print(summary(histories[0], goal))
        shown.tell_files(session.directory)


def _execute(sessions: dict[str, durable.Session], again: str) -> None:
    """Run sessions one after another under one progress display; `again` is how to continue."""
    totals = {label: session.total_rounds for label, session in sessions.items()}
    with suppress(KeyboardInterrupt), Progress(totals, people) as progress:
        for label, session in sessions.items():
            if session.finished:
                continue
            with stopping(session.stop):
                for event in session:
                    progress.update(label, event)
            if not session.finished:
                break
    if not all(session.finished for session in sessions.values()):
        people.print(f"stopped; nothing is lost. Continue with: {escape(again)}", soft_wrap=True)
        raise typer.Exit(130)


def execute_many(runs: dict[str, queue.QueuedRun], jobs: int | None, again: str) -> None:
    """Run many side by side under one progress display; `again` is how to continue."""
    at_once = min(jobs or threads.cores(), len(runs))
    if at_once == 1:  # then each may have all cores
        one = {
            n: durable.start_or_resume(j.experiment, j.directory, j.notes) for n, j in runs.items()
        }
        _execute(one, again)
        return
    runs = {
        label: replace(j, experiment=queue.on_one_core(j.experiment)) for label, j in runs.items()
    }
    many = queue.Many(runs, at_once)
    display = Progress(dict.fromkeys(runs, 0), people)
    with suppress(KeyboardInterrupt), display as progress, stopping(many.stop):
        for news in many:
            if isinstance(news, queue.Planned):
                progress.expect(news.label, news.rounds)
            else:
                progress.update(news.label, news.event)
    if many.unfinished:
        people.print(f"stopped; nothing is lost. Continue with: {escape(again)}", soft_wrap=True)
        raise typer.Exit(130)
