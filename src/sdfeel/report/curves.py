"""What was learnt, against what it cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from sdfeel.core.arrays import Floats
from sdfeel.core.events import Evaluated
from sdfeel.report.drawing import (
    FAINT,
    INK,
    LABEL,
    TICK,
    WIDTHS,
    inches,
    new_figure,
    percent_axis,
    tidy,
)
from sdfeel.report.history import History, clock_of
from sdfeel.report.styles import line_style, styles_of
from sdfeel.report.units import BYTES, COUNTS, JOULES, TIMES, Unit, goal, short, unit_for
from sdfeel.run.bounds import NAMES as ESTIMATES

HUGE = 1e100  # beyond it a run has diverged, and would hide everything else on the axis
MARKS = 8  # markers on a line: enough to tell lines apart, few enough to see them


@dataclass(frozen=True)
class CostAxis:
    """What learning costs: a horizontal axis."""

    name: str
    read: Callable[[Evaluated], float]
    ladder: tuple[Unit, ...]


@dataclass(frozen=True)
class LearningAxis:
    """What was learnt: a vertical axis."""

    name: str
    read: Callable[[Evaluated], float | None]
    share: bool = False  # between 0 and 1, printed in percent


TIME = CostAxis("time", lambda event: event.seconds, TIMES)
ITERATIONS = CostAxis("local iterations", lambda event: event.iterations, COUNTS)
MOVED = CostAxis("data moved", lambda event: event.bytes, BYTES)
ROUNDS = CostAxis("rounds", lambda event: event.number, COUNTS)
ENERGY = CostAxis("modelled energy", lambda event: event.joules, JOULES)
COSTS = (TIME, ITERATIONS, MOVED)  # in reports
EVERY_COST = (TIME, ITERATIONS, ROUNDS, MOVED, ENERGY)

ACCURACY = LearningAxis("test accuracy (%)", lambda event: event.accuracy, share=True)
TEST_LOSS = LearningAxis("test loss", lambda event: event.test_loss)
LOSS = LearningAxis("training loss", lambda event: event.loss)
SPREAD = LearningAxis("spread of servers' models", lambda event: event.spread)


def curves(
    histories: Sequence[History],
    target: float | None = None,
    title: str | None = None,
    metrics: Sequence[str] = (),
    width: str | None = None,
) -> Figure:
    """Accuracy and training loss against time, iterations and bytes; a line per history.

    Without accuracies the first row is the test loss. `metrics` names the user's own, a row each.
    In a paper's column there is room for time only; `save` with the same width for print.
    """
    wide = inches(width) or 12.0
    costs = COSTS if wide > COLUMN else (TIME,)
    tall = 2.75 if wide > 9 else 1.9
    measures = [*measures_of(histories), *(own_measure(name) for name in metrics)]
    with_target = target is not None and measures[0].share
    columns, lines = _legend_shape([history.label for history in histories], with_target, wide)
    figure = new_figure(wide, tall * len(measures) + 0.5 + 0.21 * lines, title)
    grid = figure.subplots(len(measures), len(costs), sharex="col", sharey="row", squeeze=False)
    for row, measure in enumerate(measures):
        for column, cost in enumerate(costs):
            draw(grid[row, column], histories, cost, measure, target)
            grid[row, column].label_outer(remove_inner_ticks=False)
    _legend(figure, histories, target if with_target else None, columns)
    return figure


def panel(
    histories: Sequence[History], cost: CostAxis, measure: LearningAxis, target: float | None = None
) -> Figure:
    """One measure against one cost, without a legend."""
    figure = new_figure(4.3, 3.1)
    draw(figure.subplots(), histories, cost, measure, target)
    return figure


COLUMN = WIDTHS["column"]


def column(histories: Sequence[History], target: float | None = None) -> Figure:
    """The most important measure against time, with a legend, as wide as a paper's column."""
    measure = measures_of(histories)[0]
    longest = max((len(short(history.label, 24)) for history in histories), default=0)
    across = max(1, int(COLUMN / (0.75 + 0.075 * longest)))
    entries = len(histories) + (target is not None and measure.share)
    figure = new_figure(COLUMN, 2.3 + 0.17 * ceil(entries / across))
    draw(figure.subplots(), histories, TIME, measure, target)
    _legend(figure, histories, target if measure.share else None, across)
    return figure


