"""What all pictures share: colours, lines, a figure without global state, and saving it.

No pyplot: figures are made and drawn in any thread, with or without a screen.
"""

import re
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any
from xml.etree import ElementTree
from zlib import crc32

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure

from sdfeel.core.errors import InputError
from sdfeel.core.run_files import write_atomic
from sdfeel.report.units import short

# Okabe and Ito's colours, which colour-blind eyes can tell apart, without their pale yellow.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (6, 2, 1.5, 2)), (0, (1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
INK = "#222222"
FAINT = "#8a8a8a"
TITLE, LABEL, TICK = 11, 9.5, 8.5  # points

# From a visible blue on, because white is kept for "nothing at all".
SHARES: Colormap = LinearSegmentedColormap.from_list(
    "shares", ("#e3eef9", "#9dc6e8", "#4292c6", "#0b559f", "#06264d")
).with_extremes(bad="white")

SIGNED: Colormap = matplotlib.colormaps["PuOr"].with_extremes(bad="white")

_RENDERING = Lock()  # a reproducible SVG needs matplotlib's global settings


def line_style(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of line `index`; no two of the first 252 are alike."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "linewidth": 1.6,
        "markersize": 4.5,
    }


def new_figure(width: float, height: float, title: str | None = None) -> Figure:
    """An empty figure, in inches, whose parts make room for one another."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    if title:
        figure.suptitle(short(title, 100), fontsize=TITLE + 1, color=INK, parse_math=False)
    return figure


def tidy(axes: Axes) -> None:
    """Only the lines that help reading."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.grid(True, color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=TICK, color=FAINT, labelcolor=INK)


def number_ticks(axis: Axis, count: int, most: int) -> None:
    """Ticks at whole numbers below `count`, at most `most` of them."""
    step = -(-count // most)
    nice = next(size for size in (1, 2, 5, 10, 20, 25, 50, 100, step) if size >= step)
    axis.set_ticks(range(0, count, nice))


def save(figure: Figure, path: Path | str) -> None:
    """Write a PNG or an SVG, by the name's ending; the same figure gives the same bytes."""
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise InputError(f"cannot save a picture as '{Path(path).name}': end it in .png or .svg")
    write_atomic(Path(path), _rendered(figure, kind))


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
    settings: Any = {"svg.hashsalt": "sdfeel", "svg.fonttype": "none"}
    unsigned = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    with _RENDERING, matplotlib.rc_context(settings):
        figure.savefig(buffer, format=kind, dpi=150, metadata=unsigned[kind])
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
