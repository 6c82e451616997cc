"""Commands that run experiments: one, several schemes, a whole grid."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sdfeel.cli.common import (
    AcceptChanges,
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
    stopping,
)
from sdfeel.cli.lazy import later
from sdfeel.core.errors import InputError, RunError
from sdfeel.core.run_files import EXPERIMENT, PAGE, PICTURE
from sdfeel.report.progress import Progress
from sdfeel.report.tables import shares
from sdfeel.run import store
from sdfeel.schemes import SCHEMES

with later():
    from sdfeel import api, commands, show_runs
    from sdfeel.cli import show as shown
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
    if (directory / EXPERIMENT).exists():
        store.create(directory)  # says that a run is there already
    session = api.Run(chosen, out=directory).session
    _finish_one(session, as_json)
    if profile:
        people.print(shares(session.profile()))


def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a stopped or killed run.")],
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run that was stopped or killed; it ends as if nothing had happened.

    If its data or your own code have changed since it began, the command refuses, and names them.

    Example:

      sdfeel resume runs/sd-feel-20260101-120000
    """
    _finish_one(api.resume(directory, accept_changes).session, as_json)


def rerun(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.")],
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a run from its own record, and say whether the model is the same.

    Example:

      sdfeel rerun runs/sd-feel-20260101-120000 --out runs/again
    """
    if not (directory / EXPERIMENT).is_file():
        raise RunError(f"{directory} is not a run: it has no {EXPERIMENT}")
    where = out if out is not None else fresh_directory(f"{directory.resolve().name}-again")
    _finish_one(api.rerun(directory, where).session, as_json)
    then, now = durable.finished(directory), durable.finished(where)
    if then is not None and now is not None:
        same = then.model_sha256 == now.model_sha256
        people.print(f"the model is {'the same, bit for bit' if same else 'a different one'}")


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
    accept_changes: AcceptChanges = False,
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
    base = loading.load(experiment, settings or ())
    directory = out if out is not None else fresh_directory("compare")
    runs = commands.compare(
        names, base, seeds=seeds, out=directory, jobs=jobs, accept_changes=accept_changes
    )
    _finish_many(runs, _again(out, directory))
    found = runs.show(target)
    if as_json:
        print_json(
            {
                "directory": str(directory),
                "target": found.target,
                "runs": found.records,
                "picture": str(directory / PICTURE),
                "report": str(directory / PAGE),
            }
        )
    else:
        shown.tell(found)


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
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
) -> None:
    """Run every combination of values on all cores, and average over seeds.

    If you call it again with the same --out, it keeps what is finished and continues with the rest.

    Examples:

      sdfeel sweep scheme.tau1=1,3,20 network.graph=ring,complete seed=0..2 --out runs/sweep

      sdfeel sweep scheme.alpha=1,2,5 -s scheme.tau2=5 -s training.iterations=200
    """
    check_target(target)
    base = loading.load(experiment, settings or ())
    directory = out if out is not None else fresh_directory("sweep")
    grid = grids.text_axes(axes)
    runs = commands.sweep(grid, base, out=directory, jobs=jobs, accept_changes=accept_changes)
    _finish_many(runs, _again(out, directory))
    found = runs.show(target)
    if as_json:
        records = found.records
        print_json({"directory": str(directory), "target": found.target, "runs": records})
    else:
        shown.tell(found)


def _again(out: Path | None, directory: Path) -> str:
    """The command that continues what this one began."""
    same = shlex.join(["sdfeel", *sys.argv[1:]])
    return same if out is not None else f"{same} --out {directory}"


def _finish_one(session: durable.Session, as_json: bool) -> None:
    """Run to the end, and report the result."""
    label, directory = session.experiment.scheme.label, session.directory
    progress = Progress({label: session.total_rounds}, people)
    with suppress(KeyboardInterrupt), progress, stopping(session.stop):
        for event in session:
            progress.update(label, event)
    if not session.finished:
        _stopped(f"sdfeel resume {directory}")
    shown.tell(show_runs.show(directory), as_json)


def _finish_many(runs: commands.RunSet, again: str) -> None:
    """Run many side by side under one progress display; `again` is how to continue."""
    display = Progress(dict.fromkeys(runs.experiments, 0), people)
    with suppress(KeyboardInterrupt), display as progress, stopping(runs.stop):
        for news in runs.news():
            if isinstance(news, queue.Planned):
                progress.expect(news.label, news.rounds)
            else:
                progress.update(news.label, news.event)
    if runs.unfinished:
        _stopped(again)


def _stopped(again: str) -> None:
    people.print(f"stopped; nothing is lost. Continue with: {escape(again)}", soft_wrap=True)
    raise typer.Exit(130)
