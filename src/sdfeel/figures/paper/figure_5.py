"""Figure 5: test accuracy against time on MNIST (a) and on CIFAR-10 (b), the runs of figure 4."""

from dataclasses import replace

from sdfeel.figures.figure import Claim, Figure, both
from sdfeel.figures.paper.figure_4 import COINCIDE, printed_rate
from sdfeel.figures.paper.race import (
    ALL,
    CELL,
    FEEL,
    FEW,
    PRINTED,
    SAVING,
    SD,
    race,
    soonest,
    unreached,
    unusable,
)
from sdfeel.figures.settings import SCALES

TARGETS = (
    "Targets: 90 % on MNIST, 60 % on CIFAR-10, 70 % on Fashion-MNIST, 90 % at quick scale, 50 % at "
    "small scale."
)
UNUSABLE = (
    "The paper calls both unusable: an accuracy below 70 % (CIFAR-10: 40 %) at the end of the time."
)
CLAIMS = (
    Claim(
        "5.1",
        "SD-FEEL reaches the target accuracy before HierFAVG, FedAvg and FEEL.",
        soonest(),
        timed=True,
        note=f"{TARGETS} {COINCIDE}",
        otherwise="Where the data are easy, five clients drawn afresh from all 50 learn nearly as "
        "fast per iteration, and FEEL's rounds are the cheapest.",
    ),
    Claim(
        "5.1b",
        "SD-FEEL saves substantial time: at least a fifth of what each of the others needs.",
        soonest(SAVING),
        timed=True,
    ),
    Claim(
        "5.2",
        "FedAvg does not reach the target within the window.",
        unreached(FEW),
        timed=True,
    ),
    Claim(
        "5.2b",
        "FEEL does not reach the target within the window.",
        unreached(FEEL),
        timed=True,
        otherwise="With 5 of 50 clients drawn afresh in every round it learns less steadily, but "
        "it passes the target now and then.",
    ),
    Claim(
        "5.3", "FedAvg's model is unusable at the end.", unusable(FEW), timed=True, note=UNUSABLE
    ),
    Claim("5.3b", "FEEL's model is unusable at the end.", unusable(FEEL), timed=True),
)
PANELS = both("accuracy", "seconds", *PRINTED, target=True)
FIGURE = Figure(
    "5a",
    "Test accuracy against time on MNIST",
    "mnist",
    "As figure 4(a); dotted: the target, and when each line first reaches it, in the mean. Below: "
    "other readings of FedAvg and FEEL.",
    lambda setting: race(setting, 5, 1),
    (*PANELS, *both("accuracy", "seconds", SD, ALL, CELL)),
    CLAIMS,
)
FIGURE_AT_PRINTED_RATE = replace(
    FIGURE,
    name="5a-rate",
    title="Test accuracy against time on MNIST: a batch at the printed learning rate",
    caption="As figure 4(a), an iteration is a batch as in reading A, at 0.001 as printed.",
    lines=lambda setting: race(printed_rate(setting), 5, 1),
    panels=PANELS[:1],
    readings=("A",),
)
FIGURE_ON_FASHION = replace(
    FIGURE,
    name="5a-fashion",
    title="Test accuracy against time on Fashion-MNIST",
    scales=("full",),  # at quick scale it would be 5a
    data="fashion-mnist",
    caption="As figure 4(a). Not in the paper: Fashion-MNIST instead of MNIST.",
    panels=PANELS[:1],
    readings=("A",),
)
FIGURE_ON_CIFAR = replace(
    FIGURE,
    name="5b",
    title="Test accuracy against time on CIFAR-10",
    data="cifar10",
    caption="As figure 4(b).",
    scales=SCALES,
    lines=lambda setting: race(setting, 2, 5),
    panels=PANELS[:1],
    readings=("A",),
)
