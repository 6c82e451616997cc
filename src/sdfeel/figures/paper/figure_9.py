"""Figure 9: how uneven data slow training down, tau = (5, 1), alpha = 1."""

from collections.abc import Callable
from itertools import pairwise

from sdfeel.figures.effect_sizes import MUCH
from sdfeel.figures.figure import Claim, ClaimView, Figure, Judge, both
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.race import ahead, window
from sdfeel.figures.settings import SCALES, FigureSetting, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, more

CLASSES = {f"data.classes_per_client={c}": f"c = {c}" for c in (1, 2, 5, 10)}
DIRICHLET = {f"data.concentration={b}": f"b = {b}" for b in (0.1, 0.5, 1.0, 10.0)}


def lines(choices: dict[str, str]) -> Callable[[FigureSetting], list[FigureLine]]:
    def make(setting: FigureSetting) -> list[FigureLine]:
        return [
            FigureLine(label, setting.experiment(*sd_feel(5, 1, 1), choice))
            for choice, label in choices.items()
        ]

    return make


def rising(labels: tuple[str, ...]) -> Judge:
    """The accuracy over the window rises along `labels`."""

    def judge(seen: ClaimView) -> Verdict:
        t = window(seen)
        means = {label: seen[label].average("accuracy", seen.axis, t) for label in labels}
        parts = [more(means[late], means[soon], "accuracy") for soon, late in pairwise(labels)]
        return all_of(parts).with_numbers(**{k: float(v.mean()) for k, v in means.items()})

    return judge


def rising_in_the_end(labels: tuple[str, ...]) -> Judge:
    """The accuracy at the end of the window rises along `labels`."""

    def judge(seen: ClaimView) -> Verdict:
        t = window(seen)
        ends = {label: seen[label].at("accuracy", seen.axis, t) for label in labels}
        parts = [more(ends[late], ends[soon], "accuracy") for soon, late in pairwise(labels)]
        return all_of(parts).with_numbers(**{k: float(v.mean()) for k, v in ends.items()})

    return judge


NOTE = "What is compared is the mean accuracy over the window, without its first tenth."
FIGURE_9A = Figure(
    "9a",
    "MNIST accuracy against time for several numbers of classes per client",
    "mnist",
    "tau1 = 5, tau2 = 1, alpha = 1, equal devices; c classes per client (our values).",
    lines(CLASSES),
    both("accuracy", "seconds"),
    (
        Claim(
            "9a.1",
            "The more classes a client holds, the faster: c = 10, 5, 2, 1.",
            rising(tuple(CLASSES.values())),
            timed=True,
            note=NOTE,
            otherwise="The CNN begins with a plateau, and clients of two classes leave it sooner "
            "than clients of five or ten (their steps are probably larger there). Later the order "
            "reverses, except for c = 5 and 10, which end within a point of each other; c = 1 ends "
            "lowest everywhere. The perceptron on digits has no such plateau.",
        ),
        Claim(
            "9a.1b",
            "At the end of the window, the accuracy is higher the more classes a client holds.",
            rising_in_the_end(tuple(CLASSES.values())),
            timed=True,
            otherwise="c = 5 and c = 10 are within the noise of the seeds.",
        ),
        Claim(
            "9a.1c",
            "At the end of the window, c = 5 is ahead of c = 2, and c = 2 of c = 1.",
            rising_in_the_end(tuple(CLASSES.values())[:3]),
            timed=True,
        ),
    ),
)
FIGURE_9B = Figure(
    "9b",
    "CIFAR-10 accuracy against time for several Dirichlet concentrations",
    "cifar10",
    "tau1 = 5, tau2 = 1, alpha = 1 as in the caption, equal devices; our concentrations.",
    lines(DIRICHLET),
    both("accuracy", "seconds")[:1],
    (
        Claim(
            "9b.1",
            "The smaller the concentration, the slower: b = 0.1, 0.5, 1, 10.",
            rising(tuple(DIRICHLET.values())),
            timed=True,
            note=NOTE,
            otherwise="Neighbouring concentrations lie within the noise of the seeds.",
        ),
        Claim(
            "9b.2",
            "A small concentration slows training significantly: b = 0.1 is three points or more "
            "below b = 10.",
            ahead("b = 10.0", "b = 0.1", by=MUCH.size),
            timed=True,
            note=NOTE,
        ),
    ),
    scales=SCALES,
    readings=("A",),
)
