"""The picture of Theorem 1's bound next to what was measured."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdfeel.report.bound import beyond, newest, values
from sdfeel.report.drawing import INK, LABEL, TICK, new_figure, tidy
from sdfeel.report.history import History
from sdfeel.report.styles import line_style, styles_of
from sdfeel.report.units import COUNTS, unit_for
from sdfeel.run.bounds import BOUND, MEAN, SLOPE

KEY = {SLOPE: "squared gradient", MEAN: "its mean so far", BOUND: "bound of Theorem 1"}


def picture(histories: Sequence[History]) -> Figure:
    """Squared gradients, their mean so far, and the bound on that mean, over local iterations."""
    figure = new_figure(8.6, 3.6)
    axes = figure.subplots()
    most = max((e.iterations for h in histories for e in h.evaluations), default=1)
    unit = unit_for(float(most) or 1.0, COUNTS)
    for style, history in zip(styles_of(histories), histories, strict=True):
        if newest(history):
            _draw(axes, history, style, unit.size)
    tidy(axes)
    axes.set_yscale("log")
    axes.set_xlabel(f"local iterations {unit.name}".strip(), fontsize=LABEL, color=INK)
    axes.set_ylabel("squared gradient", fontsize=LABEL, color=INK)
    lines = [Line2D([], [], **_line(name, INK)) for name in KEY]
    figure.legend(
        lines,
        [*list(KEY.values())[:2], KEY[BOUND] + " at the proven rate" * bool(beyond(histories))],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=TICK,
        handlelength=3.4,
    )
    return figure


def _draw(axes: Axes, history: History, style: int, unit: float) -> None:
    colour = line_style(style)["color"]
    x = np.array([event.iterations for event in history.evaluations]) / unit
    for name in KEY:
        y = values(history, name)
        axes.plot(x, np.where(y > 0, y, np.nan), **_line(name, colour))


def _line(name: str, colour: str) -> dict[str, Any]:
    """How each kind of line looks in every colour."""
    shape: dict[str, dict[str, Any]] = {
        SLOPE: {"linestyle": (0, (1, 2)), "linewidth": 1.2},
        MEAN: {"linestyle": "-", "linewidth": 2.0},
        BOUND: {"linestyle": (0, (6, 2)), "linewidth": 1.6},
    }
    return {"color": colour, **shape[name]}
