"""What all pictures share: inks, scales of colours, a figure without global state, and saving it.

No pyplot: figures are made and drawn in any thread, with or without a screen.
"""

import re
from io import BytesIO
from math import log10
from pathlib import Path
from textwrap import wrap
from threading import Lock
from typing import Any
from xml.etree import ElementTree
from zlib import crc32

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from sdfeel.core.errors import InputError, of_kind
from sdfeel.core.run_files import write_atomic
from sdfeel.report.units import short

INK = "#222222"
FAINT = "#8a8a8a"
TITLE, LABEL, TICK = 11, 9.5, 8.5  # points

# From a visible blue on, because white is kept for "nothing at all".
SHARES: Colormap = LinearSegmentedColormap.from_list(
    "shares", ("#e3eef9", "#9dc6e8", "#4292c6", "#0b559f", "#06264d")
).with_extremes(bad="white")

SIGNED: Colormap = matplotlib.colormaps["PuOr"].with_extremes(bad="white")

_RENDERING = Lock()  # a reproducible SVG needs matplotlib's global settings


def new_figure(width: float, height: float, title: str | None = None) -> Figure:
    """An empty figure, in inches, whose parts make room for one another."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    if title:
        lines = wrap(short(title, 100), max(1, int(LETTERS * width)))
        figure.suptitle("\n".join(lines), fontsize=TITLE + 1, color=INK, parse_math=False)
    return figure


LETTERS = 9.5  # of a title, in an inch
WIDTHS = {"column": 3.4, "page": 7.0, "slide": 12.0}  # inches
SHRUNK = 0.4  # a picture narrower than this share of its width would cut off letters
SMALLEST, LARGEST = 7.0, 9.0  # points in print, for every letter


def inches(width: str | None) -> float | None:
    """A width by its name; None: as the picture was made."""
    if width is None:
        return None
    words = f"one of {', '.join(WIDTHS)}"
    of_kind("width", width, str, words)
    if width not in WIDTHS:
        raise InputError(f"no width '{width}': choose {words}")
    return WIDTHS[width]


def fitted(figure: Figure, width: str | None) -> Figure:
    """The same picture at a width of print, without scaling: letters of 7 to 9 points, fine lines.

    A slide keeps its letters.
    """
    wide = inches(width)
    if wide is None:
        return figure
    ratio = wide / figure.get_figwidth()
    if ratio < SHRUNK:
        raise InputError(
            f"this picture does not fit a width of '{width}': choose the width page or slide"
        )
    if abs(ratio - 1) > 0.01:
        figure.set_size_inches(wide, min(9.0, figure.get_figheight() * max(ratio, 0.62)))
    if width == "slide":
        return figure
    for axes in figure.axes:
        axes.tick_params(which="both", labelsize=SMALLEST)
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "linear" and isinstance(axis.get_major_locator(), AutoLocator):
                axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    for dots in figure.findobj(PathCollection):
        if isinstance(dots, PathCollection):
            dots.set_sizes(dots.get_sizes() * min(1.0, ratio) ** 2)
    for text in figure.findobj(Text):
        text.set_fontsize(min(LARGEST, max(SMALLEST, 0.84 * float(text.get_fontsize()))))
    for line in figure.findobj(Line2D):
        line.set(linewidth=0.75 * line.get_linewidth(), markersize=0.7 * line.get_markersize())
    return figure


def tidy(axes: Axes) -> None:
    """Keep only the lines that help reading, with round numbers on them."""
    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(locator := axis.get_major_locator(), AutoLocator):
            locator.set_params(steps=[1, 2, 5, 10])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.grid(True, color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=TICK, color=FAINT, labelcolor=INK)


def log_axis(axis: Axis) -> None:
    """A logarithmic axis with plain numbers: 1, 2 and 5 of each decade where there is room."""
    (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")
    low, high = sorted(axis.get_view_interval())
    decades = log10(high / low) if low > 0 else 9.0
    steps = (1.0, 2.0, 5.0) if decades < 1.5 else (1.0, 3.0) if decades < 2.5 else (1.0,)
    axis.set_major_locator(LogLocator(10, steps, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axis.set_minor_formatter(NullFormatter())


def percent_axis(axis: Axis) -> None:
    """Shares as percentages, without a sign and without decimals that say nothing."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}"))


def number_ticks(axis: Axis, count: int, most: int) -> None:
    """Ticks at whole numbers below `count`, at most `most` of them."""
    step = -(-count // most)
    nice = next(size for size in (1, 2, 5, 10, 20, 25, 50, 100, step) if size >= step)
    axis.set_ticks(range(0, count, nice))


def save(figure: Figure, path: Path | str, width: str | None = None) -> None:
    """Write a PNG, SVG or PDF, by the name's ending; the same figure gives the same bytes.

    `width` (column, page or slide) makes it fit for print; see `fitted`.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError(
            f"cannot save a picture as '{Path(path).name}': end it in .png, .svg or .pdf"
        )
    write_atomic(Path(path), _rendered(fitted(figure, width), kind))


def svg(figure: Figure) -> str:
    """The figure as an element for an HTML page: scales with its box, refers to nothing outside.

    Inside HTML it needs no namespace; for a file of its own use `save`.
    """
    drawn = _rendered(figure, "svg")
    root = ElementTree.fromstring(drawn)
    prefix = f"c{crc32(drawn):08x}-"  # keeps the names of two pictures on one page apart
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)  # a style inside a picture would apply to the whole page
    for element in root.iter():
        _make_local(element, prefix)
    for name in ("width", "height", "version", "id"):
        root.attrib.pop(name, None)
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    return ElementTree.tostring(root, encoding="unicode")


def _rendered(figure: Figure, kind: str) -> bytes:
    buffer = BytesIO()
    # Text stays text: searchable, small, and in scripts that matplotlib's own font lacks.
    # Publishers want the fonts of a PDF as outlines that they can embed (type 42).
    settings: Any = {"svg.hashsalt": "sdfeel", "svg.fonttype": "none", "pdf.fonttype": 42}
    unsigned = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    with _RENDERING, matplotlib.rc_context(settings):
        figure.savefig(
            buffer,
            format=kind,
            dpi=150 if figure.get_figwidth() > 9 else 300,
            metadata=unsigned[kind],
        )
    return buffer.getvalue()


def _make_local(element: ElementTree.Element, prefix: str) -> None:
    element.tag = _bare(element.tag)
    attributes = {_bare(name): value for name, value in element.attrib.items()}
    element.attrib.clear()
    for name, value in attributes.items():
        if name == "id":
            value = prefix + value
        elif name == "href":
            value = value.replace("#", f"#{prefix}", 1)
        element.set(name, re.sub(r"url\(#", f"url(#{prefix}", value))


def _bare(name: str) -> str:
    return name.rpartition("}")[2]
