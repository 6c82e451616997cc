"""Figure 5(b): test accuracy against time on CIFAR-10, the runs of figure 4(b)."""

from dataclasses import replace

from sdfeel.figures.figure import Claim
from sdfeel.figures.paper import figure_5a
from sdfeel.figures.paper.race import race
from sdfeel.figures.settings import SCALES

EASY = (
    "A few clients at a time learn digits nearly as fast as all of them, and FEEL's rounds are the "
    "cheapest; on CIFAR-10 a few learn next to nothing."
)


def on_cifar(claim: Claim) -> Claim:
    """Digits stand in for MNIST in this race, not for CIFAR-10."""
    return replace(claim, beyond_quick=claim.beyond_quick or EASY)


FIGURE = replace(
    figure_5a.FIGURE,
    name="5b",
    title="Test accuracy against time on CIFAR-10",
    data="cifar10",
    caption="As figure 4(b).",
    scales=SCALES,
    claims=tuple(on_cifar(claim) for claim in figure_5a.CLAIMS),
    lines=lambda setting: race(setting, 2, 5),
)
