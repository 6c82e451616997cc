"""The curves that are kept: one compressed file per figure and scale, with what made them.

Pictures and verdicts come from these files alone. A run is known by the key of its settings, so a
computation continues where somebody else's file ends.
"""

import json
import lzma
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sdfeel.core.errors import DataError
from sdfeel.core.run_files import write_atomic
from sdfeel.figures import cache
from sdfeel.figures.curves import AXES, MEASURES, Curve, Curves, RunTrack, read, rounded
from sdfeel.figures.figure import Figure, Scale
from sdfeel.figures.lines import FigureLine, seeded
from sdfeel.figures.settings import Reading

SUFFIX = ".curves.xz"


@dataclass(frozen=True)
class KeptRun:
    """One run, the key of its settings, and which provenance it has."""

    key: str
    track: RunTrack
    made: Mapping[str, Any]


Runs = dict[tuple[Reading, str, int], KeptRun]  # by reading, label and seed


@dataclass(frozen=True)
class KeptFigure:
    """All runs of a figure at a scale."""

    runs: Runs = field(default_factory=dict)

    def curves(self, figure: Figure, scale: Scale) -> dict[Reading, Curves]:
        """The curves of every reading that is complete for at least one seed."""
        found = {}
        for reading in figure.readings:
            if seeds := self.seeds(figure, scale, reading):
                found[reading] = {
                    label: Curve(
                        label, tuple(self.runs[reading, label, seed].track for seed in seeds)
                    )
                    for label in _labels(figure, scale, reading)
                }
        return found

    def seeds(self, figure: Figure, scale: Scale, reading: Reading) -> list[int]:
        """The seeds for which every line of the figure is there."""
        seeds = {seed for one, _, seed in self.runs if one == reading}
        labels = _labels(figure, scale, reading) if seeds else ()
        return sorted(s for s in seeds if all((reading, label, s) in self.runs for label in labels))

    @property
    def most(self) -> int:
        """How many seeds, counted from 0, one must ask for to get all that are there."""
        return 1 + max((seed for _, _, seed in self.runs), default=-1)

    def has(self, place: tuple[Reading, str, int], line: FigureLine) -> bool:
        """Is the run of this place there, with these settings?"""
        return place in self.runs and self.runs[place].key == line.key(place[2])

    def made(self) -> list[Mapping[str, Any]]:
        """What made the runs, each once."""
        found: list[Mapping[str, Any]] = []
        for run in self.runs.values():
            if run.made not in found:
                found.append(run.made)
        return found


@lru_cache
def _labels(figure: Figure, scale: Scale, reading: Reading) -> tuple[str, ...]:
    return tuple(line.label for line in figure.lines(figure.setting(scale, reading)))


def file_of(results: Path, scale: Scale, name: str) -> Path:
    """Where the curves of a figure are."""
    return results / scale / f"{name}{SUFFIX}"


def load(results: Path, scale: Scale, figure: Figure) -> KeptFigure | None:
    """The kept runs of a figure; None if there are none."""
    file = file_of(results, scale, figure.name)
    return _read(file) if file.is_file() else None


def with_shared(
    known: KeptFigure, results: Path, scale: Scale, figure: Figure, seeds: int
) -> KeptFigure:
    """The runs in `known`, and those that it lacks but that other figures have kept."""
    files = sorted(file_of(results, scale, "any").parent.glob(f"*{SUFFIX}"))
    others = {run.key: run for file in files for run in _read(file).runs.values()}
    found = dict(known.runs)
    for place, line in places(figure, scale, seeds):
        run = others.get(line.key(place[2]))
        if run is not None and not known.has(place, line) and _serves(run.track, figure):
            found[place] = run
    return KeptFigure(found)


def _serves(track: RunTrack, figure: Figure) -> bool:
    """Does a track have all that a figure needs? Others may keep less of the same run."""
    return {*figure.axes, *figure.measures} <= {*track.x, *track.y}


def _read(file: Path) -> KeptFigure:
    try:
        document = json.loads(lzma.decompress(file.read_bytes()))
        return KeptFigure(dict(_runs(document)))
    except (ValueError, KeyError, TypeError, lzma.LZMAError) as error:
        raise DataError(f"{file} does not contain a figure's curves: {error}") from None


def _runs(document: Mapping[str, Any]) -> Iterable[tuple[tuple[Reading, str, int], KeptRun]]:
    for run in document["runs"]:
        x = {axis: np.array(run[axis], dtype=float) for axis in AXES if axis in run}
        y = {name: np.array(run[name], dtype=float) for name in MEASURES if name in run}
        track = RunTrack(x, y, run["diverged"])
        place = (run["reading"], run["label"], run["seed"])
        yield place, KeptRun(run["key"], track, document["made"][run["made"]])


def save(results: Path, scale: Scale, figure: Figure, kept: KeptFigure) -> Path:
    """Write a figure's runs; the same runs give the same bytes."""
    made = kept.made()
    runs = [
        {
            "reading": reading,
            "label": label,
            "seed": seed,
            "key": run.key,
            "made": made.index(run.made),
            "diverged": run.track.diverged,
            **{axis: column.tolist() for axis, column in run.track.x.items()},
            **{name: column.tolist() for name, column in run.track.y.items()},
        }
        for (reading, label, seed), run in kept.runs.items()
    ]
    text = json.dumps({"figure": figure.name, "scale": scale, "made": made, "runs": runs})
    file = file_of(results, scale, figure.name)
    write_atomic(file, lzma.compress(text.encode(), preset=9))
    return file


def places(
    figure: Figure, scale: Scale, seeds: int
) -> list[tuple[tuple[Reading, str, int], FigureLine]]:
    """Every run of a figure, by reading, label and seed: all of one seed first, so an
    interrupted evening is still useful."""
    lines = {reading: figure.lines(figure.setting(scale, reading)) for reading in figure.readings}
    return [
        ((reading, line.label, line.first + seed), line)
        for seed in range(seeds)
        for reading in figure.readings
        for line in lines[reading]
    ]


def gathered(
    figure: Figure, scale: Scale, seeds: int, known: KeptFigure, data: Path | None = None
) -> KeptFigure:
    """The runs of a figure: from `known` where its settings are the same, else from the cache.

    What is known is never dropped, however few seeds are asked for now.
    """
    found: Runs = {}
    for place, line in places(figure, scale, max(seeds, known.most)):
        key, seed = line.key(place[2]), place[2]
        if known.has(place, line):
            found[place] = known.runs[place]
        elif cache.done(seeded(line.trained, seed)):
            track = rounded(read(line, seed, data), figure.axes, figure.measures)
            found[place] = KeptRun(key, track, made(line, seed))
    return KeptFigure(found)


def made(line: FigureLine, seed: int) -> dict[str, Any]:
    """What made a run: versions, machine, engine, data, and the project's commit."""
    from sdfeel.run.provenance import Provenance  # torch: only where something ran

    began = Provenance.kept(cache.directory_of(seeded(line.trained, seed)))
    if began is None:
        return {}
    return {
        "versions": dict(began.versions),
        "machine": dict(began.machine),
        "engine": began.engine,
        "bits": began.bits,
        "data": {"seed": seed, "sha256": began.data},
        "commit": began.project["commit"] if began.project else "unknown",
        "changed": began.project["changed"] if began.project else "unknown",
    }
