"""Who holds which data: labels by client and by cluster."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError
from sdfeel.report.drawing import (
    FAINT,
    INK,
    LABEL,
    SHARES,
    TICK,
    TITLE,
    WIDTHS,
    new_figure,
    number_ticks,
)

FEW_CLIENTS = 60  # up to this many, there is room for their numbers
FEW_CELLS = 150  # up to this many, there is room for their values


@dataclass(frozen=True)
class _Holders:
    """Columns of one map: clients or clusters, with their examples of each class."""

    name: str
    counts: Floats  # (holders, K)

    @property
    def totals(self) -> Floats:
        return np.asarray(self.counts.sum(axis=1))

    @property
    def shares(self) -> Floats:
        """(K, holders) of each holder's own examples; nan where it has none of a class."""
        share = self.counts / np.maximum(self.totals, 1)[:, None]
        return np.where(share > 0, share, np.nan).T


def holdings(counts: Ints, home: Ints, width: str | None = None) -> Figure:
    """Each client's mixture of classes, grouped by server, and each cluster's beside it; in a
    column of a paper, below it.

    Both use one colour scale, so that clusters look more even than their clients if they are.
    """
    counts, home = np.asarray(counts), np.asarray(home)
    _check(counts, home)
    order = np.argsort(home, kind="stable")
    servers = int(home.max()) + 1
    pooled = np.zeros((servers, counts.shape[1]))
    np.add.at(pooled, home, counts)
    clients = _Holders("client", counts[order].astype(np.float64))
    clusters = _Holders("cluster", pooled)
    narrow = width == "column"
    figure, grid = _panels(counts.shape[1], len(home) / servers, narrow)
    norm = PowerNorm(0.5, 0, max(np.nanmax(clients.shares, initial=0), 1e-9))
    for column, holders in enumerate((clients, clusters)):
        _totals(grid[0, column], holders)
        _mixture(grid[1, column], holders, norm)
    if not narrow:  # the left pictures have the same labels
        grid[1, 1].set_ylabel("")
        grid[0, 1].set_ylabel("")
    few = FEW_CLIENTS // (3 if narrow else 1)
    _client_axis(grid[0, 0], grid[1, 0], order, home[order], few)
    _number_axis(grid[1, 1], servers)
    if servers <= (6 if narrow else 12):
        _values(grid[1, 1], clusters, norm)
    _colour_bar(figure, grid, narrow)
    return figure


def _panels(classes: int, ratio: float, narrow: bool) -> tuple[Figure, NDArray[Any]]:
    """Totals above mixtures, [0 or 1, clients or clusters]; each shares its own axis."""
    tall = float(np.clip(2.6 + 0.27 * classes, 4.2, 8.5))
    if narrow:
        figure = new_figure(WIDTHS["column"], min(1.6 * tall, 8.6))
        heights = [1, 3.4, 1, 3.4]
        axes = figure.subplots(4, 1, height_ratios=heights, squeeze=False)[:, 0].reshape(2, 2).T
        for above, below in axes.T:
            above.sharex(below)
            above.tick_params(which="both", labelbottom=False)
        return figure, axes
    figure = new_figure(13, tall)
    wide = float(np.clip(ratio, 1.4, 2.6))
    return figure, figure.subplots(
        2, 2, sharex="col", height_ratios=[1, 4], width_ratios=[wide, 1], squeeze=False
    )


def _check(counts: Ints, home: Ints) -> None:
    if counts.ndim != 2 or 0 in counts.shape:
        raise InputError(
            f"counts must have a row per client and a column per class, got shape {counts.shape}"
        )
    if home.shape != counts.shape[:1]:
        raise InputError(
            f"{len(counts)} clients have counts but home has shape {home.shape}: "
            f"give one server per client"
        )


