"""Figure 6: accuracy against time for rates between servers (a) and for several gossips (b)."""

from itertools import pairwise

from sdfeel.experiment.schema import Experiment
from sdfeel.figures.figure import Claim, ClaimView, Figure, both
from sdfeel.figures.lines import FigureLine, changed
from sdfeel.figures.paper.race import ahead, window
from sdfeel.figures.settings import SCALES, FigureSetting, hierfavg, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, any_of, more

HIER = "HierFAVG"
RATES = {mbps: f"SD-FEEL, {mbps} Mbit/s" for mbps in (10, 50, 200)}


def lines_6a(setting: FigureSetting) -> list[FigureLine]:
    """All end when SD-FEEL at 50 Mbit/s has taken the setting's iterations."""
    until = setting.iterations * setting.pace(1)

    def make(between: float, *scheme: str) -> Experiment:
        length = setting.lasting(until, setting.pace(1, between), 1)
        return setting.experiment(*scheme, f"training.iterations={length}")

    own = make(setting.model_seconds(max(RATES)), *sd_feel(1, 1, 1))
    found = [
        FigureLine(label, own, changed(own, f"latency.server_server_mbps={mbps}"), until)
        for mbps, label in RATES.items()
    ]
    cloud = make(setting.model_seconds(5.0), *hierfavg(1, 1))
    return [*found, FigureLine(HIER, cloud, until=until)]


def faster_links_help(seen: ClaimView) -> Verdict:
    t = window(seen)
    means = {label: seen[label].average("accuracy", seen.axis, t) for label in RATES.values()}
    parts = [more(means[high], means[low], "accuracy") for low, high in pairwise(RATES.values())]
    return all_of(parts).with_numbers(
        **{label: float(each.mean()) for label, each in means.items()}
    )


FIGURE_6A = Figure(
    "6a",
    "MNIST accuracy against time for three rates between servers",
    "mnist",
    "tau1 = tau2 = 1, alpha = 1, ring; 10, 50 and 200 Mbit/s between servers.",
    lines_6a,
    both("accuracy", "seconds"),
    (
        Claim(
            "6a.1",
            "At equal time, the accuracy rises with the rate between servers.",
            faster_links_help,
            timed=True,
            note="What is compared is the mean accuracy over the window, without its first tenth.",
            otherwise="Where computing takes much of the time (E), a faster link saves too little "
            "to be seen beyond the noise of the seeds.",
        ),
        Claim(
            "6a.2",
            "At 10 Mbit/s SD-FEEL is behind HierFAVG.",
            ahead(HIER, RATES[10]),
            timed=True,
            otherwise="An iteration of SD-FEEL is cheaper than HierFAVG's even at 10 Mbit/s, "
            "because HierFAVG sends to the cloud at 5. SD-FEEL could fall behind only if the ring "
            "needed a third more iterations, and with gossip after every step it needs hardly any.",
        ),
        Claim(
            "6a.3",
            "At 200 Mbit/s SD-FEEL is ahead of HierFAVG.",
            ahead(RATES[200], HIER),
            timed=True,
        ),
    ),
)


RING, FULL, HIER_ON_CIFAR = "ring, alpha 1", "fully connected, alpha 1", "HierFAVG"
MORE = {alpha: f"ring, alpha {alpha}" for alpha in (5, 10)}


def lines_6b(setting: FigureSetting) -> list[FigureLine]:
    """All end when the ring with one exchange has taken the setting's iterations."""
    until = setting.iterations * setting.pace(2)
    exchange, cloud = setting.model_seconds(50.0), setting.model_seconds(5.0)

    def line(label: str, between: float, *scheme: str) -> FigureLine:
        length = setting.lasting(until, setting.pace(2, between), 2)
        own = setting.experiment(*scheme, f"training.iterations={length}")
        return FigureLine(label, own, until=until)

    return [
        line(RING, exchange, *sd_feel(2, 1, 1)),
        *(line(label, a * exchange, *sd_feel(2, 1, a)) for a, label in MORE.items()),
        line(FULL, exchange, *sd_feel(2, 1, 1), "network.graph=complete"),
        line(HIER_ON_CIFAR, cloud, *hierfavg(2, 1)),
    ]


def full_is_faster(seen: ClaimView) -> Verdict:
    t = window(seen)
    means = {
        label: seen[label].average("accuracy", seen.axis, t)
        for label in (FULL, RING, HIER_ON_CIFAR)
    }
    verdict = more(means[FULL], means[RING], "accuracy")
    return verdict.with_numbers(**{label: float(each.mean()) for label, each in means.items()})


def exchanges_help(seen: ClaimView) -> Verdict:
    t = window(seen)
    base = seen[RING].average("accuracy", seen.axis, t)
    means = {label: seen[label].average("accuracy", seen.axis, t) for label in MORE.values()}
    numbers = {label: float(each.mean()) for label, each in means.items()}
    parts = [more(each, base, "accuracy") for each in means.values()]
    return any_of(parts).with_numbers(**{RING: float(base.mean())}, **numbers)


FIGURE_6B = Figure(
    "6b",
    "CIFAR-10 accuracy against time for several gossips",
    "cifar10",
    "tau1 = 2, tau2 = 1, 50 Mbit/s between servers. The caption fixes alpha = 1, but the text "
    "mentions several: ring with alpha 1, 5 and 10, and the fully connected graph.",
    lines_6b,
    both("accuracy", "seconds")[:1],
    (
        Claim(
            "6b.1",
            "With one exchange, the ring is slower than the fully connected graph.",
            full_is_faster,
            timed=True,
            note="What is compared is the mean accuracy over the window, without its first tenth.",
        ),
        Claim(
            "6b.3",
            "At equal time, SD-FEEL on the fully connected graph is ahead of HierFAVG.",
            ahead(FULL, HIER_ON_CIFAR),
            timed=True,
            note="The paper's third remark says that this is always so.",
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
    readings=("A",),
)
