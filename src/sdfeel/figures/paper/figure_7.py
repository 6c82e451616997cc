"""Figure 7: how often edge servers average, against iterations (a) and time (b)."""

from itertools import pairwise

from sdfeel.figures.figure import Claim, ClaimView, Figure, Judge, Panel
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.race import window
from sdfeel.figures.settings import SCALES, FigureSetting, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, any_of, more

TAU1 = {tau1: f"tau1 = {tau1}, tau2 = 1" for tau1 in (1, 3, 5, 20)}
TAU2 = {tau2: f"tau1 = 5, tau2 = {tau2}" for tau2 in (1, 2, 5)}
PRINTED = tuple(TAU1[tau1] for tau1 in (1, 3, 20))


def lines(setting: FigureSetting) -> list[FigureLine]:
    """As many iterations for all, and more where tau = (5, 1) would need longer for them."""
    until = setting.iterations * setting.pace(5)
    exchange = setting.model_seconds(50.0)

    def line(label: str, tau1: int, tau2: int) -> FigureLine:
        needed = setting.lasting(until, setting.pace(tau1, exchange / tau2), tau1)
        length = max(setting.iterations, needed)
        iterations = f"training.iterations={length}"
        return FigureLine(label, setting.experiment(*sd_feel(tau1, tau2, 1), iterations))

    found = {TAU1[tau1]: line(TAU1[tau1], tau1, 1) for tau1 in TAU1}
    found |= {TAU2[tau2]: line(TAU2[tau2], 5, tau2) for tau2 in TAU2}
    return list(found.values())


def worse(labels: tuple[str, ...]) -> Judge:
    """The loss per iteration rises along `labels`."""

    def judge(seen: ClaimView) -> Verdict:
        t = window(seen, *labels)
        means = {label: seen[label].average("loss", seen.axis, t) for label in labels}
        parts = [more(means[late], means[soon], "loss") for soon, late in pairwise(labels)]
        return all_of(parts).with_numbers(**{k: float(v.mean()) for k, v in means.items()})

    return judge


def not_the_best(labels: tuple[str, ...]) -> Judge:
    """Some later label has a lower loss than the first at equal time."""

    def judge(seen: ClaimView) -> Verdict:
        t = window(seen, *labels)
        means = {label: seen[label].average("loss", seen.axis, t) for label in labels}
        parts = [more(means[labels[0]], means[label], "loss") for label in labels[1:]]
        return any_of(parts).with_numbers(**{k: float(v.mean()) for k, v in means.items()})

    return judge


def worse_in_the_end(seen: ClaimView) -> Verdict:
    """The last loss rises along the printed values."""
    t = window(seen, *PRINTED)
    ends = {label: seen[label].at("loss", seen.axis, t) for label in PRINTED}
    parts = [more(ends[late], ends[soon], "loss") for soon, late in pairwise(PRINTED)]
    return all_of(parts).with_numbers(**{k: float(v.mean()) for k, v in ends.items()})


CLAIMS = (
    Claim(
        "7a.1",
        "Per iteration, the loss is lowest with tau1 = 1, then 3, then 20: over the whole window.",
        worse(PRINTED),
        note="What is compared is the mean training loss over the window, without its first tenth.",
        otherwise="The CNN begins with a plateau, and models that take several steps of their own "
        "before they are averaged leave it sooner: tau1 = 1 is the last to come down, and has the "
        "lowest loss only from about 450 iterations on. The perceptron on digits has no plateau.",
    ),
    Claim(
        "7a.1b",
        "Per iteration, the loss is lowest with tau1 = 1, then 3, then 20: at the end.",
        worse_in_the_end,
    ),
    Claim(
        "7b.1",
        "Per second, tau1 = 1 is not the best: some larger tau1 is better.",
        not_the_best(PRINTED),
        timed=True,
    ),
    Claim(
        "7b.2",
        "tau2 behaves the same way: per iteration, the loss is lowest with tau2 = 1, then 2, then "
        "5.",
        worse(tuple(TAU2.values())),
        note="The paper says so without showing it.",
    ),
    Claim(
        "7b.3",
        "tau2 behaves the same way: per second, some tau2 above 1 is better than 1.",
        not_the_best(tuple(TAU2.values())),
        timed=True,
        otherwise="An exchange between servers is ten times faster than a client's upload, so "
        "skipping it saves under a tenth of the time, while the servers drift apart.",
    ),
)
OWN = (TAU1[5], TAU2[2], TAU2[5])  # not in the paper's figure: tau2, at another tau1
PANELS = tuple(
    panel
    for reading in ("A", "E")
    for panel in (
        Panel("loss", "iterations", PRINTED, reading),
        Panel("loss", "seconds", PRINTED, reading),
        Panel("loss", "seconds", OWN, reading, title="tau2"),
    )
)
FIGURE = Figure(
    "7",
    "How often to average, per iteration and per second, on MNIST",
    "mnist",
    "alpha = 1, ring. The paper's text says MNIST, its caption CIFAR-10: this figure is MNIST, and "
    "7-cifar is CIFAR-10.",
    lines,
    PANELS,
    CLAIMS,
)
FIGURE_ON_CIFAR = Figure(
    "7-cifar",
    "How often to average, per iteration and per second, on CIFAR-10",
    "cifar10",
    "alpha = 1, ring.",
    lines,
    PANELS[:3],
    CLAIMS,
    scales=SCALES,
    readings=("A",),
)
