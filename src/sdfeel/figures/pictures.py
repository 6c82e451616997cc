"""A figure's picture: one panel per axis and reading, one legend for all."""

import re
from collections.abc import Mapping, Sequence
from math import ceil, inf
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D

from sdfeel.core.arrays import Floats, floats
from sdfeel.figures.curves import Curve, Curves
from sdfeel.figures.figure import Figure, Panel, Scale
from sdfeel.figures.judging import seeds_of
from sdfeel.figures.settings import FigureSetting, Reading
from sdfeel.report.drawing import FAINT, INK, LABEL, TICK, inches, new_figure, percent_axis, tidy
from sdfeel.report.styles import line_style, style_with
from sdfeel.report.units import COUNTS, TIMES, Unit, unit_for

NAMES = {"loss": "training loss", "accuracy": "test accuracy (%)", "spread": "spread of servers"}
UNITS: dict[tuple[str, Reading], str] = {
    ("iterations", "A"): "local iterations (batches)",
    ("iterations", "E"): "local iterations (passes)",
}
AXES = {"seconds": "virtual time", "bytes": "bytes sent", "joules": "energy in joules"}
POINTS = 40
ROW = 3  # panels side by side
DATA = {  # longer names first
    "sdfeel.figures.small_cifar:data": "CIFAR-10 pooled to 16 x 16",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
}


def picture(
    figure: Figure, scale: Scale, found: Mapping[Reading, Curves], width: str | None = None
) -> Picture | None:
    """The figure as it can be saved; None where there is nothing to draw.

    At a paper's width it has no title, for the paper has captions.
    """
    wide = inches(width)
    if figure.picture is not None:
        return figure.picture(width)
    if figure.drawn is not None:
        if not found:
            return None
        drawn = figure.drawn(next(iter(found.values())), width)
        told = evenly(note(figure, scale, found), int(13 * drawn.get_figwidth()))
        drawn.supxlabel("\n".join(told), fontsize=TICK, color=INK)
        return drawn
    panels = [panel for panel in figure.panels if panel.reading in found]
    if not panels:
        return None
    labels = dict.fromkeys(
        plain(label, panel) for panel in panels for label in panel.labels or found[panel.reading]
    )
    styles = styles_by_label(list(labels))
    row, printed = across_at(len(panels), width), width in ("column", "page")
    across = min(row, len(panels)) if len(panels) != 4 else min(row, 2)
    down = ceil(len(panels) / across)
    room = wide or 4.2 * max(across, 1.5) + 0.4
    names = {label: with_fate(label, panels, found) for label in styles}
    fit = max(1, int((room - 0.5) / (0.85 + 0.075 * max(map(len, names.values())))))
    columns = ceil(len(styles) / ceil(len(styles) / fit))  # rows of equal length
    told = evenly(note(figure, scale, found), int(13 * room))
    panel_height = 2.1 if printed else 2.9
    height = panel_height * down + 0.7 + 0.2 * (ceil(len(styles) / columns) + len(told))
    drawn = new_figure(room, height, f"{figure.name}: {figure.title}" if not printed else None)
    several = len(figure.readings) > 1
    units = units_of(panels, found)
    grid = np.atleast_1d(drawn.subplots(down, across, squeeze=False)).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        curves = found[panel.reading]
        shown = {plain(label, panel): curves[label] for label in panel.labels or curves}
        draw(axes, panel, shown, styles, figure.setting(scale, panel.reading), units[panel])
        parts = [panel.title, f"reading {panel.reading}" if several else ""]
        axes.set_title(", ".join(part for part in parts if part), fontsize=LABEL, color=INK)
    for measure in {panel.measure for panel in panels}:
        _on_one_scale(
            [a for a, panel in zip(grid, panels, strict=False) if panel.measure == measure]
        )
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    box = drawn.legend(
        [Line2D([], [], **line_style(index)) for index in styles.values()],
        list(names.values()),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=TICK,
        handlelength=3.2,
    )
    box.set_title("\n".join(told))
    box.get_title().set(fontsize=TICK, multialignment="center")
    return drawn


def across_at(panels: int, width: str | None) -> int:
    """How many panels stand side by side: in print, few enough to be read, and enough to fit.

    >>> [across_at(panels, "column") for panels in (1, 2, 3, 4, 6)]
    [1, 1, 1, 2, 2]
    >>> [across_at(panels, "page") for panels in (1, 2, 3, 4, 6)]
    [2, 2, 3, 2, 3]
    """
    if width == "column":
        return 1 if panels <= ROW else 2
    return 2 if width == "page" and panels % ROW else ROW


