"""Which classes a model takes for which."""

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from sdfeel.core.arrays import Floats
from sdfeel.core.events import Confusion
from sdfeel.report.drawing import INK, LABEL, SHARES, TICK, TITLE, new_figure, number_ticks
from sdfeel.report.units import percent, short

WRITTEN = 12  # classes up to which the shares are written into the cells


def shares(counts: Confusion) -> Floats:
    """(K, K) for each class, the shares of its examples that are taken for each class; 0 if none.

    >>> shares(((3, 1), (0, 0))).tolist()
    [[0.75, 0.25], [0.0, 0.0]]
    """
    whole = np.array(counts, dtype=np.float64)
    return np.asarray(whole / np.maximum(whole.sum(axis=1, keepdims=True), 1))


def picture(label: str, counts: Confusion) -> Figure:
    """A row for each class, a column for each class that it is taken for."""
    figure, share = new_figure(4.3, 3.9), shares(counts)
    axes, norm = figure.subplots(), PowerNorm(0.5, 0, 1)
    # Squares and not an image: the page's policy lets a browser load nothing, not even from itself.
    axes.pcolormesh(np.ma.masked_equal(share, 0), cmap=SHARES, norm=norm)
    axes.set(aspect="equal", xlim=(0, len(share)), ylim=(len(share), 0))
    for axis, title in ((axes.xaxis, "taken for"), (axes.yaxis, "class")):
        number_ticks(axis, len(share), 20)
        axis.set_ticks(axis.get_ticklocs() + 0.5, [f"{tick:.0f}" for tick in axis.get_ticklocs()])
        axis.set_label_text(title, fontsize=LABEL, color=INK)
    axes.tick_params(labelsize=TICK)
    axes.set_title(short(label, 40), fontsize=TITLE, color=INK, loc="left")
    if len(share) <= WRITTEN:
        for (row, column), part in np.ndenumerate(share):
            if part > 0:
                ink = "white" if norm(part) > 0.55 else INK
                text = "<1" if part < 0.005 else f"{100 * part:.0f}"
                axes.text(
                    column + 0.5, row + 0.5, text, ha="center", va="center", size=7, color=ink
                )
    return figure


def spoken(label: str, counts: Confusion) -> str:
    """The most frequent mistake, in words."""
    share = shares(counts)
    np.fill_diagonal(share, 0)
    row, column = np.unravel_index(int(share.argmax()), share.shape)
    if not share[row, column]:
        return f"{label}: no class is taken for another"
    return f"{label}: most often, class {row} is taken for {column} ({percent(share[row, column])})"
