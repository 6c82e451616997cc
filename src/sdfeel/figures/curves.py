"""What was measured along the runs of a line, one row per seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.events import Evaluated
from sdfeel.experiment.schema import Experiment
from sdfeel.figures import cache
from sdfeel.figures.lines import FigureLine, seeded
from sdfeel.figures.settings import found_in
from sdfeel.report.history import History
from sdfeel.run import store

Axis = Literal["iterations", "seconds", "bytes", "joules"]
AXES: tuple[Axis, ...] = ("iterations", "seconds", "bytes", "joules")
Measure = Literal["loss", "accuracy", "spread"]
MEASURES: tuple[Measure, ...] = ("loss", "accuracy", "spread")
LOST: dict[Measure, float] = {
    "loss": inf,
    "accuracy": -inf,
    "spread": inf,
}  # of a run that diverged
DIGITS = 5  # that are kept of every number


@dataclass(frozen=True, eq=False)
class RunTrack:
    """One run: columns of equal length, one entry per measurement."""

    x: dict[Axis, Floats]
    y: dict[Measure, Floats]
    diverged: bool = False

    def at(self, measure: Measure, axis: Axis, moment: float) -> float:
        """The value at a moment, interpolated linearly between two measurements."""
        if self.diverged and moment > self.x[axis][-1]:
            return LOST[measure]
        return float(np.interp(moment, self.x[axis], self.y[measure]))

    def last(self, measure: Measure) -> float:
        """The value at the end."""
        return LOST[measure] if self.diverged else float(self.y[measure][-1])

    def reach(self, target: float, axis: Axis) -> float:
        """When the target accuracy was first met, between measurements; infinity if never."""
        x, y = self.x[axis], self.y["accuracy"]
        there = np.flatnonzero(y >= target)
        if not len(there):
            return inf
        after = int(there[0])
        if after == 0:
            return float(x[0])
        share = (target - y[after - 1]) / (y[after] - y[after - 1])
        return float(x[after - 1] + share * (x[after] - x[after - 1]))

    def average(self, measure: Measure, axis: Axis, until: float) -> float:
        """The mean value over the window, without its first tenth."""
        moments = np.linspace(0.1, 1.0, 46) * until
        return float(np.mean([self.at(measure, axis, t) for t in moments]))

    def held(self, measure: Measure, axis: Axis, start: float, end: float) -> float:
        """The mean over a stretch if every model counts until the next one is measured."""
        if self.diverged and end > self.x[axis][-1]:
            return LOST[measure]
        x = np.clip(np.append(self.x[axis], inf), start, end)
        return float(np.diff(x) @ self.y[measure] / (end - start))

    def jitter(self, measure: Measure) -> float:
        """How far measurements are from the line between their neighbours, as a root mean square.

        The first quarter is left out. A steep fall is not restless; going up and down is.
        """
        y = self.y[measure][len(self.y[measure]) // 4 :]
        return float(np.sqrt(np.mean((y[1:-1] - (y[:-2] + y[2:]) / 2) ** 2)))

    def cut(self, until: float) -> "RunTrack":
        """What was measured up to a time, and a last point at exactly that time."""
        clock = self.x["seconds"]
        if clock[-1] <= until:
            return self
        before = clock < until
        x: dict[Axis, Floats] = {}
        y: dict[Measure, Floats] = {}
        for axis, column in self.x.items():
            x[axis] = np.append(column[before], np.interp(until, clock, column))
        for measure, column in self.y.items():
            y[measure] = np.append(column[before], np.interp(until, clock, column))
        return RunTrack(x, y)  # if it diverged, it did so later


@dataclass(frozen=True, eq=False)
class Curve:
    """A label and its runs, one for each seed."""

    label: str
    runs: tuple[RunTrack, ...]

    def at(self, measure: Measure, axis: Axis, moment: float) -> Floats:
        """(seeds,) values at a moment."""
        return np.array([track.at(measure, axis, moment) for track in self.runs])

    def last(self, measure: Measure) -> Floats:
        """(seeds,) values at the end."""
        return np.array([track.last(measure) for track in self.runs])

    def end(self, axis: Axis) -> float:
        """The last moment that all runs have reached, except for those that diverged."""
        lasting = [track for track in self.runs if not track.diverged] or self.runs
        return min(float(track.x[axis][-1]) for track in lasting)

    def reach(self, target: float, axis: Axis) -> Floats:
        """(seeds,) when the target accuracy was first measured; infinity if never."""
        return np.array([track.reach(target, axis) for track in self.runs])

    def average(self, measure: Measure, axis: Axis, until: float) -> Floats:
        """(seeds,) means over the window: the higher the accuracy's, the faster it was learnt."""
        return np.array([track.average(measure, axis, until) for track in self.runs])

    def held(self, measure: Measure, axis: Axis, start: float, end: float) -> Floats:
        """(seeds,) means over a stretch if every model counts until the next one."""
        return np.array([track.held(measure, axis, start, end) for track in self.runs])

    def typical(self, measure: Measure) -> float:
        """The mean at the end of the runs that did not diverge; not a number if all did."""
        ends = [track.last(measure) for track in self.runs if not track.diverged]
        return float(np.mean(ends)) if ends else nan

    def jitter(self, measure: Measure) -> Floats:
        """(seeds,) how restless the runs are."""
        return np.array([track.jitter(measure) for track in self.runs])

    def mean(self, measure: Measure, axis: Axis, moments: Floats) -> Floats:
        """The mean over seeds at several moments."""
        rows = [[track.at(measure, axis, t) for t in moments] for track in self.runs]
        return floats(np.mean(rows, axis=0))

    @property
    def diverged(self) -> int:
        """Runs that diverged."""
        return sum(track.diverged for track in self.runs)


Curves = dict[str, Curve]  # by label


def read(line: FigureLine, seed: int, data: Path | None = None) -> RunTrack:
    """The run of a line and a seed, which is in the cache."""
    trained = seeded(line.trained, seed)
    history = History.of(line.label, store.read_events(cache.directory_of(trained)))
    seen = history.evaluations
    x = {axis: _column(seen, axis) for axis in AXES}
    if line.paid is not None:
        x["seconds"] = _clock(found_in(seeded(line.paid, seed), data), seen)
    y = {measure: _column(seen, measure) for measure in MEASURES}
    gone = (cache.directory_of(trained) / cache.DIVERGED).is_file()
    track = RunTrack(x, y, gone)
    return track if line.until is None else track.cut(line.until)


def rounded(track: RunTrack, axes: Sequence[Axis], measures: Sequence[Measure]) -> RunTrack:
    """What is kept of a run: the digits and columns that pictures and claims need."""
    return RunTrack(
        {axis: _short(track.x[axis]) for axis in axes},
        {measure: _short(track.y[measure]) for measure in measures},
        track.diverged,
    )


def _short(column: Floats) -> Floats:
    return floats([float(f"{value:.{DIGITS}g}") for value in column])


def _clock(paid: Experiment, seen: Sequence[Evaluated]) -> Floats:
    times = cache.clock(paid, seen[-1].number)
    return np.array([times[event.number] for event in seen])


def _column(seen: Sequence[Evaluated], name: str) -> Floats:
    return np.array([getattr(event, name) for event in seen], dtype=np.float64)
