"""The timeline picture: a row for every server and client, one panel per run."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from sdfeel.report.drawing import FAINT, INK, LABEL, TICK, TITLE, WIDTHS, new_figure, tidy
from sdfeel.report.timeline import Kind, Span, Timeline, waiting
from sdfeel.report.units import TIMES, Unit, short, unit_for

ROWS = 25  # of one run; of several, each has fewer
ROWS_OF_SEVERAL = 14
GAP = 0.7  # rows between clusters
LETTERS = 32  # of a line in a column
MARKED = 60  # ends of rounds that may be marked before they hide everything else

# Dark, middle, light: they differ in grey, too.
COLOURS: dict[Kind, str] = {
    "compute": "#0072B2",
    "upload": "#E69F00",
    "gossip": "#CC79A7",
    "wait": "#e9e9e9",
}
WORDS: dict[Kind, str] = {
    "compute": "computing",
    "upload": "uploading (a server: receiving from its last client)",
    "gossip": "mixing with other servers",
    "wait": "waiting",
}


@dataclass(frozen=True)
class GanttPanel:
    """One run's rows."""

    title: str
    left_out: str  # in words; empty when everybody is shown
    clusters: dict[int, tuple[int, ...]]  # the servers shown, and their clients shown
    spans: tuple[Span, ...]
    ends: dict[int, list[float]]  # when each server's rounds ended

    @property
    def height(self) -> float:
        """How high it is, in rows."""
        return sum(1 + len(clients) for clients in self.clusters.values()) + GAP * (
            len(self.clusters) - 1
        )


def gantt(
    runs: Sequence[tuple[str, Timeline]],
    begin: float,
    end: float,
    servers: Collection[int] | None = None,
    width: str | None = None,
) -> Figure:
    """Who did what, and when, in named runs on one time axis."""
    room = ROWS if len(runs) == 1 else ROWS_OF_SEVERAL
    panels = [panel(name, line, begin, end, servers, room) for name, line in runs]
    heights = [each.height for each in panels]
    narrow = width == "column"
    tall = (0.15 if narrow else 0.21) * sum(heights) + 0.75 * len(panels) + 0.75
    figure = new_figure(WIDTHS["column"] if narrow else 11, tall)
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)
    unit = unit_for(end, TIMES)
    for axes, each in zip(grid[:, 0], panels, strict=True):
        _draw(axes, each, unit, narrow)
    grid[0, 0].set_xlim(begin / unit.size, end / unit.size)
    grid[-1, 0].set_xlabel(f"time ({unit.name})", fontsize=LABEL, color=INK)
    seen = {span.kind for each in panels for span in each.spans}
    figure.legend(
        handles=[
            Patch(
                facecolor=COLOURS[kind],
                label=WORDS[kind].partition(" (")[0] if narrow else WORDS[kind],
            )
            for kind in COLOURS
            if kind in seen
        ],
        loc="outside lower center",
        ncols=2 if width in ("page", "column") else len(COLOURS),
        frameon=False,
        fontsize=LABEL,
        labelcolor=INK,
    )
    return figure


def panel(
    name: str,
    line: Timeline,
    begin: float,
    end: float,
    servers: Collection[int] | None = None,
    room: int = ROWS,
) -> GanttPanel:
    """What one run's part of the picture shows, in at most about `room` rows."""
    spans = line.spans(begin, end, servers)
    clusters = _shown(line, spans, servers, room)
    titled = line.scheme if name == line.scheme else f"{short(name)} ({line.scheme})"
    return GanttPanel(
        f"{titled}: {_idle(spans)}",
        _left_out(line, line.chosen(servers), clusters),
        clusters,
        tuple(spans),
        {s: [e.end for e in line.rounds if s in e.round.lane and e.end <= end] for s in clusters},
    )