def swatch(style: int | None) -> Figure:
    """A short piece of a line, or (None) of the target's, for a legend outside the picture."""
    figure = Figure(figsize=(0.5, 0.16))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    look = _target_style() if style is None else line_style(style)
    axes.plot([0, 1, 2], [0, 0, 0], markevery=[1], **look)
    return figure


def named(cost: CostAxis, histories: Sequence[History]) -> str:
    """What a cost is called in these runs: their clocks differ."""
    return f"{clock_of(histories)} {cost.name}" if cost is TIME else cost.name


def measures_of(histories: Sequence[History]) -> tuple[LearningAxis, LearningAxis]:
    """The two that always matter: accuracy where there are classes, and the training loss."""
    found = (e.accuracy for history in histories for e in history.evaluations)
    classes = any(accuracy is not None for accuracy in found)
    empty = not any(history.evaluations for history in histories)
    return (ACCURACY if classes or empty else TEST_LOSS), LOSS


def own_measure(name: str) -> LearningAxis:
    """A metric of the user's own."""
    return LearningAxis(short(name, 40), lambda event: event.metrics.get(name))


def own_names(histories: Sequence[History]) -> list[str]:
    """The user's metrics in these runs, in the order of their first appearance."""
    names = (name for history in histories for e in history.evaluations for name in e.metrics)
    return [name for name in dict.fromkeys(names) if name not in ESTIMATES]


def draw(
    axes: Axes,
    histories: Sequence[History],
    cost: CostAxis,
    measure: LearningAxis,
    target: float | None = None,
    unit: Unit | None = None,
) -> None:
    """A line per history on given axes; what is not finite is a gap.

    A line joins the evaluations that have its measure: some measures are not taken every time.
    `unit` is given where several panels share one; otherwise the largest value decides.
    """
    costs = [_values(_taken(history, measure), cost.read) for history in histories]
    learnt = [_values(_taken(history, measure), measure.read) for history in histories]
    most = max((_largest(values) for values in costs), default=0.0)
    unit = unit or unit_for(most or 1.0, cost.ladder)
    styles = styles_of(histories)
    for index, (x, y) in enumerate(zip(costs, learnt, strict=True)):
        marks = _marked(y, index)
        axes.plot(x / unit.size, y, markevery=marks, **line_style(styles[index]))
        _band(axes, histories[index], x / unit.size, measure, styles[index])
    tidy(axes)
    end = (most or 1.0) / unit.size
    axes.set_xlim(-0.03 * end, 1.04 * end)
    if any(np.isfinite(y).any() for y in learnt):
        _scale(axes, learnt, measure)
        if target is not None and measure.share:
            axes.axhline(target, **_target_style())
    else:
        _say(axes, "nothing measured yet")
    axes.set_xlabel(_with_unit(named(cost, histories), unit.name), fontsize=LABEL, color=INK)
    axes.set_ylabel(measure.name, fontsize=LABEL, color=INK, parse_math=False)


def _taken(history: History, measure: LearningAxis) -> list[Evaluated]:
    return [event for event in history.evaluations if measure.read(event) is not None]


def _band(axes: Axes, history: History, x: Floats, measure: LearningAxis, style: int) -> None:
    """Shade between the lowest and the highest of the runs that a line is the mean of."""
    if len(history.members) < 2:
        return
    taken = [measure.read(event) is not None for event in history.evaluations]
    runs = np.array([_values(list(compress(own, taken)), measure.read) for own in history.aligned])
    colour = line_style(style)["color"]
    axes.fill_between(x, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.15, lw=0)


def _scale(axes: Axes, learnt: Sequence[Floats], measure: LearningAxis) -> None:
    if measure.share:
        percent_axis(axes.yaxis)
        return
    finite = np.concatenate([[], *(y[np.isfinite(y)] for y in learnt)])
    # Only a run that explodes or vanishes spans this much: a linear axis would show nothing else.
    if len(finite) and finite.min() > 0 and finite.max() > 1000 * finite.min():
        axes.set_yscale("log")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _values(evaluations: Sequence[Evaluated], read: Callable[[Evaluated], float | None]) -> Floats:
    found = [read(event) for event in evaluations]
    values = np.array([np.nan if value is None else value for value in found], dtype=np.float64)
    values[~(np.abs(values) < HUGE)] = np.nan
    return values


