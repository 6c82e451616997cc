"""A figure's picture: one panel per axis, one legend for all."""

from collections.abc import Mapping
from math import ceil, inf
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from sdfeel.core.arrays import Floats, floats
from sdfeel.figures.curves import Curve
from sdfeel.figures.figure import Figure, Panel
from sdfeel.figures.settings import PRICES
from sdfeel.report.drawing import INK, LABEL, TICK, line_style, new_figure, tidy
from sdfeel.report.units import COUNTS, TIMES, Unit, unit_for

NAMES = {"loss": "training loss", "accuracy": "test accuracy (%)", "spread": "spread of servers"}
AXES = {
    "iterations": "local iterations",
    "A": "virtual time, prices A",
    "E": "virtual time, prices E",
    "bytes": "bytes sent",
    "joules": "energy in joules",
}
POINTS = 120


def picture(figure: Figure, found: Mapping[str, Curve], note: str) -> Picture | None:
    """The figure as it can be saved; None where there is nothing to draw."""
    if figure.picture is not None:
        return figure.picture()
    if not figure.panels:
        return None
    drawn_anywhere = {label for panel in figure.panels for label in panel.labels or found}
    found = {label: curve for label, curve in found.items() if label in drawn_anywhere}
    count = len(figure.panels)
    width = 4.6 * max(count, 1.5) + 0.4
    longest = max(len(label) for label in found)
    columns = max(1, min(len(found), int((width - 0.5) / (0.85 + 0.075 * longest))))
    told = wrap(note, int(13 * width))
    height = 3.6 + 0.2 * (ceil(len(found) / columns) + len(told))
    drawn = new_figure(width, height, f"{figure.name}: {figure.title}")
    styles = {label: index for index, label in enumerate(found)}
    for axes, panel in zip(np.atleast_1d(drawn.subplots(1, count)), figure.panels, strict=True):
        shown = [found[label] for label in panel.labels or found]
        draw(axes, panel, shown, styles)
        if panel.until:
            last = found[panel.until].end(panel.axis)
            axes.set_xlim(0, 1.5 * last / unit_of(panel, shown).size)
    box = drawn.legend(
        [Line2D([], [], **line_style(index)) for index in styles.values()],
        list(styles),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=TICK,
        handlelength=3.2,
    )
    box.set_title("\n".join(told))
    box.get_title().set_fontsize(TICK)
    return drawn


def draw(axes: Axes, panel: Panel, shown: list[Curve], styles: Mapping[str, int]) -> None:
    """Means over seeds, shaded from the lowest to the highest."""
    longest = max(curve.end(panel.axis) for curve in shown)
    unit = unit_of(panel, shown)
    highest, floor = [], inf
    for curve in shown:
        index = styles[curve.label]
        moments, rows = sampled(curve, panel)
        style = line_style(index) | {"markevery": (index * 4, POINTS // 6)}
        axes.plot(moments / unit.size, rows.mean(axis=0), **style)
        low, high = rows.min(axis=0), rows.max(axis=0)
        axes.fill_between(moments / unit.size, low, high, color=style["color"], alpha=0.13, lw=0)
        finite = [row[np.isfinite(row)] for row in rows if np.isfinite(row).any()]
        highest += [float(row.max()) for row in finite]
        floor = min([floor, *(float(row.min()) for row in finite)])
    tidy(axes)
    if panel.measure == "accuracy":
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    elif panel.measure == "loss":
        # A run that explodes would leave nothing to see of the others.
        top = min(max(highest), 5 * min(highest))
        # The axis starts at 0, unless everything worth seeing would be at the upper edge.
        axes.set_ylim(top=1.05 * top, bottom=0 if floor < top / 2 else 0.95 * floor)
    axes.set_xlim(0, longest / unit.size)
    name = f"{AXES[panel.axis]} ({unit.name})" if unit.name else AXES[panel.axis]
    axes.set_xlabel(name, fontsize=LABEL, color=INK)
    axes.set_ylabel(NAMES[panel.measure], fontsize=LABEL, color=INK)


def unit_of(panel: Panel, shown: list[Curve]) -> Unit:
    """The unit that the panel's axis is drawn in."""
    longest = max(curve.end(panel.axis) for curve in shown)
    return unit_for(longest, TIMES if panel.axis in PRICES else COUNTS)


def sampled(curve: Curve, panel: Panel) -> tuple[Floats, Floats]:
    """(points,) moments and (seeds, points) values on them."""
    moments = floats(np.linspace(0, curve.end(panel.axis), POINTS))
    rows = [
        [track.at(panel.measure, panel.axis, moment) for moment in moments]
        for track in curve.runs(panel.axis)
    ]
    return moments, floats(rows)
