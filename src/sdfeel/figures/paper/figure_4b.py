"""Figure 4(b): training loss against time on CIFAR-10, tau = (2, 1), alpha = 5."""

from dataclasses import replace

from sdfeel.figures.paper import figure_4a
from sdfeel.figures.paper.race import race
from sdfeel.figures.settings import SCALES

FIGURE = replace(
    figure_4a.FIGURE,
    name="4b",
    title="Training loss against time on CIFAR-10",
    data="cifar10",
    caption="tau1 = 2, tau2 = 1, alpha = 5, ring of 10 servers, 50 clients, Dirichlet 0.5. "
    "Reduced: 10 clients, one in each cell, so that a tenth, and one cell, are a single client, "
    "which is harder on FedAvg and FEEL than five.",
    lines=lambda setting: race(setting, 2, 5),
    scales=SCALES,
    claims=tuple(claim for claim in figure_4a.CLAIMS if claim.id != "4.4"),
)
