"""The learning rate of the small CIFAR-10 model: python -m tests.tools.cifar_rates --data DIRECTORY

HierFAVG tries every rate for 300 iterations with a seed that no claim sees; the lowest training
loss decides. The best belongs in SMALL_RATE of sdfeel/figures/settings.py. Finished runs are kept
in the user's cache.
"""

import argparse
import os
from pathlib import Path

from sdfeel.figures import cache
from sdfeel.figures.all_figures import FIGURES
from sdfeel.figures.lines import seeded
from sdfeel.figures.running import Carrying
from sdfeel.report.history import History
from sdfeel.run import store

SEED, ITERATIONS = 100, 300
RATES = (0.005, 0.01, 0.02, 0.05, 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory with the data set")
    asked = parser.parse_args()
    os.environ["SDFEEL_DATA"] = str(asked.data)  # for data that are made from others
    figure = FIGURES["4b"]
    lines = {each.label: each for each in figure.lines(figure.setting("small"))}
    usual = seeded(lines["HierFAVG"].trained, SEED)
    training = usual.training.model_copy(update={"iterations": ITERATIONS, "max_seconds": None})
    runs = {}
    for rate in RATES:
        tried = training.model_copy(update={"learning_rate": rate})
        runs[f"{rate:g}"] = usual.model_copy(update={"training": tried})
    list(Carrying(runs, 1, asked.data))
    for shown, experiment in runs.items():
        directory = cache.directory_of(experiment)
        if (directory / cache.DIVERGED).is_file():
            print(f"{shown}: diverged")
            continue
        last = History.of("", store.read_events(directory)).evaluations[-1]
        print(f"{shown}: training loss {last.loss:.4f}, accuracy {last.accuracy:.4f}")


if __name__ == "__main__":
    main()
