"""The bias of asynchronous training as printed, and what repairs it."""

from sdfeel.figures.figure import Claim, Figure, Panel
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.race import below_at_the_end
from sdfeel.figures.settings import FigureSetting, async_sd_feel, devices, sd_feel

PAPER, BALANCED, SYNC = "asynchronous, as printed", "asynchronous, balanced", "synchronous"


def bias_lines(setting: FigureSetting) -> list[FigureLine]:
    """Clusters of 2 to 8 clients, fast devices together: what the printed mixing is worst at."""
    uneven = ("network.imbalance=3", devices(10), "devices.placement=clustered")
    length = 2 * setting.iterations
    common = (*uneven, f"training.iterations={length}", "evaluation.every=20")
    theta = max(5, setting.theta_min // 5)
    make = setting.experiment
    return [
        FigureLine(SYNC, make(*sd_feel(theta, 1, 1), *uneven, f"training.iterations={length}")),
        FigureLine(PAPER, make(*async_sd_feel(theta), *common)),
        FigureLine(BALANCED, make(*async_sd_feel(theta, balanced=True), *common)),
    ]


FIGURE = Figure(
    "async-bias",
    "The bias of asynchronous training, and its repair",
    "mnist",
    "Clusters of 2 to 8 clients (gamma = 3), the fastest device 10 times the slowest, fast "
    "devices together in some clusters. The same number of local iterations for all.",
    bias_lines,
    (Panel("loss", "iterations"),),
    readings=("A",),
    claims=(
        Claim(
            "B6",
            "As printed, asynchronous training ends with a higher training loss than synchronous "
            "training with as many iterations.",
            below_at_the_end(SYNC, PAPER),
            note="The printed mixing keeps the plain mean of the servers' models, not the mean "
            "weighted by their clusters' data, and fast clusters count more often.",
        ),
        Claim(
            "B7",
            "Balanced mixing ends with a lower training loss than the printed mixing.",
            below_at_the_end(BALANCED, PAPER),
            note="`scheme.balanced = true` keeps the weighted mean. It repairs the weighting by "
            "size, not the one by speed.",
        ),
    ),
)
