"""The server graph and how it mixes."""

from collections.abc import Mapping, Sequence

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure

from sdfeel.core.arrays import Floats
from sdfeel.core.network import Network
from sdfeel.report.drawing import (
    FAINT,
    INK,
    LABEL,
    SHARES,
    SIGNED,
    TICK,
    TITLE,
    WIDTHS,
    new_figure,
    number_ticks,
)

FEW_WEIGHTS = 14  # up to this many, there is room beside the links
ZERO = 1e-9  # weights are computed, and what should be 0 seldom is exactly 0
FEW_SERVERS = 12
ROOMY = 900  # square points in which a number and a share can be read
POINTS = 130  # of a picture, in one unit of its places
Positions = Mapping[int, Floats]


def topology(net: Network, width: str | None = None) -> Figure:
    """The servers and their links, and beside them the mixing matrix; in a column, below them."""
    if width == "column":
        figure = new_figure(WIDTHS[width], 6.4)
        # Both as large as the names and numbers beside them allow.
        figure.set_layout_engine("compressed", h_pad=0.09)
        first, second = figure.subplots(2, 1, height_ratios=[1.25, 1])
    else:
        figure = new_figure(11.5, 5.4)
        first, second = figure.subplots(1, 2, width_ratios=[1.1, 1])
    _graph(first, net, 0.6 if width == "column" else 1.0)
    _matrix(figure, second, net)
    return figure


def _graph(axes: Axes, net: Network, size: float) -> None:
    positions = layout(net)
    points = np.array([positions[server] for server in net.servers])
    sizes = _sizes(net.mass, points)
    points = apart(points, np.sqrt(sizes) / POINTS)
    positions = dict(enumerate(points))
    axes.add_collection(
        LineCollection(
            [(positions[a], positions[b]) for a, b in net.edges],
            colors=FAINT,
            linewidths=1.6 if len(net.edges) < 60 else 0.7,
            zorder=1,
        )
    )
    axes.scatter(
        points[:, 0],
        points[:, 1],
        s=size**2 * sizes,
        c="#cfe6f5",
        edgecolors="#0072B2",
        zorder=2,
    )
    _names(axes, net, points)
    weights = _edge_weights(net, positions)
    few = 0 < len(weights) <= FEW_WEIGHTS and len(net.servers) <= 8  # else links are too short
    if few:
        _write_weights(axes, weights)
    room = max(1.25, 1.12 * float(np.abs(points).max()))
    axes.set(xlim=(-room, room), ylim=(-room, room), aspect="equal")
    axes.set_axis_off()
    axes.set_title(_caption(net), fontsize=TITLE, color=INK)
    axes.text(
        0, -1.09 * room, _key(net, few), ha="center", va="top", fontsize=TICK, color="#555555"
    )


def layout(net: Network) -> Positions:
    """Where each server is drawn, within -1 to 1: the same graph always looks the same."""
    if net.places is not None and len(net.servers) > 1:
        return on_map(net.places)
    graph = nx.Graph()
    graph.add_edges_from(net.edges)
    graph.add_nodes_from(net.servers)
    count = len(net.servers)
    degrees = [graph.degree(server) for server in net.servers]
    if count == 1:
        return {0: np.zeros(2)}
    if count > 3 and sorted(degrees)[-2:] == [1, count - 1]:
        return _star(degrees.index(count - 1), count)
    if set(degrees) in ({2}, {count - 1}):
        return _circle(_around(graph))
    if max(degrees) == 2:
        return _horseshoe(_around(graph))
    start = dict(enumerate(_spread_out(graph)))
    sprung = nx.spring_layout(graph, pos=start, iterations=120, seed=0)
    return _filling(np.array([sprung[server] for server in net.servers]))