def _largest(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else 0.0


def _marked(values: Floats, index: int) -> list[int]:
    """Which points get a marker: a few, shifted from line to line, and all isolated ones."""
    step = ceil(len(values) / MARKS) or 1
    shown = np.isfinite(values)
    beside = np.concatenate([[False], shown, [False]])
    alone = shown & ~beside[:-2] & ~beside[2:]
    regular = (np.arange(len(values)) % step == index % step) & shown
    return [int(index) for index in np.flatnonzero(regular | alone)]


def _with_unit(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name


def _target_style() -> dict[str, Any]:
    return {"color": FAINT, "linestyle": (0, (4, 3)), "linewidth": 1.0, "zorder": 1.5}


def _say(axes: Axes, text: str) -> None:
    axes.set(yticks=[])
    centred: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, text, color=FAINT, fontsize=LABEL, **centred)


def _legend_shape(labels: Sequence[str], with_target: bool, wide: float) -> tuple[int, int]:
    """Columns and lines that the legend needs below a figure of this many inches."""
    entries = len(labels) + with_target
    longest = max((len(short(label)) for label in labels), default=0)
    columns = max(1, min(entries, int((wide - 0.3) / (0.9 + 0.08 * longest))))
    return columns, ceil(entries / columns)


def _legend(
    figure: Figure, histories: Sequence[History], target: float | None, columns: int
) -> None:
    lines = [Line2D([], [], **line_style(style)) for style in styles_of(histories)]
    labels = [short(history.label) for history in histories]
    if target is not None:
        lines.append(Line2D([], [], **_target_style()))
        labels.append(f"target {goal(target)}")
    if not lines:
        return
    blank = ["line"] * len(lines)  # matplotlib hides labels that begin with _, so they come later
    box = figure.legend(
        lines, blank, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.4
    )
    for text, label in zip(box.get_texts(), labels, strict=True):
        text.set(text=label, parse_math=False, fontsize=TICK + 0.5, color=INK)


ACROSS = 4  # pictures in a row


def multiples(
    panels: Mapping[str, Sequence[History]], target: float | None = None, width: str | None = None
) -> Figure:
    """For each name, accuracy over virtual time above accuracy over iterations.

    The same line style means the same label in every picture, and all have the same units.
    """
    everything = [history for histories in panels.values() for history in histories]
    labels = list(dict.fromkeys(history.label for history in everything))
    measure = measures_of(everything)[0]
    columns = min(len(panels), 2 if width == "column" else ACROSS)
    rows = ceil(len(panels) / columns)
    wide = inches(width) or 1.2 + 3.1 * columns
    with_target = target is not None and measure.share
    across, lines_below = _legend_shape(labels, with_target, wide)
    tall = 4.6 if wide / columns > 2.6 else 3.4
    figure = new_figure(wide, 0.4 + tall * rows + 0.22 * lines_below)
    units = {
        cost.name: unit_for(
            max(_largest(_values(h.evaluations, cost.read)) for h in everything) or 1.0, cost.ladder
        )
        for cost in (TIME, ITERATIONS)
    }
    grid = figure.subplots(2 * rows, columns, sharey=True, squeeze=False)
    for n, (name, histories) in enumerate(panels.items()):
        row, column = divmod(n, columns)
        ordered = [_named(histories, label) for label in labels]
        for below, cost in enumerate((TIME, ITERATIONS)):
            axes = grid[2 * row + below, column]
            draw(axes, ordered, cost, measure, target, units[cost.name])
            if below == 0:
                axes.set_title(short(name, 36), fontsize=LABEL, color=INK, parse_math=False)
            if column:
                axes.set_ylabel("")
    for n in range(len(panels), rows * columns):
        for below in range(2):
            grid[2 * (n // columns) + below, n % columns].set_axis_off()
    samples = [History(label, (), style=index) for index, label in enumerate(labels)]
    _legend(figure, samples, target if with_target else None, across)
    return figure


def _named(histories: Sequence[History], label: str) -> History:
    """The history of that label, or an empty one that keeps its place in the line styles."""
    return next((h for h in histories if h.label == label), History.of(label, ()))
