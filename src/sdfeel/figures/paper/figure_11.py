"""Figure 11: MNIST accuracy per iteration for learning rates (a) and unequal clusters (b)."""

from itertools import pairwise

import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.figures.effect_sizes import SIMILAR, UNSTABLE
from sdfeel.figures.figure import Claim, ClaimView, Figure, Judge, both
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import FigureSetting, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, close, each, more

FACTORS = {0.01: "1e-4", 0.1: "1e-3", 1.0: "1e-2", 10.0: "0.1", 100.0: "1"}
LABELS = {factor: f"eta = {rate}" for factor, rate in FACTORS.items()}
SMALL = tuple(LABELS[factor] for factor in (0.01, 0.1, 1.0))
LARGE = tuple(LABELS[factor] for factor in (10.0, 100.0))
GUESSING = 0.15  # the accuracy of a model that has learnt nothing, and a little


def lines_11a(setting: FigureSetting) -> list[FigureLine]:
    """The printed rates; on digits, five times as large."""
    base = 0.05 if setting.scale == "quick" else 0.01
    return [
        FigureLine(
            label,
            setting.experiment(*sd_feel(5, 1, 1), f"training.learning_rate={base * factor:.6g}"),
        )
        for factor, label in LABELS.items()
    ]


def faster(seen: ClaimView) -> Verdict:
    t = min(seen[label].end("iterations") for label in SMALL)
    means = {label: seen[label].average("accuracy", "iterations", t) for label in SMALL}
    parts = [more(means[late], means[soon], "accuracy") for soon, late in pairwise(SMALL)]
    return all_of(parts).with_numbers(**{k: float(v.mean()) for k, v in means.items()})


def unstable(label: str) -> Judge:
    """Diverged, at chance, or three times as restless as 1e-2, in every seed."""

    def judge(seen: ClaimView) -> Verdict:
        calm = np.mean([_restless(track.y["accuracy"]) for track in seen[SMALL[-1]].runs])
        flags = [
            track.diverged
            or not np.isfinite(track.y["loss"][-1])
            or track.y["accuracy"][-1] <= GUESSING
            or _restless(track.y["accuracy"]) > UNSTABLE.size * calm
            for track in seen[label].runs
        ]
        ends = {
            f"final accuracy, {one}": seen[one].typical("accuracy") for one in (SMALL[-1], label)
        }
        return each([bool(flag) for flag in flags]).with_numbers(
            unstable=float(sum(flags)), diverged=float(seen[label].diverged), **ends
        )

    return judge


def best(seen: ClaimView) -> Verdict:
    """0.01 ends at least as high as 0.1, as it must if 0.1 fails."""
    one, other = seen[SMALL[-1]], seen[LARGE[0]]
    numbers = {each.label: each.typical("accuracy") for each in (one, other)}
    return more(one.last("accuracy"), other.last("accuracy"), "accuracy").with_numbers(**numbers)


def _restless(accuracy: "np.typing.NDArray[np.float64]") -> float:
    return float(np.std(accuracy[-8:]))


FIGURE_11A = Figure(
    "11a",
    "MNIST accuracy per iteration for five learning rates",
    "mnist",
    "tau1 = 5, tau2 = 1, alpha = 1, ring. At quick scale the rates are five times as large as the "
    "labels say.",
    lines_11a,
    both("accuracy", "iterations"),
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
            "With 0.1 training is unstable or diverges.",
            unstable(LARGE[0]),
            note="Unstable: it diverged, its accuracy is at most 15 %, or its last eight "
            "measurements scatter three times as much as those of 0.01.",
        ),
        Claim("11a.3", "With 1 training is unstable or diverges.", unstable(LARGE[1])),
        Claim("11a.4", "0.01 ends higher than 0.1.", best),
    ),
)


GAMMAS = {gamma: f"gamma = {gamma}" for gamma in (0, 1, 2, 3)}


def lines_11b(setting: FigureSetting) -> list[FigureLine]:
    return [
        FigureLine(label, setting.experiment(*sd_feel(5, 1, 1), f"network.imbalance={gamma}"))
        for gamma, label in GAMMAS.items()
    ]


def iterations_needed(seen: ClaimView, gamma: int) -> Floats:
    """(seeds,) iterations to nine tenths of each run's final accuracy."""
    tracks = seen[GAMMAS[gamma]].runs
    return np.array([t.reach(0.9 * t.y["accuracy"][-1], "iterations") for t in tracks])


def alike(seen: ClaimView) -> Verdict:
    need = {gamma: iterations_needed(seen, gamma) for gamma in GAMMAS}
    within = SIMILAR.size * float(need[0].mean())
    parts = [close(need[gamma], need[0], within, "iterations") for gamma in (1, 2)]
    return all_of(parts).with_numbers(**{GAMMAS[g]: float(v.mean()) for g, v in need.items()})


def slower(seen: ClaimView) -> Verdict:
    one, other = iterations_needed(seen, 3), iterations_needed(seen, 0)
    numbers = {GAMMAS[3]: float(one.mean()), GAMMAS[0]: float(other.mean())}
    return more(one, (1 + SIMILAR.size) * other, "iterations").with_numbers(**numbers)


def same_end(seen: ClaimView) -> Verdict:
    ends = {gamma: seen[label].last("accuracy") for gamma, label in GAMMAS.items()}
    parts = [close(ends[g], ends[0], seen.setting.close, "accuracy") for g in (1, 2, 3)]
    return all_of(parts).with_numbers(**{GAMMAS[g]: float(v.mean()) for g, v in ends.items()})


FIGURE_11B = Figure(
    "11b",
    "MNIST accuracy per iteration with clusters of unequal size",
    "mnist",
    "tau1 = 5, tau2 = 1, alpha = 1. Four clusters of 5 clients, three of 5 - gamma, three of "
    "5 + gamma, in this order around the ring (the paper does not say).",
    lines_11b,
    both("accuracy", "iterations"),
    (
        Claim(
            "11b.1",
            "Up to gamma = 2, training is about as fast: iterations to 90 % of the final "
            "accuracy within 25 % of gamma = 0.",
            alike,
        ),
        Claim(
            "11b.2",
            "With gamma = 3, training is clearly slower: over 25 % more iterations.",
            slower,
            otherwise="The ring's zeta does grow from 0.826 to 0.927, but after every fifth "
            "iteration the servers gossip, and the mean of their models hardly feels it.",
        ),
        Claim(
            "11b.3",
            "All gammas end at the same accuracy, within one point.",
            same_end,
            otherwise="With a constant step the bias grows with gamma.",
        ),
    ),
)
