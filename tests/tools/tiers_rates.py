"""The best rate of each scheme of `sdfeel figure tiers-tuned` and `tiers-cifar`:

    python -m tests.tools.tiers_rates --scale full --data DIRECTORY

All schemes try the same rates, on a seed that no claim sees. What it prints belongs in CHOSEN of
sdfeel/figures/beyond/tiers_tuned.py. Finished runs are kept in the user's cache. `--count` only
says how many images it would train on.
"""

import argparse
import os
from pathlib import Path

from sdfeel.figures import cache
from sdfeel.figures.beyond.tiers_tuned import SEED, TRIALS, on_trial, tuned_line
from sdfeel.figures.curves import read
from sdfeel.figures.lines import FigureLine, seeded
from sdfeel.figures.running import Carrying
from sdfeel.figures.settings import SCALES, found_in


def score(line: FigureLine, data: Path | None) -> float:
    """The mean accuracy over the window; 0 if the run diverged."""
    track = read(line, SEED, data)
    assert line.until is not None
    return 0.0 if track.diverged else track.average("accuracy", "seconds", line.until)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=SCALES, default="quick", help="which trial")
    parser.add_argument("--data", type=Path, help="directory with the data set")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--count", action="store_true", help="count images, train nothing")
    asked = parser.parse_args()
    if asked.data is not None:
        os.environ["SDFEEL_DATA"] = str(asked.data.resolve())  # for data that are made from others
    trial = TRIALS[asked.scale]
    found = {
        (reading, label, spread, rate): tuned_line(
            on_trial(asked.scale, reading), label, spread, rate
        )
        for reading in trial.readings
        for label in trial.labels
        for spread in trial.tuned
        for rate in trial.rates
    }
    runs = {cache.key(each): each for each in (seeded(f.trained, SEED) for f in found.values())}
    if asked.count:
        images = sum(cache.examples(found_in(each, asked.data)) for each in runs.values())
        print(f"{len(runs)} runs, {images / 1e6:.1f} million images")
        return
    list(Carrying(runs, asked.jobs, asked.data))
    for reading in trial.readings:
        for label in trial.labels:
            scores = [
                [score(found[reading, label, s, r], asked.data) for r in trial.rates]
                for s in trial.tuned
            ]
            best = [trial.rates[row.index(max(row))] for row in scores]
            told = "; ".join(" ".join(f"{each:.4f}" for each in row) for row in scores)
            shown = ", ".join(map(str, best)) + ("," if len(best) == 1 else "")
            print(f'    ("{asked.scale}", "{reading}", "{label}"): ({shown}),  # {told}')


if __name__ == "__main__":
    main()
