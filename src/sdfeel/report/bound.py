"""Theorem 1 next to what was measured: how loose is the bound? A table and a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdfeel.core.arrays import Floats
from sdfeel.report.drawing import INK, LABEL, TICK, new_figure, tidy
from sdfeel.report.history import History
from sdfeel.report.styles import line_style, styles_of
from sdfeel.report.units import COUNTS, number, unit_for
from sdfeel.run.bounds import BOUND, COVERED, DIVERGENCE, MEAN, NOISE, PROVEN, SLOPE, SMOOTHNESS

TITLES = ("run", "measured", "bound", "bound / measured", "L", "sigma²", "kappa²", "proven rate")
KEY = {SLOPE: "squared gradient", MEAN: "its mean so far", BOUND: "bound of Theorem 1"}


@dataclass(frozen=True)
class Kept:
    """One run's end in the theorem's terms."""

    mean: float
    bound: float | None  # None: the theorem does not cover this scheme
    covered: bool  # False: the bound is for the largest proven step instead
    proven: float | None
    smoothness: float  # the largest seen, as both below
    noise: float
    divergence: float


def estimated(histories: Sequence[History]) -> list[History]:
    """The runs that have estimates."""
    return [history for history in histories if newest(history)]


def kept(history: History) -> Kept:
    """The result of a run that has estimates."""
    last = newest(history)
    return Kept(
        mean=last[MEAN],
        bound=last.get(BOUND),
        covered=bool(last.get(COVERED, 0.0)),
        proven=last.get(PROVEN),
        smoothness=float(np.nanmax(values(history, SMOOTHNESS))),
        noise=float(np.nanmax(values(history, NOISE))),
        divergence=float(np.nanmax(values(history, DIVERGENCE))),
    )


def rows(histories: Sequence[History]) -> list[list[str]]:
    """A line per run, under TITLES."""
    found = []
    for history in estimated(histories):
        end = kept(history)
        ratio = end.bound / end.mean if end.bound is not None and end.mean > 0 else None
        numbers = (
            end.mean,
            end.bound,
            ratio,
            end.smoothness,
            end.noise,
            end.divergence,
            end.proven,
        )
        told = ["-" if value is None else number(value) for value in numbers]
        found.append([history.label, *told])
    return found


def beyond(histories: Sequence[History]) -> list[str]:
    """The runs whose own learning rate the theorem does not cover."""
    ends = [(history.label, kept(history)) for history in estimated(histories)]
    return [label for label, end in ends if end.bound is not None and not end.covered]


def values(history: History, name: str) -> Floats:
    """A number of every measurement; NaN where it is missing."""
    found = [event.metrics.get(name, np.nan) for event in history.evaluations]
    return np.array(found, dtype=np.float64)


def newest(history: History) -> dict[str, float]:
    """The newest estimates of a run; nothing where it has none."""
    last = history.last
    return last.metrics if last is not None and MEAN in last.metrics else {}


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
