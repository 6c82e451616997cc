"""Small multiples: the same picture for every value of one key."""

from collections.abc import Mapping, Sequence
from math import ceil

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdfeel.report.curves import ITERATIONS, TIME, draw, measures_of
from sdfeel.report.drawing import INK, LABEL, line_style, new_figure
from sdfeel.report.history import History
from sdfeel.report.units import short

ACROSS = 4  # pictures in a row


def multiples(panels: Mapping[str, Sequence[History]], target: float | None = None) -> Figure:
    """For each name, accuracy over virtual time above accuracy over iterations.

    The same line style means the same label in every picture.
    """
    everything = [history for histories in panels.values() for history in histories]
    labels = list(dict.fromkeys(history.label for history in everything))
    measure = measures_of(everything)[0]
    columns = min(len(panels), ACROSS)
    rows = ceil(len(panels) / columns)
    figure = new_figure(1.2 + 3.1 * columns, 0.6 + 4.6 * rows)
    grid = figure.subplots(2 * rows, columns, sharey=True, squeeze=False)
    for n, (name, histories) in enumerate(panels.items()):
        row, column = divmod(n, columns)
        ordered = [_named(histories, label) for label in labels]
        for below, cost in enumerate((TIME, ITERATIONS)):
            axes = grid[2 * row + below, column]
            draw(axes, ordered, cost, measure, target)
            if below == 0:
                axes.set_title(short(name, 36), fontsize=LABEL, color=INK, parse_math=False)
            if column:
                axes.set_ylabel("")
    for n in range(len(panels), rows * columns):
        for below in range(2):
            grid[2 * (n // columns) + below, n % columns].set_axis_off()
    lines = [Line2D([], [], **line_style(index)) for index in range(len(labels))]
    figure.legend(
        lines,
        [short(label) for label in labels],
        loc="outside lower center",
        ncols=min(len(labels), 4),
        frameon=False,
        fontsize=LABEL,
    )
    return figure


def _named(histories: Sequence[History], label: str) -> History:
    """The history of that label, or an empty one that keeps its place in the line styles."""
    return next((h for h in histories if h.label == label), History.of(label, ()))
