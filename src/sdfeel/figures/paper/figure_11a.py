"""Figure 11(a): MNIST accuracy per iteration for five learning rates."""

from itertools import pairwise

import numpy as np

from sdfeel.figures.figure import Claim, ClaimView, Figure, Panel
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import FigureSetting, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, exactly, more

FACTORS = {0.01: "1e-4", 0.1: "1e-3", 1.0: "1e-2", 10.0: "0.1", 100.0: "1"}
LABELS = {factor: f"eta = {rate}" for factor, rate in FACTORS.items()}
SMALL = tuple(LABELS[factor] for factor in (0.01, 0.1, 1.0))
LARGE = tuple(LABELS[factor] for factor in (10.0, 100.0))
GUESSING = 0.15  # the accuracy of a model that has learnt nothing, and a little


def lines(setting: FigureSetting) -> list[FigureLine]:
    return [
        FigureLine(
            label,
            setting.experiment(
                *sd_feel(5, 1, 1), f"training.learning_rate={setting.rate * factor:.6g}"
            ),
        )
        for factor, label in LABELS.items()
    ]


def faster(seen: ClaimView) -> Verdict:
    t = min(seen[label].end("iterations") for label in SMALL)
    means = {label: seen[label].average("accuracy", "iterations", t) for label in SMALL}
    parts = [more(means[late], means[soon], "accuracy") for soon, late in pairwise(SMALL)]
    return all_of(parts).with_numbers(**{k: float(v.mean()) for k, v in means.items()})


def unstable(seen: ClaimView) -> Verdict:
    """Diverged, at chance, or three times as restless as 1e-2."""
    calm = np.mean([_restless(track.y["accuracy"]) for track in seen[SMALL[-1]].runs("iterations")])
    found = {}
    for label in LARGE:
        tracks = seen[label].runs("iterations")
        found[label] = sum(
            track.diverged
            or not np.isfinite(track.y["loss"][-1])
            or track.y["accuracy"][-1] <= GUESSING
            or _restless(track.y["accuracy"]) > 3 * calm
            for track in tracks
        )
    seeds = len(seen[LARGE[0]].runs("iterations"))
    most = max(found.values())
    numbers = {f"unstable runs, {label}": float(count) for label, count in found.items()}
    finals = {
        f"final accuracy, {label}": float(seen[label].last("accuracy").mean()) for label in LARGE
    }
    return exactly(most == seeds, float(most), "runs", **numbers, **finals)


def _restless(accuracy: "np.typing.NDArray[np.float64]") -> float:
    return float(np.std(accuracy[-8:]))


FIGURE = Figure(
    "11a",
    "MNIST accuracy per iteration for five learning rates",
    "mnist",
    "tau1 = 5, tau2 = 1, alpha = 1, ring. Quick scale: five times these rates, on digits.",
    lines,
    (Panel("accuracy", "iterations"),),
    (
        Claim(
            "11a.1",
            "Up to 0.01, a larger learning rate is faster: 1e-4, 1e-3, 1e-2.",
            faster,
            note="What is compared is the mean accuracy over the window, without its first tenth. "
            "The paper's other figures nevertheless use 1e-3.",
        ),
        Claim(
            "11a.2",
            "0.1 or 1 is unstable or diverges.",
            unstable,
            note="Unstable: it diverged, its accuracy is at most 15 %, or its last eight "
            "measurements scatter three times as much as those of 0.01.",
        ),
    ),
)