def styles_by_label(labels: Sequence[str]) -> dict[str, int]:
    """A style for each label. Where every kind occurs in every variant ("synchronous, H = 5"), a
    variant has one colour and a kind one dash.

    >>> styles_by_label(["b", "a"])
    {'b': 0, 'a': 1}
    >>> styles_by_label(["b, 1", "c, 1", "b, 5", "c, 5"])
    {'b, 1': 0, 'c, 1': 9, 'b, 5': 64, 'c, 5': 1}
    """
    parts = [label.partition(", ") for label in labels]
    kinds = list(dict.fromkeys(kind for kind, _, _ in parts))
    variants = list(dict.fromkeys(variant for _, _, variant in parts))
    if min(len(kinds), len(variants)) < 2 or len(kinds) * len(variants) != len(labels):
        return {label: index for index, label in enumerate(labels)}
    return {
        label: style_with(variants.index(variant), kinds.index(kind))
        for label, (kind, _, variant) in zip(labels, parts, strict=True)
    }


def with_fate(label: str, panels: Sequence[Panel], found: Mapping[Reading, Curves]) -> str:
    """A label, and how many of its runs diverged under each reading; no numbers if all did."""
    runs = {
        panel.reading: curve
        for panel in panels
        for name, curve in found[panel.reading].items()
        if plain(name, panel) == label
    }
    if all(curve.diverged == len(curve.runs) for curve in runs.values()):
        return f"{label} (diverged)"
    several = len({panel.reading for panel in panels}) > 1
    told = [
        f"{f'{reading}: ' if several else ''}{curve.diverged} of {len(curve.runs)} diverged"
        for reading, curve in runs.items()
        if curve.diverged
    ]
    return f"{label} ({', '.join(told)})" if told else label


def _on_one_scale(panels: Sequence[Axes]) -> None:
    """Panels of one measure can be compared at a glance."""
    low, high = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels:
        axes.set_ylim(min(low), max(high))


