"""The pictures of a plan: what candidates need, what pilot runs reached, and the network."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, isnan, nan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.network import clustered
from sdfeel.planning.candidates import AXES, SCHEMES
from sdfeel.planning.result import Improvement, Plan, PlanRow, Site
from sdfeel.report.drawing import (
    FAINT,
    INK,
    LABEL,
    TICK,
    TITLE,
    inches,
    log_axis,
    new_figure,
    percent_axis,
    tidy,
)
from sdfeel.report.styles import DASHES, MARKERS, PALETTE
from sdfeel.report.topology import layout
from sdfeel.report.units import TIMES, duration, goal, number, percent, unit_for

CURVES = 5  # pilot runs drawn in addition to the winner's
WIDE = 4  # if the slowest run lasts this many times the winner's, the time axis is logarithmic
WINNER = PALETTE[1]  # the star has a colour of its own


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
    return f"the best model within {duration(value)}" if value < 1e300 else "only a ranking"


def plan_picture(plan: Plan, width: str | None = None) -> Figure:
    """Every candidate by its two factors, and what pilot runs reached, and when.

    Legends stand below their panels, so that they never hide a candidate. In a paper's column the
    panels stand below each other.
    """
    wide = inches(width) or 12.0
    stacked = wide < 5
    shape = (2, 1) if stacked else (1, 2)
    ratios = None if stacked else (1.15, 1)
    figure = new_figure(wide, (2 if stacked else 1) * min(6.2, 2.4 + 0.32 * wide))
    figure.suptitle(f"Plan: {aim(plan)}", fontsize=TITLE if wide < 9 else TITLE + 1, color=INK)
    first, second = figure.subplots(*shape, width_ratios=ratios)
    if plan.winner is not None and plan.goal.kind != "budget":
        _trade_off(first, plan)
        _legend_below(first, 2 if wide < 9 else 4)
    else:
        _ranking(first, plan)
    _curves(second, plan)
    _legend_below(second, 1 if wide < 9 else 2)
    return figure


def _legend_below(axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles,
            labels,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.17),
            ncols=columns,
            frameon=False,
            fontsize=TICK,
            labelcolor=INK,
            handlelength=2.6,
            columnspacing=1.2,
        )


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
                zorder=4 if verified else 3,
            )
    best = plan.winner
    assert best is not None
    _mark(axes, best, unit.size, "*", 260, "planned", WINNER)
    if plan.given is not None and not isnan(_needed(plan.given)):
        _mark(axes, plan.given, unit.size, "X", 110, "as given", INK)
    tidy(axes)
    log_axis(axes.xaxis)
    log_axis(axes.yaxis)
    drawn = [row for row in [*rows, plan.given] if row is not None and not isnan(_needed(row))]
    places = [(row.iteration_seconds / unit.size, _needed(row)) for row in drawn]
    _equal_times(axes, unit.size, np.array(places))
    axes.set_xlabel(f"virtual time of one local iteration ({unit.name})", fontsize=LABEL)
    axes.set_ylabel("local iterations until the goal", fontsize=LABEL)
    axes.set_title("filled: simulated; hollow: predicted", fontsize=TITLE, color=INK)


def _colour(scheme: str) -> str:
    others = [colour for colour in PALETTE if colour != WINNER]
    return others[SCHEMES.index(scheme) % len(others)] if scheme in SCHEMES else INK


def _needed(row: PlanRow) -> float:
    """Iterations to the goal: measured if it ran that far, otherwise predicted, if possible.

    Iterations are whole, so a prediction below one counts as one.
    """
    found = row.iterations if row.iterations is not None else row.predicted_iterations
    return max(1.0, float(found)) if found is not None else nan


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


def _equal_times(axes: Axes, unit: float, points: Floats) -> None:
    """Faint diagonals of equal time, the product of both axes; the time is written where there is
    room. `points` is everything that is drawn, in the axes' own values."""
    x, y = np.log10(axes.get_xlim()), np.log10(axes.get_ylim())
    taken = (np.log10(points) - (x[0], y[0])) / (np.ptp(x), np.ptp(y))
    low, high = x[0] + y[0] + np.log10(unit), x[1] + y[1] + np.log10(unit)
    for power in range(ceil(low), int(np.floor(high)) + 1):
        across = np.linspace(x[0], x[1], 200)
        up = power - np.log10(unit) - across
        line = np.stack([(across - x[0]) / np.ptp(x), (up - y[0]) / np.ptp(y)], axis=1)
        line = line[(line[:, 1] >= 0) & (line[:, 1] <= 1)]
        room = line[(line > 0.05).all(axis=1) & (line[:, 0] < 0.86) & (line[:, 1] < 0.93)]
        if len(room) == 0:
            continue
        axes.plot(*line.T, color=FAINT, lw=0.7, linestyle=":", zorder=1, transform=axes.transAxes)
        beside = room + np.array([0.05, 0.02])  # the middle of its letters
        free = np.linalg.norm(beside[:, None] - taken, axis=2).min(axis=1)
        at = room[int(free.argmax())]
        axes.annotate(
            duration(10.0**power),
            (float(at[0]), float(at[1])),
            xycoords="axes fraction",
            xytext=(2, 1),
            textcoords="offset points",
            fontsize=TICK,
            color="#6a6a6a",
            zorder=2,
        )


