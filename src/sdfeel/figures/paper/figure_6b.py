"""Figure 6(b): CIFAR-10 accuracy against time for several gossips, tau = (2, 1)."""

from sdfeel.figures.figure import Claim, ClaimView, Figure, both
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.race import window
from sdfeel.figures.settings import SCALES, FigureSetting, hierfavg, sd_feel
from sdfeel.figures.verdicts import Verdict, any_of, more

RING, FULL, HIER = "ring, alpha 1", "fully connected, alpha 1", "HierFAVG"
MORE = {alpha: f"ring, alpha {alpha}" for alpha in (5, 10)}


def lines(setting: FigureSetting) -> list[FigureLine]:
    make = setting.experiment
    return [
        FigureLine(RING, make(*sd_feel(2, 1, 1))),
        *(FigureLine(label, make(*sd_feel(2, 1, alpha))) for alpha, label in MORE.items()),
        FigureLine(FULL, make(*sd_feel(2, 1, 1), "network.graph=complete")),
        FigureLine(HIER, make(*hierfavg(2, 1))),
    ]


def full_is_faster(seen: ClaimView) -> Verdict:
    t = window(seen)
    means = {label: seen[label].average("accuracy", seen.axis, t) for label in (FULL, RING, HIER)}
    verdict = more(means[FULL], means[RING], "accuracy")
    return verdict.with_numbers(**{label: float(each.mean()) for label, each in means.items()})


def exchanges_help(seen: ClaimView) -> Verdict:
    t = window(seen)
    base = seen[RING].average("accuracy", seen.axis, t)
    means = {label: seen[label].average("accuracy", seen.axis, t) for label in MORE.values()}
    numbers = {label: float(each.mean()) for label, each in means.items()}
    parts = [more(each, base, "accuracy") for each in means.values()]
    return any_of(parts).with_numbers(**{RING: float(base.mean())}, **numbers)


FIGURE = Figure(
    "6b",
    "CIFAR-10 accuracy against time for several gossips",
    "cifar10",
    "tau1 = 2, tau2 = 1, 50 Mbit/s between servers. The caption fixes alpha = 1, but the text "
    "mentions several: ring with alpha 1, 5 and 10, and the fully connected graph.",
    lines,
    both("accuracy"),
    (
        Claim(
            "6b.1",
            "With one exchange, the ring is slower than the fully connected graph.",
            full_is_faster,
            timed=True,
            note="What is compared is the mean accuracy over the window, without its first tenth.",
        ),
        Claim(
            "6b.2",
            "More exchanges on the ring close that gap: some alpha above 1 beats alpha 1.",
            exchanges_help,
            timed=True,
            otherwise="Each exchange takes time, and gossip every two iterations keeps the servers "
            "close enough already: what better mixing gains is less than what it costs.",
        ),
    ),
    scales=SCALES,
)