def evenly(text: str, width: int) -> list[str]:
    """As few lines as fit, all about equally long.

    >>> evenly("one two three four five", 19)
    ['one two three', 'four five']
    """
    lines = wrap(text, width)
    narrower = (wrap(text, least) for least in range(len(text) // len(lines), width))
    return next((found for found in narrower if len(found) == len(lines)), lines)


def plain(label: str, panel: Panel) -> str:
    """A label without what the panel's title says already."""
    return label.removesuffix(f", {panel.title}") if panel.title else label


def note(figure: Figure, scale: Scale, found: Mapping[Reading, Curves]) -> str:
    """What was trained, and how many seeds are shown."""
    seeds = {reading: seeds_of(curves) for reading, curves in found.items()}
    words = {reading: f"{number} seed{'s' * (number != 1)}" for reading, number in seeds.items()}
    count = (
        next(iter(words.values()))
        if len(set(words.values())) == 1
        else ", ".join(f"{number} ({reading})" for reading, number in words.items())
    )
    setting = figure.setting(scale)
    trained = {line.trained.data.name for line in figure.lines(setting)}
    others = sorted(trained - {figure.data}) if figure.data in trained else []
    data = "".join(f"; where title or legend say so, {other}" for other in others)
    told = f"{scale} scale: {setting.note}{data}; {count}"
    if max(seeds.values()) > 1:
        told += f", {'shaded' if figure.drawn is None else 'bars'}: lowest to highest"
    if any(0 < curve.diverged < len(curve.runs) for curve in drawn_curves(figure, found)):
        told += "; runs that diverged are left out"
    if any(panel.target for panel in figure.panels):
        told += f"; dotted: {100 * setting.target:g} %, and when all seeds got there, on average"
    lacking = [reading for reading in figure.readings if reading not in found]
    told += "".join(f"; reading {reading} is not computed" for reading in lacking)
    return well_named(told)


def drawn_curves(figure: Figure, found: Mapping[Reading, Curves]) -> list[Curve]:
    """The curves that are in the picture."""
    shown = {
        reading: [p.labels for p in figure.panels if p.reading == reading] for reading in found
    }
    return [
        curve
        for reading, curves in found.items()
        for label, curve in curves.items()
        if not shown[reading] or any(not labels or label in labels for labels in shown[reading])
    ]


def well_named(text: str) -> str:
    """Data sets by the names that people give them.

    >>> well_named("mnist, 60,000 images; where title or legend say so, fashion-mnist")
    'MNIST, 60,000 images; where title or legend say so, Fashion-MNIST'
    """
    names = "|".join(map(re.escape, DATA))
    return re.sub(rf"\b({names})\b", lambda name: DATA[name[0]], text)


def draw(
    axes: Axes,
    panel: Panel,
    shown: Mapping[str, Curve],
    styles: Mapping[str, int],
    setting: FigureSetting,
    unit: Unit,
) -> None:
    """Means over seeds, shaded from the lowest to the highest."""
    curves = list(shown.values())
    lasting = [curve for curve in curves if curve.diverged < len(curve.runs)] or curves
    end = min(curve.end(panel.axis) for curve in lasting)
    if panel.axis not in ("iterations", "seconds"):
        end = max(curve.end(panel.axis) for curve in curves)
    highest, floor = [], inf
    shade = min(0.13, 0.5 / len(shown))  # many bands on top of one another are not darker than few
    order = list(styles)
    for label in sorted(shown, key=order.index):  # dashes over whole lines: nothing is covered
        curve, index = shown[label], styles[label]
        moments, rows = sampled(curve, panel, min(end, curve.end(panel.axis)))
        style = line_style(index) | {
            "markevery": (3 * order.index(label) % POINTS, POINTS // 5),
            "markersize": 3.5,
        }
        axes.plot(moments / unit.size, rows.mean(axis=0), **style)
        low, high = rows.min(axis=0), rows.max(axis=0)
        axes.fill_between(moments / unit.size, low, high, color=style["color"], alpha=shade, lw=0)
        finite = [row[np.isfinite(row)] for row in rows if np.isfinite(row).any()]
        highest += [float(row.max()) for row in finite]
        floor = min([floor, *(float(row.min()) for row in finite)])
        if panel.target:
            reached = curve.reach(setting.target, panel.axis) / unit.size
            mark_reached(axes, reached, style["color"], unit.name, 0.03 + 0.13 * index)
    if panel.target:
        axes.axhline(setting.target, color=FAINT, lw=0.9, ls=":")
    tidy(axes)
    if panel.measure == "accuracy":
        percent_axis(axes.yaxis)
    elif panel.measure == "loss":
        # A run that explodes would leave nothing to see of the others.
        top = min(max(highest), 5 * min(highest))
        # The axis starts at 0, unless everything worth seeing would be at the upper edge.
        axes.set_ylim(top=1.05 * top, bottom=0 if floor < top / 2 else 0.95 * floor)
    axes.set_xlim(0, end / unit.size)
    name = AXES.get(panel.axis) or UNITS[panel.axis, panel.reading]
    axes.set_xlabel(f"{name} ({unit.name})" if unit.name else name, fontsize=LABEL, color=INK)
    axes.set_ylabel(NAMES[panel.measure], fontsize=LABEL, color=INK)


def mark_reached(axes: Axes, reached: Floats, color: str, unit: str, height: float) -> None:
    """When the target was met on average, if every seed met it; the number next to it."""
    if np.isfinite(reached).all():
        mean = float(reached.mean())
        axes.axvline(mean, color=color, lw=0.9, ls=":")
        axes.annotate(
            f"{mean:.3g} {unit}",
            (mean, height),
            xycoords=("data", "axes fraction"),
            xytext=(-1.5, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=TICK,
            color=color,
        )


def units_of(panels: Sequence[Panel], found: Mapping[Reading, Curves]) -> dict[Panel, Unit]:
    """The unit of each panel's axis: the same for all panels of an axis under a reading."""
    longest: dict[tuple[str, Reading], float] = {}
    for panel in panels:
        curves = found[panel.reading]
        end = max(curves[label].end(panel.axis) for label in panel.labels or curves)
        place = (panel.axis, panel.reading)
        longest[place] = max(end, longest.get(place, 0.0))
    return {
        panel: unit_for(
            longest[panel.axis, panel.reading], TIMES if panel.axis == "seconds" else COUNTS
        )
        for panel in panels
    }


def sampled(curve: Curve, panel: Panel, end: float) -> tuple[Floats, Floats]:
    """(points,) moments and (seeds, points) values on them, of the runs that did not diverge, if
    there are any."""
    moments = floats(np.linspace(0, end, POINTS))
    runs = [track for track in curve.runs if not track.diverged] or curve.runs
    rows = [[track.at(panel.measure, panel.axis, moment) for moment in moments] for track in runs]
    return moments, floats(rows)
