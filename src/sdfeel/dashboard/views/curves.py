"""Curves as numbers for the browser.

`report.curves` defines what curves mean.
"""

from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from sdfeel.core.events import Evaluated
from sdfeel.core.run_files import finite
from sdfeel.report.curves import (
    ACCURACY,
    ENERGY,
    EVERY_COST,
    HUGE,
    LOSS,
    SPREAD,
    TEST_LOSS,
    CostAxis,
    LearningAxis,
    measures_of,
    named,
    own_measure,
    own_names,
)
from sdfeel.report.history import History
from sdfeel.report.styles import styles_of

ALWAYS = (ACCURACY, TEST_LOSS, LOSS, SPREAD)  # others may be measured less often
POINTS = 800  # on a line: more could not be distinguished
Numbers = list[float | None]


def charts(histories: Sequence[History], target: float | None = None) -> dict[str, Any]:
    """Every measure against every cost, a line per history, and the band of a mean's members."""
    costs = [c for c in EVERY_COST if c is not ENERGY or all(h.energy_known for h in histories)]
    measures = [*measures_of(histories), SPREAD, *map(own_measure, own_names(histories))]
    return {
        "costs": [_cost(cost, histories) for cost in costs],
        "measures": [{"name": m.name, "share": m.share, "own": m not in ALWAYS} for m in measures],
        "lines": [
            {**_line(history, costs, measures), "style": style}
            for history, style in zip(histories, styles_of(histories), strict=True)
        ],
        "target": target,
    }


def _cost(cost: CostAxis, histories: Sequence[History]) -> dict[str, Any]:
    return {"name": named(cost, histories), "units": [asdict(unit) for unit in cost.ladder]}


def _line(
    history: History, costs: Sequence[CostAxis], measures: Sequence[LearningAxis]
) -> dict[str, Any]:
    every = history.evaluations
    values = [[_learnt(measure, event) for event in every] for measure in measures]
    picked = keeping_extremes(values, POINTS)
    line: dict[str, Any] = {
        "label": history.label,
        "x": [[drawable(cost.read(every[index])) for index in picked] for cost in costs],
        "y": [[column[index] for index in picked] for column in values],
        "measured": len(every),
    }
    if len(history.members) > 1:
        members = history.aligned
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


def keeping_extremes(columns: Sequence[Numbers], limit: int) -> list[int]:
    """At most about `limit` indices, chosen so that no column loses a low, a high or a gap.

    Every bucket of neighbours keeps its first index, and each column's lowest, highest and first
    gap.

    >>> keeping_extremes([[1.0, 9.0, 1.0, 1.0, None, 1.0, 0.0, 1.0]], 4)
    [0, 1, 4, 6, 7]
    >>> len(keeping_extremes([[float(i % 7) for i in range(10_000)]], 100)) <= 110
    True
    """
    count = len(columns[0]) if columns else 0
    if count <= limit:
        return list(range(count))
    size = ceil(count * (3 * len(columns) + 1) / limit)
    kept = {*range(0, count, size), count - 1}
    for begin in range(0, count, size):
        bucket = range(begin, min(begin + size, count))
        for column in columns:
            known = [(value, index) for index in bucket if (value := column[index]) is not None]
            gaps = [index for index in bucket if column[index] is None]
            kept.update(gaps[:1])
            if known:
                kept |= {min(known)[1], max(known)[1]}
    return sorted(kept)
