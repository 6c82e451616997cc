"""The best rate of each method of `sdfeel figure drift`: python -m tests.tools.drift_rates

All methods try the same rates, on a seed that no claim sees. What it prints belongs in CHOSEN of
sdfeel/figures/beyond/drift.py. Finished runs are kept in the user's cache.
"""

import argparse
from collections.abc import Collection
from pathlib import Path

from sdfeel.core.events import Finished
from sdfeel.experiment.schema import Experiment
from sdfeel.figures import cache
from sdfeel.figures.beyond.drift import (
    FEWER,
    FIRST,
    METHODS,
    RATES,
    SHOWN,
    drift_line,
    label,
    methods,
    taus,
)
from sdfeel.figures.lines import seeded
from sdfeel.figures.running import Carrying
from sdfeel.figures.settings import FigureSetting, setting
from sdfeel.report.history import History
from sdfeel.run import store

SEED = FIRST - 1


def trials(
    where: FigureSetting, asked: Collection[str]
) -> dict[tuple[str, int, float], Experiment]:
    """A run for each method that was asked for, tau1 and rate; those that are shown first."""
    found = {}
    for tau1 in sorted(taus(where), key=lambda each: abs(each - SHOWN)):
        for rate in RATES[where.scale]:
            for method in (each for each in methods(tau1) if each in asked):
                name, fewer = label(method, tau1, rate), FEWER[where.scale]
                line = drift_line(where, method, tau1, rate, name, *fewer)
                found[method, tau1, rate] = seeded(line.trained, SEED)
    return found


def end(experiment: Experiment) -> float:
    """The accuracy at the end of a run; 0 if it diverged."""
    directory = cache.directory_of(experiment)
    if (directory / cache.DIVERGED).is_file():
        return 0.0
    return History.of("", store.read_events(directory)).evaluations[-1].accuracy or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default="mnist,fashion-mnist")
    parser.add_argument("--scale", default="full", choices=("quick", "full"))
    parser.add_argument("--data", type=Path, help="directory with the data sets")
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    for name in asked.sets.split(","):
        where = setting(name, asked.scale)
        wanted = [each for each in METHODS if each in asked.methods.split(";")]
        runs = trials(where, wanted)
        named = {label(*key): each for key, each in runs.items()}
        for shown, event in Carrying(named, asked.jobs, asked.data):
            if isinstance(event, Finished):
                print(f"{shown}: {end(named[shown]):.4f}", flush=True)
        print(f'    ("{name}", "{asked.scale}"): {{')
        for method in wanted:
            tried = [tau1 for tau1 in taus(where) if method in methods(tau1)]
            rates = RATES[where.scale]
            best = [max(rates, key=lambda r: end(runs[method, t, r])) for t in tried]
            ends = [[round(end(runs[method, t, r]), 4) for r in rates] for t in tried]
            print(f'        "{method}": ({", ".join(map(str, best))},),  # {ends}')
        print("    },", flush=True)


if __name__ == "__main__":
    main()
