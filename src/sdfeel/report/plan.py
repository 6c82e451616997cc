"""A plan as people read it: a table, the reasons in sentences, and its files."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter
from rich import box
from rich.table import Table
from rich.text import Text

from sdfeel.core.errors import InputError
from sdfeel.core.run_files import write_atomic
from sdfeel.experiment.loading import template
from sdfeel.experiment.schema import Experiment
from sdfeel.planning.result import Plan, PlanRow
from sdfeel.report import drawing
from sdfeel.report.plan_pictures import aim, network_picture, plan_picture
from sdfeel.report.units import count, duration, number, percent

LINES = 12  # candidates in the table
RECORD, PICTURE, BEST, NETWORK = "plan.json", "plan.png", "best.toml", "network.png"
PARTS = {"compute": "computing", "upload": "clients' uploads", "mix": "mixing between servers"}


def table(plan: Plan, lines: int = LINES) -> Table:
    """Candidates, best first, and the given experiment."""
    shown = _shown(plan, lines)
    graphs = len({row.graph for row in shown}) > 1
    budget = plan.goal.kind == "budget"
    found = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,  # one space between columns, so that it fits an 80-column terminal
        title=Text(f"Plan: {aim(plan)}", style="bold"),
        title_justify="left",
        caption=_caption(plan),
        caption_justify="left",
    )
    found.add_column("", no_wrap=True)
    found.add_column("scheme", overflow="fold", min_width=13)
    for name in ("tau1", "tau2", "alpha"):
        found.add_column(name, justify="right", no_wrap=True)
    if graphs:
        found.add_column("graph", no_wrap=True)
    names = ("rate", "predicted", "reached" if budget else "verified", "one\niteration")
    for name in (*names, "comp/up/\nmix %"):
        found.add_column(name, justify="right", no_wrap=True, vertical="top")
    for rank, row in enumerate(shown, start=1):
        given = row is plan.given
        if given:
            found.add_section()
        cells = ["given" if given else str(rank), *_choice(row)]
        cells += [row.graph] if graphs else []
        cells += [
            f"{row.learning_rate:g}",
            duration(row.predicted_seconds),
            _outcome(row, budget),
            duration(row.iteration_seconds),
            "/".join(f"{100 * row.shares[part]:.0f}" for part in PARTS),
        ]
        best = rank == 1 and plan.winner is not None
        found.add_row(*(Text(cell) for cell in cells), style="bold green" if best else None)
    return found


def _choice(row: PlanRow) -> list[str]:
    """Scheme, tau1, tau2 and alpha; asynchronous clients take at least this many steps."""
    options = row.options
    psi = f" psi={options['psi']}" if "psi" in options else ""
    tau1 = f"≥{options['theta_min']}" if "theta_min" in options else str(options.get("tau1", "-"))
    return [row.scheme + psi, tau1, str(options.get("tau2", "-")), str(options.get("alpha", "-"))]


def _shown(plan: Plan, lines: int) -> list[PlanRow]:
    rows = list(plan.rows[:lines])
    return [*rows, plan.given] if plan.given is not None else rows


def _outcome(row: PlanRow, budget: bool) -> str:
    if not row.ran:
        return "-"
    if budget or row.seconds is None:
        score = (
            percent(row.score) if row.score is not None and row.score >= 0 else number(row.score)
        )
        return score if budget else f"({score})"
    return duration(row.seconds)


def _caption(plan: Plan) -> str:
    ran = sum(row.ran for row in plan.rows)
    cost = plan.steps / plan.run_steps
    text = (
        f"{ran} of {plan.candidates} candidates simulated, for the price of {cost:.1f} whole runs; "
        f"times are virtual"
    )
    if any(row.ran and row.seconds is None for row in plan.rows) and plan.goal.kind != "budget":
        text += "; (accuracy): stopped there because it was behind"
    return text if plan.finished else f"{text}; stopped early"


def reasons(plan: Plan) -> Iterator[str]:
    """Why the winner wins, in sentences."""
    best, given = plan.winner, plan.given
    for sentence in plan.short:
        yield f"{sentence[0].upper()}{sentence[1:]}."
    if best is None:
        if not plan.short:
            yield _nothing(plan)
        return
    yield (f"{best.label}: an iteration takes {duration(best.iteration_seconds)}, {_spent(best)}.")
    if plan.assumed:
        yield (
            f"This assumes {' and '.join(plan.assumed)}, which you have not given: if your links "
            f"differ, give their values and plan again."
        )
    if plan.improvements:
        yield _improved(plan)
    if given is None or not given.ran:
        return
    if given.label == best.label:
        yield "The experiment as given is already the best that was found."
        return
    yield (
        f"As given ({given.label}), it takes {duration(given.iteration_seconds)}, {_spent(given)}."
    )
    if plan.goal.kind == "budget":
        return
    yield _compared(plan, best, given)


def _improved(plan: Plan) -> str:
    """What to improve first, and what it would gain."""
    first = plan.improvements[0]
    told = f"Improve first: {first.what}; an improvement by a factor of two would save "
    told += f"{percent(first.gain)} of an iteration's time"
    rest = [each for each in plan.improvements[1:] if each.servers][:2]
    if not first.servers and rest:
        told += "; among single links and devices: " + " and ".join(
            f"{each.what} ({percent(each.gain)})" for each in rest
        )
    return told + "."


def _compared(plan: Plan, best: PlanRow, given: PlanRow) -> str:
    if given.seconds is None or given.iterations is None or best.iterations is None:
        longer = plan.speedup_at_least or 0.0
        times = f", {longer:.1f} times the winner's time" if longer >= 1 else ""
        return (
            f"As given, the goal was not reached in the {duration(given.pilot_seconds)} for which "
            f"it was simulated{times}."
        )
    needs = best.iterations / given.iterations
    cheap = given.iteration_seconds / best.iteration_seconds
    more = f"{needs:.1f} times as many" if needs >= 1 else f"{1 / needs:.1f} times fewer"
    price = f"{cheap:.1f} times cheaper" if cheap >= 1 else f"{1 / cheap:.1f} times more expensive"
    return (
        f"The winner needs {count(best.iterations)} iterations instead of "
        f"{count(given.iterations)} ({more}), and each is {price}: "
        f"{duration(best.seconds)} instead of {duration(given.seconds)}, "
        f"{plan.speedup:.1f} times sooner."
    )


def _spent(row: PlanRow) -> str:
    parts = sorted(row.shares.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{percent(share)} of it {PARTS[name]}" for name, share in parts if share > 5e-4
    )


def _nothing(plan: Plan) -> str:
    best = max((row.score for row in plan.rows if row.score is not None), default=None)
    if best is None:
        return "Nothing was simulated: the order is the bound's, which is only good for ranking."
    got = percent(best) if best >= 0 else f"a loss of {number(-best)}"
    return (
        f"No candidate reached the goal; the best reached {got}. Aim lower, or raise "
        f"training.iterations or --effort."
    )


def keep_plan(found: Plan, best: Experiment | None, directory: Path) -> dict[str, str]:
    """Write a plan's record, its picture and the best experiment; return their paths."""
    files = {"record": directory / RECORD, "picture": directory / PICTURE}
    write_atomic(files["record"], (json.dumps(found.record(points=True), indent=1) + "\n").encode())
    drawing.save(plan_picture(found), files["picture"])
    if found.site is not None and found.site.servers > 1:
        files["network"] = directory / NETWORK
        drawing.save(network_picture(found), files["network"])
    if best is not None:
        files["experiment"] = directory / BEST
        write_atomic(files["experiment"], template(best).encode())
    return {name: str(path) for name, path in files.items()}


def read_plan(directory: Path) -> Plan:
    """A plan from its record."""
    try:
        found: Plan = TypeAdapter(Plan).validate_json((directory / RECORD).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{directory / RECORD} is not the record of a plan: {error}") from None
    return found
