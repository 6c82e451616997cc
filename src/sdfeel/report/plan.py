"""A plan for people: a table, sentences that give the reasons, and a picture."""

import json
from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from sdfeel.core.run_files import write_atomic
from sdfeel.experiment.loading import template
from sdfeel.experiment.schema import Experiment
from sdfeel.planning.candidates import AXES, SCHEMES
from sdfeel.planning.result import Plan, PlanRow
from sdfeel.report import drawing
from sdfeel.report.drawing import FAINT, INK, LABEL, TITLE, new_figure, tidy
from sdfeel.report.styles import PALETTE, line_style
from sdfeel.report.units import TIMES, count, duration, goal, number, percent, unit_for

LINES = 12  # candidates in the table
RECORD, PICTURE, BEST = "plan.json", "plan.png", "best.toml"
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
        text += "; (accuracy): stopped there, behind"
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
            f"This rests on {' and '.join(plan.assumed)}, which nobody has given: if your links "
            f"differ, say so and plan again."
        )
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
        longer = plan.speedup_at_least or 0.0
        times = f", {longer:.1f} times the winner's time" if longer >= 1 else ""
        return (
            f"As given, the goal was not reached in the {duration(given.pilot_seconds)} for which "
            f"it was simulated{times}."
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


CURVES = 5  # pilot runs drawn beside the winner's
WIDE = 4  # if the slowest run lasts this many times the winner's, the time axis is logarithmic


def picture(plan: Plan) -> Figure:
    """Left: every candidate by its two factors. Right: what pilot runs reached, and when."""
    figure = new_figure(12, 5.2, f"Plan: {aim(plan)}")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    if plan.winner is not None and plan.goal.kind != "budget":
        _trade_off(left, plan)
    else:
        _ranking(left, plan)
    _curves(right, plan)
    return figure


def _trade_off(axes: Axes, plan: Plan) -> None:
    """Iterations against seconds each: along a diagonal, their product is the same."""
    rows = [row for row in plan.rows if not isnan(_needed(row))]
    price = np.array([row.iteration_seconds for row in rows])
    unit = unit_for(float(price.max()), TIMES)
    for scheme in SCHEMES:
        mine = [row for row in rows if row.scheme == scheme]
        colour = _colour(scheme)
        for verified in (False, True):
            some = [row for row in mine if (row.seconds is not None) == verified]
            label = scheme if verified or not any(row.seconds is not None for row in mine) else None
            axes.scatter(
                [row.iteration_seconds / unit.size for row in some],
                [_needed(row) for row in some],
                s=42 if verified else 22,
                facecolors=colour if verified else "none",
                edgecolors=colour,
                linewidths=1.0,
                alpha=1.0 if verified else 0.45,
                label=label if some else None,
                zorder=3,
            )
    best = plan.winner
    assert best is not None
    _mark(axes, best, unit.size, "*", 330, "planned", PALETTE[1])
    if plan.given is not None and not isnan(_needed(plan.given)):
        _mark(axes, plan.given, unit.size, "X", 130, "as given", INK)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _equal_times(axes, unit.size)
    tidy(axes)
    axes.set_xlabel(f"virtual time of one local iteration ({unit.name})", fontsize=LABEL)
    axes.set_ylabel("local iterations until the goal", fontsize=LABEL)
    axes.set_title("filled: simulated; hollow: predicted", fontsize=TITLE, color=INK)
    axes.legend(fontsize=LABEL, frameon=True, framealpha=0.9, loc="best")


def _colour(scheme: str) -> str:
    """The winner's star has a colour of its own."""
    return [colour for colour in PALETTE if colour != PALETTE[1]][SCHEMES.index(scheme) % 6]


def _needed(row: PlanRow) -> float:
    """Iterations to the goal: measured if it ran that far, otherwise predicted, if possible."""
    found = row.iterations if row.iterations is not None else row.predicted_iterations
    return float(found) if found is not None else nan


def _mark(
    axes: Axes, row: PlanRow, unit: float, marker: str, size: float, name: str, colour: str
) -> None:
    axes.scatter(
        [row.iteration_seconds / unit],
        [_needed(row)],
        s=size,
        marker=marker,
        facecolors=colour,
        edgecolors="white",
        linewidths=1.2,
        label=name,
        zorder=5,
    )


def _equal_times(axes: Axes, unit: float) -> None:
    """Faint diagonals: on each, the product of both is the same."""
    x, y = np.array(axes.get_xlim()), np.array(axes.get_ylim())
    low, high = np.log10(x[0] * y[0] * unit), np.log10(x[1] * y[1] * unit)
    for power in np.arange(np.floor(low), np.ceil(high) + 1):
        total = 10.0**power
        ends = np.geomspace(x[0], x[1], 80)
        values = total / unit / ends
        inside = (values >= y[0]) & (values <= y[1])
        if inside.sum() < 2:
            continue
        axes.plot(ends[inside], values[inside], color=FAINT, linewidth=0.7, linestyle=":", zorder=1)
        at = int(np.flatnonzero(inside)[inside.sum() // 12])
        axes.annotate(
            duration(total), (ends[at], values[at]), fontsize=LABEL - 2, color=FAINT, zorder=1
        )
    axes.set_xlim(*x)
    axes.set_ylim(*y)


def _ranking(axes: Axes, plan: Plan) -> None:
    """Without times to compare: the score of those that ran, or the bound's order."""
    ran = [row for row in plan.rows if row.score is not None][:12]
    rows = ran or list(plan.rows[:12])
    names = [f"{row.scheme} {setting(row)} rate={row.learning_rate:g}" for row in rows]
    values = [
        abs(row.score) if row.score is not None else row.bound_seconds / rows[0].bound_seconds
        for row in rows
    ]
    positions = np.arange(len(rows))
    axes.barh(positions, values, color=PALETTE[0])
    axes.set_yticks(positions, names, fontsize=LABEL - 1)
    axes.invert_yaxis()
    tidy(axes)
    score = "accuracy" if rows and (rows[0].score or 0) >= 0 else "loss"
    axes.set_xlabel(score if ran else "the bound's time over the best one's", fontsize=LABEL)


def _curves(axes: Axes, plan: Plan) -> None:
    """Score over virtual time: the winner, a few others, and the experiment as given."""
    ran = [row for row in plan.rows if row.points][: CURVES + 1]
    shown: Sequence[PlanRow] = [*ran, plan.given] if plan.given and plan.given.points else ran
    if not shown:
        axes.set_axis_off()
        return
    most = max(point.seconds for row in shown for point in row.points)
    unit = unit_for(most, TIMES)
    for index, row in enumerate(shown):
        given = row is plan.given
        style = line_style(index) | ({"color": INK, "linestyle": "-"} if given else {})
        axes.plot(
            [point.seconds / unit.size for point in row.points],
            [abs(plan.goal.score(point)) for point in row.points],
            markevery=max(1, len(row.points) // 8),
            label="as given"
            if given
            else f"{row.scheme} {setting(row)} rate={row.learning_rate:g}",
            **style,
        )
    if most > WIDE * shown[0].points[-1].seconds:  # else the fast ones are one steep line
        axes.set_xscale("log")
    if plan.goal.kind != "budget":
        axes.axhline(plan.goal.value, color=FAINT, linestyle="--", linewidth=1, zorder=1)
    loss = plan.goal.kind == "loss" or shown[0].points[0].accuracy is None
    tidy(axes)
    axes.set_xlabel(f"virtual time ({unit.name})", fontsize=LABEL)
    axes.set_ylabel("training loss" if loss else "test accuracy", fontsize=LABEL)
    axes.set_title("pilot runs", fontsize=TITLE, color=INK)
    axes.legend(fontsize=LABEL - 1.5, frameon=False, loc="best")


def keep_plan(found: Plan, best: Experiment | None, directory: Path) -> dict[str, str]:
    """Write a plan's record, its picture and the best experiment; return their paths."""
    files = {"record": directory / RECORD, "picture": directory / PICTURE}
    write_atomic(files["record"], (json.dumps(found.record(points=True), indent=1) + "\n").encode())
    drawing.save(picture(found), files["picture"])
    if best is not None:
        files["experiment"] = directory / BEST
        write_atomic(files["experiment"], template(best).encode())
    return {name: str(path) for name, path in files.items()}