def _totals(axes: Axes, holders: _Holders) -> None:
    positions = np.arange(len(holders.totals))
    # Filled steps and not bars: a thousand bars would fade into their own edges.
    edges = np.arange(len(positions) + 1) - 0.5
    axes.stairs(holders.totals, edges, fill=True, color="#7f8c9a")
    axes.set_ylim(0, max(float(holders.totals.max()) * 1.08, 1))
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TICK)
    axes.tick_params(axis="x", which="both", bottom=False)
    axes.set_ylabel("examples", fontsize=LABEL, color=INK)
    axes.set_title(f"what each {holders.name} holds", fontsize=TITLE, color=INK, loc="left")


def _mixture(axes: Axes, holders: _Holders, norm: PowerNorm) -> None:
    people, classes = holders.counts.shape
    # With more columns than pixels, neighbours are averaged; otherwise, some would not be seen.
    smooth = "nearest" if people <= 1200 else "antialiased"
    axes.imshow(holders.shares, aspect="auto", cmap=SHARES, norm=norm, interpolation=smooth)
    number_ticks(axes.yaxis, classes, 20)
    axes.set_ylabel("class", fontsize=LABEL, color=INK)
    axes.tick_params(labelsize=TICK)


def _client_axis(top: Axes, axes: Axes, order: Ints, home: Ints, room: int) -> None:
    """Server numbers under their groups, client numbers too where they fit."""
    starts = np.flatnonzero(np.diff(home)) + 0.5
    width = 1.0 if len(starts) < 40 else 0.4
    for border in starts:
        axes.axvline(border, color=INK, linewidth=width)
        top.axvline(border, color=FAINT, linewidth=width * 0.6)
    groups = np.unique(home)
    middles = [float(np.flatnonzero(home == server).mean()) for server in groups]
    every = -(-len(groups) // (25 * room // FEW_CLIENTS))
    few = len(order) <= room
    axes.set_xticks(middles[::every], [f"{server}" for server in groups[::every]])
    axes.tick_params(axis="x", which="major", pad=18 if few else 3, length=0)
    if few:
        axes.xaxis.remove_overlapping_locs = False  # or a server's number would hide a client's
        axes.set_xticks(np.arange(len(order)), [f"{client}" for client in order], minor=True)
        axes.tick_params(
            axis="x", which="minor", labelsize=6.5, rotation=90, length=0, labelcolor="#555555"
        )
        for label in axes.get_xticklabels():
            label.set(fontweight="bold", fontsize=LABEL)
    over = "clients' numbers, and below them their server" if few else "clients, by server"
    axes.set_xlabel(over, fontsize=LABEL, color=INK)


def _number_axis(axes: Axes, servers: int) -> None:
    number_ticks(axes.xaxis, servers, 15)
    axes.set_xlabel("server", fontsize=LABEL, color=INK)


def _values(axes: Axes, holders: _Holders, norm: PowerNorm) -> None:
    if holders.counts.size > FEW_CELLS:
        return
    for (label, holder), share in np.ndenumerate(holders.shares):
        if np.isfinite(share):
            ink = "white" if norm(share) > 0.55 else INK
            text = "<1" if share < 0.005 else f"{100 * share:.0f}"
            axes.text(holder, label, text, ha="center", va="center", size=7, color=ink)


def _colour_bar(figure: Figure, grid: NDArray[Any], narrow: bool) -> None:
    aspect = (3.2 if narrow else 4.5) * figure.get_figheight()
    where: dict[str, Any] = {"location": "bottom"} if narrow else {}
    beside = grid.ravel().tolist() if narrow else grid[:, 1].tolist()
    image = grid[1, 1].images[0]
    fraction = 0.03 if narrow else 0.08
    bar = figure.colorbar(image, ax=beside, fraction=fraction, pad=0.02, aspect=aspect, **where)
    (bar.ax.xaxis if narrow else bar.ax.yaxis).set_major_formatter(PercentFormatter(1, symbol=""))
    bar.ax.tick_params(labelsize=TICK)
    if narrow:
        bar.locator = MaxNLocator(3)
        bar.update_ticks()
    bar.set_label("share of the holder's own\nexamples (%); white: none", fontsize=LABEL, color=INK)
