"""Commands that run experiments, and those that look at runs."""

import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from sdfeel.core.run_files import EVENTS, EXPERIMENT, PAGE, PICTURE

if TYPE_CHECKING:
    from sdfeel.report.history import History
    from sdfeel.run.many import QueuedRun
    from sdfeel.run.session import Session

COMPARED = "sd-feel,hierfavg,fedavg,feel"


def run(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    out: Out = None,
    profile: Annotated[
        bool, typer.Option(help="Show where the real time of the run went.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run one experiment.

    Examples:

      sdfeel run

      sdfeel run --set scheme.name=hierfavg --set scheme.tau2=2 --out runs/hier

      sdfeel run my.toml --set training.learning_rate=0.1 --set seed=3 --json
    """
    from sdfeel.experiment.schema import load
    from sdfeel.report.tables import shares
    from sdfeel.run.session import start

    chosen = load(experiment, settings or ())
    directory = out if out is not None else fresh_directory(chosen.scheme.name)
    session = start(chosen, directory)
    _finish_one(session, as_json)
    if profile:
        people.print(shares(session.profile()))


def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a stopped or killed run.")],
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped or killed; it ends as if nothing had happened.

    Example:

      sdfeel resume runs/sd-feel-20260101-120000
    """
    from sdfeel.run.session import resume as reopen

    _finish_one(reopen(directory), as_json)


def compare(
    experiment: ExperimentFile = None,
    schemes: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="The schemes to race.")
    ] = COMPARED,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs per scheme, with seeds counted up; means are shown.")
    ] = 1,
    settings: Settings = None,
    out: Out = None,
    target: Target = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Race schemes on the same data, seed and latency model: the main job.

    Writes a run per scheme, a picture and a report that opens without a network. Called again
    with the same --out, it keeps what is finished and goes on with the rest.

    Examples:

      sdfeel compare

      sdfeel compare --schemes sd-feel,hierfavg --set network.graph=complete --out runs/race

      sdfeel compare --seeds 3 --set network.servers=5

      sdfeel compare my.toml --target 0.9 --json
    """
    from sdfeel.core.errors import InputError, RunError
    from sdfeel.experiment.schema import checked, load
    from sdfeel.report.tables import comparison, comparison_records
    from sdfeel.run.many import QueuedRun
    from sdfeel.schemes import find

    check_target(target)
    names = list(dict.fromkeys(name.strip() for name in schemes.split(",") if name.strip()))
    if not names:
        raise InputError(f"--schemes '{schemes}' names no scheme: see `sdfeel schemes`")
    for name in names:
        find(name)
    base = load(experiment, settings or ())
    directory = out if out is not None else fresh_directory("compare")
    if (directory / EXPERIMENT).exists():
        raise RunError(f"{directory} is a single run: choose another directory with --out")
    runs: dict[str, QueuedRun] = {}
    members: dict[str, list[Path]] = {name: [] for name in names}
    for name in names:
        for seed in range(base.seed, base.seed + seeds):
            values = base.model_dump()
            values["seed"], values["scheme"]["name"] = seed, name
            label = name if seeds == 1 else f"{name}-seed{seed}"
            # Keys of other schemes are expected here: notes about them would only disturb.
            runs[label] = QueuedRun(checked(values), directory / label, notes=False)
            members[name].append(directory / label)
    again = shlex.join(["sdfeel", *sys.argv[1:]])
    execute_many(runs, jobs, again if out is not None else f"{again} --out {directory}")
    histories = [merged(name, members[name]) for name in names]
    goal = choose_target(histories, target)
    text = base.text()
    _write_report(directory, "Schemes compared", histories, goal, text)
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
        tell_files(directory)


def show(
    directory: Annotated[Path, typer.Argument(help="A run, or a directory of runs.")],
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Show a run, or several side by side, again from their logs: table, picture and page.

    Examples:

      sdfeel show runs/compare-20260101-120000

      sdfeel show runs/compare-20260101-120000/sd-feel --json
    """
    from sdfeel.core.errors import RunError
    from sdfeel.report.tables import comparison, comparison_records, summary

    check_target(target)
    single = (directory / EVENTS).is_file()
    found = [directory] if single else sorted(p.parent for p in directory.glob(f"*/{EVENTS}"))
    if not found:
        raise RunError(f"{directory} holds no runs: give a directory that `sdfeel run` wrote")
    histories = _histories(found)
    goal = choose_target(histories, target)
    known = found[0] / EXPERIMENT
    text = known.read_text(encoding="utf-8", errors="replace") if known.exists() else ""
    _write_report(directory, "A run" if single else "Runs compared", histories, goal, text)
    if as_json:
        print_json(
            _outcome(directory, histories[0])
            if single
            else {"target": goal, "runs": comparison_records(histories, goal)}
        )
        return
    results.print(summary(histories[0], goal) if single else comparison(histories, goal))
    tell_files(directory)


def _finish_one(session: "Session", as_json: bool) -> None:
    """Run one session to its end, and tell what came out."""
    from sdfeel.report.tables import summary

    _execute({session.experiment.scheme.name: session}, f"sdfeel resume {session.directory}")
    histories = _histories([session.directory])
    goal = choose_target(histories, None)
    _write_report(session.directory, "A run", histories, goal, session.experiment.text())
    if as_json:
        print_json(_outcome(session.directory, histories[0]))
    else:
        results.print(summary(histories[0], goal))
        tell_files(session.directory)


def _execute(sessions: "dict[str, Session]", again: str) -> None:
    """Run sessions one after another under one progress display; `again` says how to go on."""
    from sdfeel.report.progress import Progress

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
        people.print(f"stopped; nothing is lost. Go on with: {escape(again)}", soft_wrap=True)
        raise typer.Exit(130)


def execute_many(runs: "dict[str, QueuedRun]", jobs: int | None, again: str) -> None:
    """Run many side by side under one progress display; `again` says how to go on."""
    from sdfeel.engine.threads import cores
    from sdfeel.report.progress import Progress
    from sdfeel.run.many import Many, Planned, on_one_core
    from sdfeel.run.session import start_or_resume

    at_once = min(jobs or cores(), len(runs))
    if at_once == 1:  # then each may have all cores
        one = {n: start_or_resume(j.experiment, j.directory, j.notes) for n, j in runs.items()}
        _execute(one, again)
        return
    runs = {label: replace(j, experiment=on_one_core(j.experiment)) for label, j in runs.items()}
    many = Many(runs, at_once)
    display = Progress(dict.fromkeys(runs, 0), people)
    with suppress(KeyboardInterrupt), display as progress, stopping(many.stop):
        for news in many:
            if isinstance(news, Planned):
                progress.expect(news.label, news.rounds)
            else:
                progress.update(news.label, news.event)
    if many.unfinished:
        people.print(f"stopped; nothing is lost. Go on with: {escape(again)}", soft_wrap=True)
        raise typer.Exit(130)


def merged(label: str, directories: list[Path]) -> "History":
    from sdfeel.report.history import History

    members = _histories(directories)
    if len(members) == 1:
        return History.of(label, members[0].events)
    return History.mean(label, members)


def _histories(directories: Iterable[Path]) -> "list[History]":
    from sdfeel.report.history import History
    from sdfeel.run import store

    return [History.of(path.name, store.read_events(path)) for path in directories]


def choose_target(histories: "list[History]", target: float | None) -> float | None:
    from sdfeel.report.history import default_target

    return target if target is not None else default_target(histories)


def _write_report(
    directory: Path, title: str, histories: "list[History]", target: float | None, text: str
) -> None:
    from sdfeel.report.charts import curves, save
    from sdfeel.report.page import page, write_page

    try:
        save(curves(histories, target), directory / PICTURE)
        write_page(directory / PAGE, page(title, histories, target, text))
    except OSError as error:  # looking at a run must work where nothing can be written
        people.print(f"note: no picture and no page: {error.strerror}: {error.filename}")


def tell_files(directory: Path) -> None:
    for name, file in (("picture", PICTURE), ("report", PAGE)):
        if (directory / file).exists():
            results.print(f"{name}: {escape(str(directory / file))}", soft_wrap=True)


def _outcome(directory: Path, history: "History") -> dict[str, Any]:
    """A run for machines."""
    last, end = history.last, history.end
    return {
        "run": str(directory),
        "scheme": history.scheme,
        "state": "finished" if history.finished is not None else "unfinished",
        "reason": history.finished.reason if history.finished is not None else None,
        "seed": history.started.seed if history.started is not None else None,
        "zeta": history.started.zeta if history.started is not None else None,
        "engine": history.started.engine if history.started is not None else None,
        "iterations": end.iterations if end is not None else 0,
        "rounds": end.number if end is not None else 0,
        "virtual_seconds": end.seconds if end is not None else 0.0,
        "bytes": end.bytes if end is not None else 0,
        "joules": end.joules if end is not None else 0.0,
        "accuracy": last.accuracy if last is not None else None,
        "loss": last.loss if last is not None else None,
        "test_loss": last.test_loss if last is not None else None,
        "spread": last.spread if last is not None else None,
        "metrics": last.metrics if last is not None else {},
        "model_sha256": history.finished.model_sha256 if history.finished is not None else None,
        "warnings": history.warnings,
    }
