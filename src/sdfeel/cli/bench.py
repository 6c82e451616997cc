"""Commands that time and measure."""

from __future__ import annotations

import dataclasses
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from sdfeel.cli.bench_engines import engines
from sdfeel.cli.bench_guards import guards, masks
from sdfeel.cli.common import (
    AsJson,
    ExperimentFile,
    Jobs,
    Out,
    Settings,
    fresh_directory,
    people,
    print_end,
    print_json,
    print_part,
    results,
)
from sdfeel.cli.lazy import later
from sdfeel.core.errors import InputError, unknown
from sdfeel.report.units import count, duration, joules

with later():
    from sdfeel.bench import deployment, planning, planning_on_networks, scale
    from sdfeel.bench import energy as joules_measured
    from sdfeel.engine import base as engine
    from sdfeel.experiment import loading


bench = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


bench.callback()(engines)


@bench.command("scale")
def scale_(
    clients: Annotated[
        str, typer.Option(metavar="N,...", help="Numbers of clients, with 100 servers.")
    ] = "1000,10000,100000",
    servers: Annotated[
        str, typer.Option(metavar="N,...", help="Numbers of servers, with 10 clients each.")
    ] = "10,100,1000,10000",
    rounds: Annotated[
        str, typer.Option(metavar="N,...", help="Numbers of rounds, with 1,000 clients.")
    ] = "3,30,300",
    as_json: AsJson = False,
) -> None:
    """Measure how time and memory grow with clients, servers and rounds.

    The model is logistic, with 64 inputs; every client takes one step in a round, and the servers
    form a ring. Asynchronous networks run for 200 events. Seconds are CPU seconds of all cores.
    Each line is measured in a process of its own, and printed as soon as it is done.

    Examples:

      sdfeel bench scale

      sdfeel bench scale --clients 1000,10000 --servers 10,100 --rounds 3 --json
    """
    points = [
        *(scale.Point(n, min(n, 100), 3) for n in _numbers("--clients", clients)),
        *(scale.Point(10 * n, n, 3) for n in _numbers("--servers", servers)),
        *(scale.Point(1000, 10, n) for n in _numbers("--rounds", rounds)),
        *(scale.Point(2 * n, n, 200, "async-sd-feel") for n in _numbers("--servers", servers)),
    ]
    titles = ("scheme", "clients", "servers", "rounds", "prepare, s", "a round, ms", "MB")
    widths = (13, 9, 7, 6, 10, 11, 5)
    if not as_json:
        results.print("  ".join(f"{t:>{w}}" for t, w in zip(titles, widths, strict=True)))
    for n, point in enumerate(points):
        with people.status(f"{point.scheme}, {point.clients} clients, {point.servers} servers"):
            found = scale.measured(point)
        if as_json:
            print_part(dataclasses.asdict(found), n == 0)
            continue
        row = (
            found.scheme,
            f"{found.clients:,}",
            f"{found.servers:,}",
            f"{found.rounds}",
            f"{found.prepare:.2f}",
            f"{1000 * found.round:,.1f}",
            f"{found.megabytes:.0f}",
        )
        results.print("  ".join(f"{t:>{w}}" for t, w in zip(row, widths, strict=True)))
    if as_json:
        print_end()


def _numbers(option: str, text: str) -> list[int]:
    """Whole numbers of at least 1, separated by commas."""
    found = [each.strip() for each in text.split(",") if each.strip()]
    for each in found:
        if not each.isdecimal() or int(each) < 1:
            raise InputError(f"{option} must be whole numbers of at least 1, got '{each}'")
    return [int(each) for each in found]


@bench.command()
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
    names = [n.strip() for n in situations.split(",") if n.strip()] or list(planning.SITUATIONS)
    for name in names:
        if name not in planning.SITUATIONS:
            raise unknown("situation", name, planning.SITUATIONS)
    directory = out if out is not None else fresh_directory("bench-plan")
    if online:
        lines = [
            line
            for name in names
            for line in planning.online(name, _grid(name, directory, seed, jobs), seed)
        ]
        if as_json:
            print_json([_plan_record(each) for each in lines])
        else:
            results.print(_online_table(lines))
        return
    found = []
    for name in names:
        with people.status(f"{name}: planning"):
            answer = planning.plan(name, seed)
        found.append(planning.verdict(name, answer, _grid(name, directory, seed, jobs)))
    if as_json:
        print_json([{**_plan_record(each), "compute": each.compute} for each in found])
    else:
        results.print(_plan_table(found))


def _grid(name: str, directory: Path, seed: int, jobs: int | None) -> list[planning.Tried]:
    """Run every candidate of a situation, and show progress."""
    tried = []
    with people.status(f"{name}: the grid") as status:
        for each in planning.grid(name, directory, seed, jobs):
            tried.append(each)
            status.update(f"{name}: the grid, {len(tried)} done")
    return tried


def _plan_record(line: planning.SituationResult | planning.Online) -> dict[str, object]:
    return {**dataclasses.asdict(line), "behind": line.behind, "speedup": line.speedup}


