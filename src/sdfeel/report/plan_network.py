"""The network of a plan: where the servers are, and which links or devices hold rounds up."""

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.network import clustered
from sdfeel.planning.result import Improvement, Plan, Site
from sdfeel.report.drawing import FAINT, INK, LABEL, TICK, TITLE, new_figure
from sdfeel.report.topology import layout
from sdfeel.report.units import percent

SLOW, PLAIN = "#D55E00", "#0072B2"
NAMED = 30  # servers whose names have room


def network_picture(plan: Plan) -> Figure:
    """Servers at their places; what would gain most is drawn thick, and told below."""
    site = plan.site
    assert site is not None
    figure = new_figure(8.0, 6.4)
    axes = figure.subplots()
    points = _points(site)
    for a, b in site.edges:
        gain = _gain(plan.improvements, {a, b})
        axes.plot(
            *points[[a, b]].T,
            color=SLOW if gain else FAINT,
            linewidth=1.2 + 6 * gain,
            zorder=1,
        )
    gains = [_gain(plan.improvements, {d}) for d in range(site.servers)]
    axes.scatter(
        points[:, 0],
        points[:, 1],
        s=[70 + 500 * gain for gain in gains],
        c=[SLOW if gain else PLAIN for gain in gains],
        edgecolors="white",
        zorder=2,
    )
    if site.servers <= NAMED:
        for d, (x, y) in enumerate(points.tolist()):
            name = site.names[d] if d < len(site.names) else str(d)
            axes.annotate(
                name,
                (x, y),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=TICK,
                color=INK,
                zorder=3,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
            )
    axes.margins(0.12)
    axes.set_aspect("equal")
    axes.set_axis_off()
    title = plan.rows[0].label if plan.rows else "the network"
    axes.set_title(title, fontsize=TITLE, color=INK)
    lines = [f"{percent(each.gain)} less time: {each.what}" for each in plan.improvements]
    told = "\n".join(lines) or "nothing gains by itself"
    figure.supxlabel(f"twice as good, one at a time:\n{told}", fontsize=LABEL, color=INK)
    return figure


def _points(site: Site) -> Floats:
    links = np.zeros((site.servers, site.servers))
    for a, b in site.edges:
        links[a, b] = links[b, a] = 1
    net = clustered(np.ones(site.servers), range(site.servers), links)
    found = layout(replace(net, places=site.places))
    return floats([found[d] for d in range(site.servers)])


def _gain(found: tuple[Improvement, ...], servers: set[int]) -> float:
    """The most that improving what belongs to just these servers would gain."""
    return max((each.gain for each in found if set(each.servers) == servers), default=0.0)
