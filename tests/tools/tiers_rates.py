"""The best rate of each scheme of `sdfeel figure tiers-tuned`: python -m tests.tools.tiers_rates

All schemes try the same rates, on a seed that no claim sees. What it prints belongs into CHOSEN of
sdfeel/figures/tuned.py. Finished runs are kept in the user's cache.
"""

from sdfeel.figures import cache
from sdfeel.figures.curves import read
from sdfeel.figures.lines import FigureLine, seeded
from sdfeel.figures.running import Carrying
from sdfeel.figures.settings import setting
from sdfeel.figures.tuned import LABELS, RATES, READINGS, SEED, SPREADS, tuned_line


def score(line: FigureLine) -> float:
    """The mean accuracy over the window; 0 if the run diverged."""
    track = read(line, SEED)
    assert line.until is not None
    return 0.0 if track.diverged else track.average("accuracy", "seconds", line.until)


def main() -> None:
    found = {
        (reading, label, spread, rate): tuned_line(
            setting("mnist", "quick", reading), label, spread, rate
        )
        for reading in READINGS
        for label in LABELS
        for spread in SPREADS
        for rate in RATES
    }
    unique = {cache.key(seeded(each.trained, SEED)): each for each in found.values()}
    list(Carrying({k: seeded(each.trained, SEED) for k, each in unique.items()}, 1))
    for reading in READINGS:
        for label in LABELS:
            scores = [[score(found[reading, label, s, r]) for r in RATES] for s in SPREADS]
            best = [RATES[row.index(max(row))] for row in scores]
            told = "; ".join(" ".join(f"{each:.4f}" for each in row) for row in scores)
            print(f'    ("{reading}", "{label}"): ({", ".join(map(str, best))}),  # {told}')


if __name__ == "__main__":
    main()
