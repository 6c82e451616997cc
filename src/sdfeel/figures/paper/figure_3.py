"""Figure 3: how fast four graphs of six servers agree."""

from typing import TYPE_CHECKING

import numpy as np

from sdfeel.core.graphs import links
from sdfeel.core.network import Network, clustered
from sdfeel.figures.figure import Claim, ClaimView, Figure, nothing
from sdfeel.figures.verdicts import Verdict, all_of, exactly

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

PRINTED = {"star": 0.71, "ring": 0.6, "partial": 0.33, "complete": 0.0}
ROUNDING = 0.005


def six(graph: str) -> Network:
    """Six servers with equal data."""
    return clustered(np.ones(6), range(6), links(graph, 6))


def as_printed(_: ClaimView) -> Verdict:
    """Each zeta rounds to the printed one."""
    parts = []
    for graph, printed in PRINTED.items():
        zeta = six(graph).zeta
        left = ROUNDING - abs(zeta - printed)
        parts.append(exactly(left >= 0, left, "zeta", **{graph: zeta}))
    return all_of(parts)


def picture(width: str | None = None) -> "Picture":
    """The four graphs, servers on a circle."""
    from sdfeel.report.drawing import FAINT, INK, TITLE, new_figure
    from sdfeel.report.styles import PALETTE

    small = width == "column"
    figure = new_figure(3.4, 3.6) if small else new_figure(10, 2.9)
    grid = figure.subplots(2, 2).ravel() if small else figure.subplots(1, 4)
    angles = np.linspace(0, 2 * np.pi, 6, endpoint=False) + np.pi / 2
    for axes, graph in zip(grid, PRINTED, strict=True):
        net, x, y = six(graph), np.cos(angles), np.sin(angles)
        if graph == "star":
            x, y = (
                np.append(0, np.cos(angles * 6 / 5)[:5]),
                np.append(0, np.sin(angles * 6 / 5)[:5]),
            )
        for a, b in net.edges:
            axes.plot([x[a], x[b]], [y[a], y[b]], color=FAINT, linewidth=1.2, zorder=1)
        axes.scatter(x, y, s=120, color=PALETTE[0], zorder=2)
        axes.set_title(f"{graph}: zeta {net.zeta:.3f}", fontsize=TITLE, color=INK)
        axes.set(aspect="equal", xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))
        axes.set_axis_off()
    return figure


FIGURE = Figure(
    "3",
    "How fast four graphs of six servers agree",
    "",
    "Six servers with equal data.",
    nothing,
    (),
    (
        Claim(
            "3.1",
            "zeta is 0.71 for the star, 0.60 for the ring, 0.33 for the partially connected graph "
            "and 0 for the fully connected one.",
            as_printed,
            note="The paper does not define its partially connected graph. Of the 112 connected "
            "graphs of six servers seven have a zeta that rounds to 0.33; the natural one joins "
            "each server of one half to all of the other.",
        ),
    ),
    picture,
)
