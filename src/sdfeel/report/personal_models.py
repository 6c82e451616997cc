"""How well each client's own model does, where clients have models of their own."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sdfeel.report.drawing import INK, LABEL, TITLE, new_figure, tidy
from sdfeel.report.styles import line_style
from sdfeel.report.units import percent, short


def named(accuracies: Sequence[float], clients: int | None) -> list[tuple[str, float]]:
    """Each client's name and accuracy, the worst first; of many clients only some were measured.

    >>> named((0.9, 0.8), 2)
    [('client 1', 0.8), ('client 0', 0.9)]
    """
    all_of_them = clients is None or clients == len(accuracies)
    word = "client" if all_of_them else "drawn client"
    found = [(f"{word} {n}", each) for n, each in enumerate(accuracies)]
    return sorted(found, key=lambda one: one[1])


def picture(label: str, accuracies: Sequence[float]) -> Figure:
    """A bar for each client, and a line where their mean is."""
    figure = new_figure(4.3, 2.9)
    axes, mean = figure.subplots(), fmean(accuracies)
    first, second = line_style(0)["color"], line_style(1)["color"]
    axes.bar(range(len(accuracies)), accuracies, color=first, width=0.8)
    axes.axhline(mean, color=second, linewidth=1.2)
    tidy(axes)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"client (mean {percent(mean)})", fontsize=LABEL, color=INK)
    axes.set_title(short(label, 40), fontsize=TITLE, color=INK, loc="left")
    return figure


def spoken(label: str, accuracies: Sequence[float]) -> str:
    """The worst, the best and the mean, in words."""
    ordered = named(accuracies, None)
    (worst, low), (best, high) = ordered[0], ordered[-1]
    return (
        f"{label}: {worst} has the lowest accuracy of its own model, {percent(low)}, {best} the "
        f"highest, {percent(high)}; the mean is {percent(fmean(accuracies))}"
    )