def on_map(places: Sequence[tuple[float, float]]) -> Positions:
    """Longitudes and latitudes within -1 to 1, with the proportions of the mean latitude."""
    points = np.array(places, dtype=float)
    points[:, 0] *= np.cos(np.radians(np.clip(points[:, 1].mean(), -80, 80)))
    low, high = points.min(axis=0), points.max(axis=0)
    points = (points - (low + high) / 2) / max(float((high - low).max()) / 2, 1e-9)
    return dict(enumerate(points))


TURNS = 300  # of pushing circles apart, at most


def apart(points: Floats, diameters: Floats) -> Floats:
    """The points, moved as little as it takes for circles around them not to overlap.

    Where circles have no room at all, they still overlap after `TURNS` turns.
    """
    points = np.array(points, dtype=float)
    count = len(points)
    least = 1.06 * (diameters[:, None] + diameters) / 2
    turns = 2.4 * np.arange(count)  # points at one place part in different directions
    ways = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    for _ in range(TURNS if count > 1 else 0):
        between = points[:, None] - points
        length = np.linalg.norm(between, axis=2)
        near = length < 1e-9
        between = np.where(near[..., None], ways[:, None] - ways, between)
        unit = between / np.maximum(np.linalg.norm(between, axis=2), 1e-9)[..., None]
        lack = np.maximum(least - length, 0.0)
        np.fill_diagonal(lack, 0.0)
        if not lack.any():
            break
        points += 0.52 * np.minimum((lack[..., None] * unit).sum(axis=1), 0.3)
    return points


def _around(graph: "nx.Graph[int]") -> list[int]:
    """Servers in an order where each follows a neighbour, so that rings and lines do not cross."""
    ends = [server for server in sorted(graph) if graph.degree(server) == 1]
    complete = graph.number_of_edges() == len(graph) * (len(graph) - 1) // 2
    if complete:
        return sorted(graph)
    return list(nx.dfs_preorder_nodes(graph, ends[0] if ends else 0))


def _circle(order: list[int]) -> Positions:
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(order)) / len(order)  # clockwise from the top
    return {s: np.array([np.cos(a), np.sin(a)]) for s, a in zip(order, angles, strict=True)}


def _horseshoe(order: list[int]) -> Positions:
    """A line bent round, so that its servers are as large as those of a ring."""
    angles = np.pi * (5 / 4 - 3 / 2 * np.arange(len(order)) / (len(order) - 1))
    return {s: np.array([np.cos(a), np.sin(a)]) for s, a in zip(order, angles, strict=True)}


def _filling(points: Floats) -> Positions:
    low, high = points.min(axis=0), points.max(axis=0)
    return dict(enumerate(2 * (points - low) / np.maximum(high - low, ZERO) - 1))


def _star(hub: int, count: int) -> Positions:
    return {hub: np.zeros(2), **_circle([server for server in range(count) if server != hub])}


def _spread_out(graph: "nx.Graph[int]") -> Floats:
    """Positions in a plane that reflect the numbers of hops as well as a plane can."""
    count = len(graph)
    hops = np.zeros((count, count))
    for server, lengths in nx.all_pairs_shortest_path_length(graph):
        for other, length in lengths.items():
            hops[server, other] = length
    centre = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-centre @ hops**2 @ centre / 2)
    plane = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))
    # A vector and its negative are equally good to the solver, so we fix the sign.
    signs = np.where(plane[np.abs(plane).argmax(axis=0), [0, 1]] < 0, -1, 1)
    return np.asarray(plane * signs)


def _sizes(mass: Floats, points: Floats) -> Floats:
    """Areas in square points in proportion to the share, but never too small for a number.

    On a map, neighbours may be close: then circles are smaller, so that most stay apart.
    """
    largest = 2300 / max(1.0, len(mass) / 7)
    least = 200 if len(mass) <= 40 else 110
    if len(points) > 1:
        gaps = np.linalg.norm(points[:, None] - points, axis=2) + 9 * np.eye(len(points))
        near = float(np.quantile(gaps.min(axis=0), 0.25))
        largest = min(largest, max((near * POINTS) ** 2, least))
    return np.asarray(np.maximum(mass / mass.max() * largest, least))