def _plan_table(verdicts: list[planning.SituationResult]) -> Table:
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
            _judged(f"{100 * (each.behind - 1):.0f} %", each.behind <= planning.NEAR),
            duration(each.default_seconds),
            _judged(f"{each.speedup:.1f} x", each.speedup >= planning.FASTER),
            _judged(f"{100 * each.compute:.1f} %", each.compute <= planning.CHEAP),
        )
    near = sum(each.behind <= planning.NEAR for each in verdicts)
    faster = sum(each.speedup >= planning.FASTER for each in verdicts)
    cheap = sum(each.compute <= planning.CHEAP for each in verdicts)
    table.caption = (
        f"of {len(verdicts)}: {near} within 15 % of the best, {faster} at least 1.5 x faster than "
        f"the default, {cheap} at a tenth of the compute or less; ! marks a missed goal"
    )
    table.caption_justify = "left"
    return table


def _online_table(lines: list[planning.Online]) -> Table:
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


@bench.command()
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
        print_json({"load": before, "cores": engine.cores(), "lines": [*map(_goal_record, found)]})
    else:
        results.print(_goal_table(found, before))


def _goal_record(line: deployment.MeasuredGoal) -> dict[str, object]:
    return dataclasses.asdict(line)


def _goal_table(lines: list[deployment.MeasuredGoal], load: float) -> Table:
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
        f"{met} of {len(lines)} met; {engine.cores()} cores, load average {load:.1f} beforehand"
    )
    table.caption_justify = "left"
    return table


@bench.command()
def networks(
    count: Annotated[int, typer.Option(min=1, help="Networks of the Topology Zoo to try.")] = 30,
    effort: Annotated[
        float, typer.Option(min=0.1, help="What planning may cost, in whole runs.")
    ] = 16.0,
    online: Annotated[
        bool,
        typer.Option("--online", help="Compare periods that are chosen during training instead."),
    ] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare the planner's choice with every candidate on real networks: takes hours.

    Links have their real lengths; rates, devices and data are drawn, with a network's name as the
    seed. With the same --out, finished networks are kept. With --online, the scheme `adaptive` is
    compared with all fixed periods of sd-feel instead, in seconds per network. Needs
    sdfeel[networks].

    Examples:

      sdfeel bench networks --out runs/zoo

      sdfeel bench networks --online --count 10
    """
    if online:
        with people.status(f"{count} networks"):
            names = planning_on_networks.networks(count)
            lines = [planning_on_networks.online(name) for name in names]
        if as_json:
            print_json([_plan_record(each) for each in lines])
        else:
            results.print(_online_table(lines))
        return
    directory = out if out is not None else fresh_directory("bench-networks")
    with people.status(f"{count} networks"):
        found = list(planning_on_networks.all_compared(count, directory, effort))
    if as_json:
        print_json([{**dataclasses.asdict(each), "behind": each.behind} for each in found])
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("network", "servers", "planned", "time", "best of the grid", "time", "behind"):
        table.add_column(name, overflow="fold")
    for each in found:
        table.add_row(
            each.network.rpartition("/")[2],
            str(each.servers),
            each.choice or "-",
            duration(each.seconds),
            each.best or "-",
            duration(each.best_seconds),
            _judged(f"{100 * (each.behind - 1):.0f} %", each.behind <= planning_on_networks.NEAR),
        )
    near = sum(each.behind <= planning_on_networks.NEAR for each in found)
    steps, whole = (sum(getattr(each, key) for each in found) for key in ("steps", "whole"))
    table.caption = (
        f"within 5 %: {near} of {len(found)} (goal: 90 %); planning cost {100 * steps / whole:.1f} "
        f"% of all candidates' iterations (goal: 10 %)"
    )
    results.print(table)


@bench.command()
def energy(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to train, and to idle.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Compare the energy of a local step in the power model with what the processor has counted.

    Most x86 machines have such counters (RAPL), often for root only; virtual machines seldom have.
    They count the whole processor, so let nothing else run. Without them, only the modelled energy
    is shown.

    Example:

      sudo sdfeel bench energy my.toml --seconds 30
    """
    base = loading.load(experiment, settings or ())
    meter = joules_measured.Meter.found()
    with people.status("idling and training"):
        found = joules_measured.measured(base, seconds, meter)
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    results.print(f"a step, modelled: {joules(found.modelled)} (devices.computing_watts)")
    if found.measured is None:
        results.print(f"a step, measured: unknown, because {found.reason}", soft_wrap=True)
        return
    results.print(
        f"a step, measured here: {joules(found.measured)} beyond idling "
        f"({found.idle_watts:.1f} W idle, {found.busy_watts:.1f} W training, "
        f"{count(found.steps)} steps in {found.seconds:.1f} s)",
        soft_wrap=True,
    )


bench.command()(masks)
bench.command()(guards)


_WORDS = {True: "yes", False: "no", None: "-"}
