"""A plan for people: the ranked table, and why the winner wins. No matplotlib here."""

from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from sdfeel.planning.candidates import AXES
from sdfeel.planning.result import Plan, PlanRow
from sdfeel.report.units import count, duration, goal, number, percent

LINES = 12  # candidates in the table
PARTS = {"compute": "computing", "upload": "clients' uploads", "mix": "mixing between servers"}


def setting(row: PlanRow) -> str:
    """The chosen options in a few words."""
    return " ".join(f"{key}={row.options[key]}" for key in AXES if key in row.options)


def aim(plan: Plan) -> str:
    """What the plan aims at."""
    value = plan.goal.value
    if plan.goal.kind == "accuracy":
        return f"{goal(value)} accuracy as soon as possible"
    if plan.goal.kind == "loss":
        return f"a training loss of {number(value)} as soon as possible"
    return f"the best model within {duration(value)}" if value < 1e300 else "a ranking alone"


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
    """Scheme, tau1, tau2 and alpha; asynchronous clients take at least so many steps."""
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
        text += "; (accuracy): stopped there, behind"
    return text if plan.finished else f"{text}; stopped early"


def reasons(plan: Plan) -> Iterator[str]:
    """Why the winner wins, in sentences."""
    best, given = plan.winner, plan.given
    if best is None:
        yield _nothing(plan)
        return
    yield (f"{best.label}: an iteration takes {duration(best.iteration_seconds)}, {_spent(best)}.")
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


def _compared(plan: Plan, best: PlanRow, given: PlanRow) -> str:
    if given.seconds is None or given.iterations is None or best.iterations is None:
        return (
            f"As given, the goal was not reached in {duration(given.pilot_seconds)}, "
            f"{plan.speedup_at_least:.1f} times the winner's time."
        )
    needs = best.iterations / given.iterations
    cheap = given.iteration_seconds / best.iteration_seconds
    more = f"{needs:.1f} times as many" if needs >= 1 else f"{1 / needs:.1f} times fewer"
    price = f"{cheap:.1f} times cheaper" if cheap >= 1 else f"{1 / cheap:.1f} times dearer"
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
