"""Curves as numbers for the browser. `report.curves` defines what they mean."""

from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from sdfeel.core.events import Evaluated
from sdfeel.core.run_files import finite
from sdfeel.report.curves import (
    COSTS,
    HUGE,
    SPREAD,
    CostAxis,
    LearningAxis,
    measures_of,
    named,
    own_measure,
    own_names,
)
from sdfeel.report.history import History

POINTS = 800  # on a line: more could not be distinguished
Numbers = list[float | None]


def charts(histories: Sequence[History], target: float | None = None) -> dict[str, Any]:
    """Every measure against every cost, a line per history, and the band of a mean's members."""
    measures = [*measures_of(histories), SPREAD, *map(own_measure, own_names(histories))]
    return {
        "costs": [_cost(cost, histories) for cost in COSTS],
        "measures": [{"name": m.name, "share": m.share} for m in measures],
        "lines": [_line(history, measures) for history in histories],
        "target": target,
    }


def _cost(cost: CostAxis, histories: Sequence[History]) -> dict[str, Any]:
    return {"name": named(cost, histories), "units": [asdict(unit) for unit in cost.ladder]}


def _line(history: History, measures: Sequence[LearningAxis]) -> dict[str, Any]:
    every = history.evaluations
    picked = spaced(len(every), POINTS)
    shown = [every[index] for index in picked]
    line: dict[str, Any] = {
        "label": history.label,
        "x": [[drawable(cost.read(event)) for event in shown] for cost in COSTS],
        "y": [[_learnt(measure, event) for event in shown] for measure in measures],
    }
    if len(history.members) > 1:
        members = [member.evaluations for member in history.members]
        bands = [[_band(measure, members, index) for index in picked] for measure in measures]
        line["low"] = [[low for low, _ in band] for band in bands]
        line["high"] = [[high for _, high in band] for band in bands]
    return line


def _band(
    measure: LearningAxis, members: Sequence[Sequence[Evaluated]], index: int
) -> tuple[float | None, float | None]:
    """The lowest and the highest of all members; none where one of them has no value."""
    values = [_learnt(measure, member[index]) for member in members]
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if len(known) == len(values) else (None, None)


def _learnt(measure: LearningAxis, event: Evaluated) -> float | None:
    return drawable(measure.read(event))


def drawable(value: float | None) -> float | None:
    """The value; None if there is none, or if the run has diverged."""
    return finite(value, below=HUGE)


def spaced(count: int, limit: int) -> list[int]:
    """At most about `limit` indices below `count`, evenly spaced, the last among them.

    >>> spaced(10, 4), spaced(3, 4)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    step = max(1, ceil(count / limit))
    found = list(range(0, count, step))
    return found if not found or found[-1] == count - 1 else [*found, count - 1]
