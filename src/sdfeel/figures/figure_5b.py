"""Figure 5(b): test accuracy against time on CIFAR-10, the runs of figure 4(b)."""

from dataclasses import replace

from sdfeel.figures import figure_5a
from sdfeel.figures.race import race
from sdfeel.figures.settings import SCALES

FIGURE = replace(
    figure_5a.FIGURE,
    name="5b",
    title="Test accuracy against time on CIFAR-10",
    data="cifar10",
    caption="As figure 4(b).",
    scales=SCALES,
    lines=lambda setting: race(setting, 2, 5),
)