def _ranking(axes: Axes, plan: Plan) -> None:
    """Without times to compare: the scores of candidates that ran, or else the bound's order."""
    ran = [row for row in plan.rows if row.score is not None][:12]
    rows = ran or list(plan.rows[:12])
    names = [_name(row) for row in rows]
    values = [
        abs(row.score) if row.score is not None else row.bound_seconds / rows[0].bound_seconds
        for row in rows
    ]
    positions = np.arange(len(rows))
    axes.barh(positions, values, color=[_colour(row.scheme) for row in rows])
    axes.set_yticks(positions, names)
    axes.invert_yaxis()
    tidy(axes)
    shares = bool(ran) and (rows[0].score or 0) >= 0
    if shares:
        percent_axis(axes.xaxis)
    score = "test accuracy (%)" if shares else "loss"
    axes.set_xlabel(score if ran else "the bound's time over the best one's", fontsize=LABEL)


def _name(row: PlanRow) -> str:
    return f"{row.scheme} {setting(row)} rate={row.learning_rate:g}"


def _curves(axes: Axes, plan: Plan) -> None:
    """Score over virtual time: the winner, a few others, and the experiment as given.

    A line has the colour of its scheme; lines of one scheme differ in dashes and markers.
    """
    ran = [row for row in plan.rows if row.points][: CURVES + 1]
    shown: Sequence[PlanRow] = [*ran, plan.given] if plan.given and plan.given.points else ran
    if not shown:
        axes.set_axis_off()
        return
    most = max(point.seconds for row in shown for point in row.points)
    unit = unit_for(most, TIMES)
    seen: dict[str, int] = {}
    for index, row in enumerate(shown):
        given = row is plan.given
        turn = seen[row.scheme] = seen.get(row.scheme, -1) + 1
        axes.plot(
            [point.seconds / unit.size for point in row.points],
            [abs(plan.goal.score(point)) for point in row.points],
            markevery=max(1, len(row.points) // 8),
            label="as given" if given else _name(row),
            color=INK if given else WINNER if index == 0 else _colour(row.scheme),
            linestyle="-" if given or index == 0 else DASHES[turn % len(DASHES)],
            marker="X" if given else "*" if index == 0 else MARKERS[index % len(MARKERS)],
            linewidth=1.6,
            markersize=8 if index == 0 and not given else 4.5,
        )
    tidy(axes)
    if most > WIDE * shown[0].points[-1].seconds:  # else the fast ones are one steep line
        log_axis(axes.xaxis)
    if plan.goal.kind != "budget":
        axes.axhline(plan.goal.value, color=FAINT, linestyle="--", linewidth=1, zorder=1)
    loss = plan.goal.kind == "loss" or shown[0].points[0].accuracy is None
    if not loss:
        percent_axis(axes.yaxis)
    axes.set_xlabel(f"virtual time ({unit.name})", fontsize=LABEL)
    axes.set_ylabel("training loss" if loss else "test accuracy (%)", fontsize=LABEL)
    axes.set_title("pilot runs", fontsize=TITLE, color=INK)


SLOW, PLAIN = "#D55E00", "#0072B2"
NAMED = 30  # servers whose names have room


def network_picture(plan: Plan) -> Figure:
    """Servers at their places; what would gain most is drawn thick, and named below."""
    site = plan.site
    assert site is not None
    figure = new_figure(8.0, 6.4)
    axes = figure.subplots()
    points = _points(site)
    for a, b in site.edges:
        gain = _gain(plan.improvements, {a, b})
        axes.plot(
            *points[[a, b]].T,
            color=SLOW if gain else FAINT,
            linewidth=1.2 + 6 * gain,
            zorder=1,
        )
    gains = [_gain(plan.improvements, {d}) for d in range(site.servers)]
    axes.scatter(
        points[:, 0],
        points[:, 1],
        s=[70 + 500 * gain for gain in gains],
        c=[SLOW if gain else PLAIN for gain in gains],
        edgecolors="white",
        zorder=2,
    )
    axes.margins(0.12)
    axes.set_aspect("equal")
    axes.set_axis_off()
    title = plan.rows[0].label if plan.rows else "the network"
    axes.set_title(title, fontsize=TITLE, color=INK)
    lines = [f"{percent(each.gain)} less time: {each.what}" for each in plan.improvements]
    told = "\n".join(lines) or "no single improvement helps"
    figure.supxlabel(f"twice as good, one at a time:\n{told}", fontsize=LABEL, color=INK)
    if site.servers <= NAMED:
        _write_names(figure, axes, site, points)
    return figure


def _write_names(figure: Figure, axes: Axes, site: Site, points: Floats) -> None:
    """Write names beside the dots, each where it covers as little as possible of dots and names."""
    figure.draw_without_rendering()  # the layout decides where the dots are
    dots = axes.transData.transform(points) * 72 / figure.dpi
    taken = [_box(x, y, 8.0, 8.0) for x, y in dots.tolist()]
    for d, (x, y) in enumerate(dots.tolist()):
        name = site.names[d] if d < len(site.names) else str(d)
        width, height = 0.55 * TICK * len(name), 1.2 * TICK
        side = 8 + width / 2
        beside = [(dx, dy) for dy in (0, 11, -11) for dx in (side, -side)]
        around = [(0, 11), (0, -11), *beside, (0, 22), (0, -22), (0, 33)]
        places = [(_box(x + dx, y + dy, width, height), (dx, dy)) for dx, dy in around]
        # A name that hides a dot is worse than one that touches another name.
        hides = [10 * sum(_common(box, dot) for dot in taken[: len(dots)]) for box, _ in places]
        meets = [sum(_common(box, other) for other in taken) for box, _ in places]
        box, (dx, dy) = places[int(np.argmin(np.add(hides, meets)))]
        taken.append(box)
        axes.annotate(
            name,
            points[d],
            xytext=(dx, dy),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=TICK,
            color=INK,
            zorder=3,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
        )


Box = tuple[float, float, float, float]  # left, bottom, right, top


def _box(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _common(one: Box, other: Box) -> float:
    """The area that both cover.

    >>> _common((0, 0, 2, 2), (1, 1, 3, 3)), _common((0, 0, 1, 1), (2, 0, 3, 1))
    (1, 0)
    """
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0) * max(high, 0)


def _points(site: Site) -> Floats:
    links = np.zeros((site.servers, site.servers))
    for a, b in site.edges:
        links[a, b] = links[b, a] = 1
    net = clustered(np.ones(site.servers), range(site.servers), links)
    found = layout(replace(net, places=site.places))
    return floats([found[d] for d in range(site.servers)])


def _gain(found: tuple[Improvement, ...], servers: set[int]) -> float:
    """The largest gain from an improvement that concerns exactly these servers."""
    return max((each.gain for each in found if set(each.servers) == servers), default=0.0)
