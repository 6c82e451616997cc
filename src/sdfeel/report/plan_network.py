"""The network of a plan: where the servers are, and which links or devices hold rounds up."""

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
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
    axes.margins(0.12)
    axes.set_aspect("equal")
    axes.set_axis_off()
    title = plan.rows[0].label if plan.rows else "the network"
    axes.set_title(title, fontsize=TITLE, color=INK)
    lines = [f"{percent(each.gain)} less time: {each.what}" for each in plan.improvements]
    told = "\n".join(lines) or "nothing gains by itself"
    figure.supxlabel(f"twice as good, one at a time:\n{told}", fontsize=LABEL, color=INK)
    if site.servers <= NAMED:
        _name(figure, axes, site, points)
    return figure


def _name(figure: Figure, axes: Axes, site: Site, points: Floats) -> None:
    """Write names beside the dots, each where it covers least of the dots and of other names."""
    figure.draw_without_rendering()  # the layout decides where the dots are
    dots = axes.transData.transform(points) * 72 / figure.dpi
    taken = [_box(x, y, 8.0, 8.0) for x, y in dots.tolist()]
    for d, (x, y) in enumerate(dots.tolist()):
        name = site.names[d] if d < len(site.names) else str(d)
        width, height = 0.55 * TICK * len(name), 1.2 * TICK
        side = 8 + width / 2
        beside = [(dx, dy) for dy in (0, 11, -11) for dx in (side, -side)]
        around = [(0, 11), (0, -11), *beside, (0, 22), (0, -22), (0, 33)]
        places = [(_box(x + dx, y + dy, width, height), (dx, dy)) for dx, dy in around]
        # A name that hides a dot is worse than one that touches another name.
        hides = [10 * sum(_common(box, dot) for dot in taken[: len(dots)]) for box, _ in places]
        meets = [sum(_common(box, other) for other in taken) for box, _ in places]
        box, (dx, dy) = places[int(np.argmin(np.add(hides, meets)))]
        taken.append(box)
        axes.annotate(
            name,
            points[d],
            xytext=(dx, dy),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=TICK,
            color=INK,
            zorder=3,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
        )


Box = tuple[float, float, float, float]  # left, bottom, right, top


def _box(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _common(one: Box, other: Box) -> float:
    """The area that both cover.

    >>> _common((0, 0, 2, 2), (1, 1, 3, 3)), _common((0, 0, 1, 1), (2, 0, 3, 1))
    (1, 0)
    """
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0) * max(high, 0)


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