def _names(axes: Axes, net: Network, points: Floats) -> None:
    room = len(net.servers) <= FEW_SERVERS and _sizes(net.mass, points).min() > ROOMY
    for server, (x, y) in zip(net.servers, points, strict=True):
        text = f"{server}\n{100 * net.mass[server]:.0f} %" if room else f"{server}"
        size = LABEL if room else (8.0 if len(points) <= 40 else 5.5)
        axes.text(x, y, text, ha="center", va="center", fontsize=size, color=INK, zorder=4)


def _edge_weights(net: Network, positions: Positions) -> list[tuple[Floats, float]]:
    """A weight in the middle if both ends use the same, otherwise each near the server using it."""
    found: list[tuple[Floats, float]] = []
    for a, b in net.edges:
        here, there = float(net.mixing[a, b]), float(net.mixing[b, a])
        if abs(here - there) < 5e-4:
            found.append(((positions[a] + positions[b]) / 2, here))
        else:
            found.append((0.62 * positions[a] + 0.38 * positions[b], here))
            found.append((0.38 * positions[a] + 0.62 * positions[b], there))
    return found


def _write_weights(axes: Axes, weights: list[tuple[Floats, float]]) -> None:
    paper = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    for (x, y), value in weights:
        axes.text(
            x,
            y,
            f"{value:.2f}",
            ha="center",
            va="center",
            fontsize=TICK,
            color=INK,
            zorder=3,
            bbox=paper,
        )


def _key(net: Network, weights: bool) -> str:
    shares = "circles: servers, their area the share of all examples"
    links = "numbers on links: the weight of the neighbour's model,\nnear the server that uses it"
    return f"{shares}\n{links}" if weights else shares


def _caption(net: Network) -> str:
    servers, links = len(net.servers), len(net.edges)
    return (
        f"{servers} server{'s' * (servers != 1)}, {links} link{'s' * (links != 1)}, "
        f"ζ = {net.zeta:.3f}\n(0: they agree at once; 1: never)"
    )


def _matrix(figure: Figure, axes: Axes, net: Network) -> None:
    colours, norm = _colours(net.mixing)
    shown = np.where(np.abs(net.mixing) < ZERO, np.nan, net.mixing)
    image = axes.imshow(shown, cmap=colours, norm=norm, interpolation="nearest")
    if len(net.servers) <= FEW_SERVERS:
        _matrix_values(axes, shown, colours, norm)
    for axis in (axes.xaxis, axes.yaxis):
        number_ticks(axis, len(net.servers), 15)
    axes.tick_params(labelsize=TICK)
    axes.set_xlabel("from server", fontsize=LABEL, color=INK)
    axes.set_ylabel("to server", fontsize=LABEL, color=INK)
    axes.set_title("mixing matrix\n(rows sum to 1; white: 0)", fontsize=TITLE, color=INK)
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.03)
    bar.ax.tick_params(labelsize=TICK)
    bar.set_label("weight", fontsize=LABEL, color=INK)


def _colours(mixing: Floats) -> tuple[Colormap, Normalize]:
    """Blue shades; with negative weights orange for them, purple for positive ones."""
    if mixing.min() > -ZERO:
        return SHARES, Normalize(0, min(1.0, 1.4 * float(mixing.max())))
    most = float(np.abs(mixing).max())
    return SIGNED, TwoSlopeNorm(0, -most, most)


def _matrix_values(axes: Axes, mixing: Floats, colours: Colormap, norm: Normalize) -> None:
    for (dst, src), value in np.ndenumerate(mixing):
        if np.isfinite(value):
            red, green, blue, _ = colours(float(norm(value)))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
            axes.text(
                src,
                dst,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=TICK if len(mixing) <= 8 else 6.5,
                color="white" if dark else INK,
            )
