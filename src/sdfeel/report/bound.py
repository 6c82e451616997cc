"""How loose is the bound of Theorem 1? A table of it next to what was measured.

Nothing here imports matplotlib: the console prints this table, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.report.history import History
from sdfeel.report.units import number
from sdfeel.run.bounds import BOUND, COVERED, DIVERGENCE, MEAN, NOISE, PROVEN, SMOOTHNESS

TITLES = ("run", "measured", "bound", "bound / measured", "L", "sigma²", "kappa²", "proven rate")


@dataclass(frozen=True)
class FinalBound:
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


def final_bound(history: History) -> FinalBound:
    """What a run with estimates has measured in the end, and what the theorem promised."""
    last = newest(history)
    return FinalBound(
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
        end = final_bound(history)
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
    ends = [(history.label, final_bound(history)) for history in estimated(histories)]
    return [label for label, end in ends if end.bound is not None and not end.covered]


def values(history: History, name: str) -> Floats:
    """The metric of this name at every measurement; NaN where it is missing."""
    found = [event.metrics.get(name, np.nan) for event in history.evaluations]
    return np.array(found, dtype=np.float64)


def newest(history: History) -> dict[str, float]:
    """The newest estimates of a run; empty if it has none."""
    last = history.last
    return last.metrics if last is not None and MEAN in last.metrics else {}