def _shown(
    line: Timeline, spans: Sequence[Span], servers: Collection[int] | None, room: int
) -> dict[int, tuple[int, ...]]:
    """As many clusters as fit, at least two; from a large cluster, clients of every speed."""
    wanted = line.chosen(servers)
    rows = np.cumsum([1 + len(line.clusters[server]) for server in wanted])
    count = len(wanted) if servers is not None else max(2, int((rows <= room).sum()))
    kept = wanted[: min(count, room)]
    each = max(room // len(kept) - 1, 0)
    spare = rows[len(kept) - 1] <= room
    return {s: line.clusters[s] if spare else _some(line.clusters[s], spans, each) for s in kept}


def _some(clients: tuple[int, ...], spans: Sequence[Span], count: int) -> tuple[int, ...]:
    """`count` clients from the least to the most busy, in the order of their numbers."""
    if len(clients) <= count:
        return clients
    busy = {f"client {client}": 0.0 for client in clients}
    for span in spans:
        if span.kind == "compute" and span.who in busy:
            busy[span.who] += span.end - span.begin
    ranked = sorted(clients, key=lambda client: (busy[f"client {client}"], client))
    ranks = np.linspace(0, len(ranked) - 1, count).round().astype(int)
    return tuple(sorted(ranked[rank] for rank in ranks))


def _left_out(line: Timeline, wanted: list[int], clusters: dict[int, tuple[int, ...]]) -> str:
    servers = len(wanted) - len(clusters)
    clients = sum(len(line.clusters[s]) for s in wanted) - sum(map(len, clusters.values()))
    parts = [
        f"{count} {who}{'s' * (count > 1)}"
        for count, who in ((servers, "server"), (clients, "client"))
        if count
    ]
    if not any(line.clusters.values()):
        parts.append("clients, too many to list")
    return f"not shown: {' and '.join(parts)}" if parts else ""


def _idle(spans: Sequence[Span]) -> str:
    """How long clients wait, or servers where clients are not listed."""
    names = {span.who for span in spans}
    who: Literal["client", "server"] = "server" if waiting(spans, "client") is None else "client"
    count = sum(name.startswith(who) for name in names)
    share = waiting(spans, who) or 0.0
    percent = f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "less than 1 %"
    return f"{count} {who}{'s wait' if count > 1 else ' waits'} {percent} of the time"


def _draw(axes: Axes, each: GanttPanel, unit: Unit, narrow: bool) -> None:
    heights = _heights(each.clusters)
    bars: dict[tuple[str, Kind], list[tuple[float, float]]] = {}
    for span in each.spans:
        bar = span.begin / unit.size, (span.end - span.begin) / unit.size
        bars.setdefault((span.who, span.kind), []).append(bar)
    for (who, kind), row in bars.items():
        if who in heights:
            axes.broken_barh(
                row, (heights[who] - 0.38, 0.76), facecolors=COLOURS[kind], linewidth=0
            )
    for server, clients in each.clusters.items():
        top = heights[f"server {server}"]
        _mark_ends(axes, each.ends[server], top - 0.5, top + len(clients) + 0.5, unit)
    tidy(axes)
    axes.grid(False, axis="y")
    axes.set_yticks(list(heights.values()), list(heights))
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text().startswith("server") else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(each.height - 0.4, -0.6)
    title = _wrapped(each) if narrow else each.title
    axes.set_title(title, fontsize=TITLE, color=INK, loc="left", parse_math=False)
    axes.set_title("" if narrow else each.left_out, fontsize=TICK, color=FAINT, loc="right")


def _wrapped(each: GanttPanel) -> str:
    """The title in lines that fit a column, and what is not shown below it."""
    parts = (*each.title.split(": "), each.left_out)
    return "\n".join(line for part in parts for line in wrap(part, LETTERS))


def _heights(clusters: dict[int, tuple[int, ...]]) -> dict[str, float]:
    """Each row's height from the top, clusters a little apart."""
    heights: dict[str, float] = {}
    below = 0.0
    for server, clients in clusters.items():
        for who in (f"server {server}", *(f"client {client}" for client in clients)):
            heights[who] = below
            below += 1
        below += GAP
    return heights


def _mark_ends(axes: Axes, ends: list[float], top: float, bottom: float, unit: Unit) -> None:
    """A line where a lane's round ends and its next begins."""
    if len(ends) <= MARKED:
        x = [end / unit.size for end in ends]
        axes.vlines(x, top, bottom, colors=INK, linewidth=0.9)
