"""Do the verdicts on tiers depend on the setting? Other rounds, graphs, clusters and data.

Each scheme keeps the rate that was chosen for `tiers-tuned` at H = 4, where computing takes time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sdfeel.figures.beyond.asynchrony import TIERS
from sdfeel.figures.beyond.tiers_tuned import (
    FEWER,
    INSTEAD,
    MARGINS,
    ONE,
    SEED,
    TRIALS,
    WHOM,
    chosen,
    lines,
    no_worse,
    on_trial,
    tiers_ahead,
    tuned_line,
)
from sdfeel.figures.figure import Claim, Figure, Panel
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.figure_10 import STATISTICS, VANILLA
from sdfeel.figures.settings import FigureSetting

SPREAD = 4.0
LABELS = (*FEWER[:-1], ONE, TIERS)


@dataclass(frozen=True)
class Variation:
    """What is different from `tiers-tuned`."""

    title: str
    settings: tuple[str, ...] = ()
    theta_min: int = TRIALS["full"].theta_min


VARIATIONS: Mapping[str, Variation] = {
    "20": Variation("rounds of 20 batches", theta_min=20),
    "100": Variation("rounds of 100 batches", theta_min=100),
    "random": Variation("a random graph", ("network.graph=erdos-renyi",)),
    "unequal": Variation("unequal clusters", ("network.imbalance=3",)),
    "fashion": Variation("Fashion-MNIST", ("data.name=fashion-mnist",)),
}


def varied(made: FigureSetting) -> list[FigureLine]:
    """The lines of every variation."""
    found = []
    for each in VARIATIONS.values():
        own = replace(on_trial("full", made.reading), theta_min=each.theta_min)
        for label in LABELS:
            rate = chosen(made, label, SPREAD)
            line = tuned_line(own, label, SPREAD, rate, *each.settings)
            found.append(replace(line, label=f"{label}, {each.title}"))
    return found


def claims(name: str, title: str, where: str) -> list[Claim]:
    """Tiers against everything else, and what is simpler against tiers."""
    when = f"With {where},"
    return [
        tiers_ahead(f"S13-{name}", when, WHOM["S6"], title, STATISTICS),
        tiers_ahead(f"S14-{name}", when, WHOM["S8"], title),
        tiers_ahead(f"S15-{name}", when, WHOM["S7"], title),
        no_worse(f"S16-{name}", when, INSTEAD["S11"], title, MARGINS),
    ]


ON_MNIST = Figure(
    "tiers-review",
    "Servers in tiers: other rounds, graphs, clusters and data",
    "mnist",
    "As `tiers-tuned` under reading E at H = 4 (rounds of 50 batches, a ring, equal clusters, "
    "MNIST), each scheme at the rate that was chosen there, with one thing changed: 20 or 100 "
    "batches in a round of the slowest client; a random graph (Erdos-Renyi, another with every "
    "seed); clusters of 2, 5 and 8 clients (gamma = 3), where the constant weights are balanced; "
    "Fashion-MNIST.",
    varied,
    tuple(
        Panel(
            "accuracy",
            "seconds",
            tuple(f"{label}, {each.title}" for label in LABELS if label != VANILLA),
            "E",
            title=each.title,
        )
        for each in VARIATIONS.values()
    ),
    tuple(
        claim
        for name, each in VARIATIONS.items()
        for claim in (
            *claims(name, each.title, each.title),
            no_worse(
                f"S18-{name}",
                f"With {each.title},",
                INSTEAD["S12"],
                each.title,
                "Added, with its line, when `tiers-tuned` had shown it to be as good there.",
            ),
        )
    ),
    scales=("full",),
    readings=("E",),
)
ON_CIFAR = Figure(
    "tiers-cifar",
    "Servers in tiers on CIFAR-10 with a small model",
    "cifar10",
    "The small model of 10(b) at half its width, H = 4, where a batch costs its ten samples; each "
    f"scheme at the best of {', '.join(f'{rate:g}' for rate in TRIALS['small'].rates)} on seed "
    f"{SEED}, which is not judged. Rounds have 50 batches, and the window is 12 of them.",
    lines,
    (Panel("accuracy", "seconds", tuple(f"{label}, H = 4" for label in FEWER), title="H = 4"),),
    tuple(claims("cifar", "H = 4", "CIFAR-10")),
    scales=("small",),
    readings=("A",),
)
