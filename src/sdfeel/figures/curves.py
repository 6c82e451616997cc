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
from sdfeel.figures.lines import FigureLine, priced, seeded
from sdfeel.figures.settings import PRICES, found_in
from sdfeel.report.history import History
from sdfeel.run import store

# What a curve is drawn against: a price list is a clock. Bytes and joules are those of list A.
Axis = Literal["iterations", "A", "E", "bytes", "joules"]
CLOCKLESS: tuple[Axis, ...] = ("iterations", "bytes", "joules")
Measure = Literal["loss", "accuracy", "spread"]


@dataclass(frozen=True, eq=False)
class RunTrack:
    """One run: columns of equal length, one entry per measurement."""

    x: dict[Axis, Floats]
    y: dict[Measure, Floats]
    diverged: bool = False

    def at(self, measure: Measure, axis: Axis, moment: float) -> float:
        """The value at a moment, interpolated linearly between two measurements."""
        if self.diverged and moment > self.x[axis][-1]:
            return nan
        return float(np.interp(moment, self.x[axis], self.y[measure]))

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

    def jitter(self, measure: Measure) -> float:
        """How far measurements are from the line between their neighbours, as a root mean square.

        The first quarter is left out. A steep fall is not restless; going up and down is.
        """
        y = self.y[measure][len(self.y[measure]) // 4 :]
        return float(np.sqrt(np.mean((y[1:-1] - (y[:-2] + y[2:]) / 2) ** 2)))


@dataclass(frozen=True, eq=False)
class Curve:
    """A label and its runs; the tracks of price list E differ in more than the clock only where
    servers do not wait for one another."""

    label: str
    tracks: dict[str, tuple[RunTrack, ...]]  # by price list

    def runs(self, axis: Axis) -> tuple[RunTrack, ...]:
        return self.tracks["A" if axis in CLOCKLESS else axis]

    def at(self, measure: Measure, axis: Axis, moment: float) -> Floats:
        """(seeds,) values at a moment."""
        return np.array([track.at(measure, axis, moment) for track in self.runs(axis)])

    def last(self, measure: Measure, axis: Axis = "iterations") -> Floats:
        """(seeds,) values at the end."""
        return np.array([track.y[measure][-1] for track in self.runs(axis)])

    def end(self, axis: Axis) -> float:
        """The last moment that all runs have reached, except for those that diverged."""
        runs = self.runs(axis)
        lasting = [track for track in runs if not track.diverged] or runs
        return min(float(track.x[axis][-1]) for track in lasting)

    def reach(self, target: float, axis: Axis) -> Floats:
        """(seeds,) when the target accuracy was first measured; infinity if never."""
        return np.array([track.reach(target, axis) for track in self.runs(axis)])

    def average(self, measure: Measure, axis: Axis, until: float) -> Floats:
        """(seeds,) means over the window: the higher the accuracy's, the faster it was learnt."""
        return np.array([track.average(measure, axis, until) for track in self.runs(axis)])

    def jitter(self, measure: Measure) -> Floats:
        """(seeds,) how restless the runs are."""
        return np.array([track.jitter(measure) for track in self.runs("iterations")])

    def mean(self, measure: Measure, axis: Axis, moments: Floats) -> Floats:
        """The mean over seeds at several moments."""
        rows = [[track.at(measure, axis, t) for t in moments] for track in self.runs(axis)]
        return floats(np.mean(rows, axis=0))

    @property
    def diverged(self) -> int:
        """Runs that diverged."""
        return sum(track.diverged for track in self.tracks["A"])


def read(line: FigureLine, seeds: Sequence[int], data: Path | None = None) -> Curve:
    """The curve of a line whose runs are in the cache."""
    tracks = {price: tuple(_track(line, price, seed, data) for seed in seeds) for price in PRICES}
    return Curve(line.label, tracks)


def _track(line: FigureLine, price: str, seed: int, data: Path | None) -> RunTrack:
    trained = seeded(line.runs()[price], seed)
    history = History.of(line.label, store.read_events(cache.directory_of(trained)))
    seen = history.evaluations
    clocks = {price: np.array([event.seconds for event in seen])}
    if line.waits:
        paid = seeded(line.paid if line.paid is not None else line.trained, seed)
        clocks = {name: _clock(found_in(priced(paid, name), data), seen) for name in PRICES}
    return RunTrack(
        x={**{name: _column(seen, name) for name in CLOCKLESS}, **clocks},  # type: ignore[dict-item]
        y={
            "loss": _column(seen, "loss"),
            "accuracy": _column(seen, "accuracy"),
            "spread": _column(seen, "spread"),
        },
        diverged=(cache.directory_of(trained) / cache.DIVERGED).is_file(),
    )


def _clock(paid: Experiment, seen: Sequence[Evaluated]) -> Floats:
    times = cache.clock(paid, seen[-1].number)
    return np.array([times[event.number] for event in seen])


def _column(seen: Sequence[Evaluated], name: str) -> Floats:
    return np.array([getattr(event, name) for event in seen], dtype=np.float64)
