"""Computes kept runs again, drawn at random, and compares all their numbers:

python -m tests.tools.spot_check 10 --scale full --data DIRECTORY

Whoever doubts a verdict need not compute a figure's hundred runs. What differs may be another
CPU without the portable engine, another version of torch where the engine is not native, or a rule
that has changed since.
"""

import argparse
from math import inf
from pathlib import Path

import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.figures import cache, kept_curves
from sdfeel.figures.all_figures import FIGURES
from sdfeel.figures.curves import RunTrack, read, rounded
from sdfeel.figures.figure import Figure, Scale
from sdfeel.figures.lines import seeded
from sdfeel.figures.running import Carrying
from sdfeel.figures.settings import SCALES, Reading

RESULTS = Path(__file__).parents[2] / "results"
Place = tuple[Reading, str, int]  # reading, label and seed


def kept_runs(scale: Scale) -> list[tuple[Figure, Place]]:
    """Every run that is kept at a scale."""
    known = [(each, kept_curves.load(RESULTS, scale, each)) for each in FIGURES.values()]
    return [(figure, place) for figure, kept in known if kept is not None for place in kept.runs]


def columns(track: RunTrack) -> dict[str, Floats]:
    return {str(name): column for name, column in (*track.x.items(), *track.y.items())}


def differences(one: RunTrack, other: RunTrack) -> dict[str, float]:
    """The largest difference in every column; infinite where one has more measurements."""
    pairs = {name: (column, columns(other)[name]) for name, column in columns(one).items()}
    return {
        name: float(np.max(np.abs(first - second))) if first.shape == second.shape else inf
        for name, (first, second) in pairs.items()
    }


def computed_again(
    figure: Figure, scale: Scale, place: Place, data: Path | None = None
) -> RunTrack:
    """The run of a place, trained anew, with the digits that are kept."""
    reading, label, seed = place
    lines = figure.lines(figure.setting(scale, reading))
    line = next(each for each in lines if each.label == label)
    run = seeded(line.trained, seed)
    if cache.done(run):
        cache.forget(run)
    list(Carrying({label: run}, 1, data))
    return rounded(read(line, seed, data), figure.axes, figure.measures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, help="how many")
    parser.add_argument("--scale", default="full", choices=SCALES)
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--data", type=Path, help="directory with the data sets")
    asked = parser.parse_args()
    known = kept_runs(asked.scale)
    drawn = np.random.default_rng(asked.seed).choice(len(known), asked.runs, replace=False)
    for figure, place in (known[number] for number in drawn):
        kept = kept_curves.load(RESULTS, asked.scale, figure)
        assert kept is not None
        found = differences(
            kept.runs[place].track, computed_again(figure, asked.scale, place, asked.data)
        )
        told = ", ".join(f"{name} {size:g}" for name, size in found.items() if size) or "the same"
        print(f"{figure.name}, {place[1]} ({place[0]}), seed {place[2]}: {told}", flush=True)


if __name__ == "__main__":
    main()
