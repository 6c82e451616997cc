"""Pictures at the widths of print: nothing is cut, too small to read, or written over."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox, BboxBase

from sdfeel.core.errors import InputError
from sdfeel.core.network import clustered
from sdfeel.planning.candidates import SCHEMES
from sdfeel.planning.goal import Goal, PilotPoint
from sdfeel.planning.result import Plan, PlanRow, TaskProfile
from sdfeel.report.curves import curves, multiples
from sdfeel.report.drawing import LARGEST, SMALLEST, WIDTHS, fitted, save
from sdfeel.report.gantt import gantt
from sdfeel.report.history import History
from sdfeel.report.holdings import holdings
from sdfeel.report.plan_pictures import plan_picture
from sdfeel.report.timeline import Timeline
from sdfeel.report.topology import apart, topology
from tests.report.runs import runs
from tests.report.test_timeline import SYNC


def named(count: int, length: int) -> list[History]:
    """This many runs with long names."""
    some = runs()
    return [
        History.of(f"{'x' * length}-{place}", some[place % len(some)].events)
        for place in range(count)
    ]


def swept(width: str | None) -> Figure:
    """Panels of very different lengths: one in seconds, one in milliseconds."""
    whole = named(5, 30)
    short = [History.of(each.label, each.events[:4]) for each in whole]
    return multiples({"tau1=1": whole, "tau1=100": short, "tau1=5": whole}, 0.8, width)


def ring(width: str | None) -> Figure:
    matrix = np.roll(np.eye(8), 1, 0) + np.roll(np.eye(8), -1, 0)
    return topology(clustered(np.ones(16), np.arange(16) % 8, matrix), width)


def planned(width: str | None) -> Figure:
    """A plan over three decades, with a prediction of less than one iteration."""
    rows = [
        PlanRow(
            "",
            scheme,
            {"tau1": tau1, "tau2": 1},
            0.1,
            "ring",
            "metropolis",
            iteration_seconds=0.3 / tau1,
            shares={"compute": 1.0},
            proven_rate=0.1,
            bound_seconds=1.0,
            predicted_seconds=None,
            predicted_iterations=0.05 * tau1**1.4,
            seconds=1.0 if tau1 == 50 else None,
            steps=5,
            score=0.9,
            points=tuple(PilotPoint(at * 5 / tau1, 9, at / 9, 1.0, 9) for at in range(1, 9)),
        )
        for scheme in SCHEMES[:5]
        for tau1 in (50, 1, 7, 100)
    ]
    task = TaskProfile(1, 1, 1, 1, 1)
    return plan_picture(
        Plan(Goal("accuracy", 0.9), task, tuple(rows), rows[1], 9, 9, 9, True), width
    )


def held(width: str | None) -> Figure:
    return holdings(np.arange(80).reshape(8, 10), np.arange(8) % 2, width)


PICTURES: dict[str, Callable[[str | None], Figure]] = {
    "curves": lambda width: curves(runs(), 0.8, width=width),
    "many curves": lambda width: curves(named(12, 40), 0.8, width=width),
    "sweep": swept,
    "topology": ring,
    "plan": planned,
    "holdings": held,
    "many holders": lambda width: holdings(np.ones((200, 10), int), np.arange(200) % 40, width),
    "timeline": lambda width: gantt([("x", Timeline.of(SYNC))], 0, 7, None, width),
    "two timelines": lambda width: gantt([("x" * 60, Timeline.of(SYNC))] * 2, 0, 7, [0], width),
}


class Witness(Artist):
    """Drawn last, with everything else: it sees where a file has its words and its ticks."""

    def __init__(self, of: Figure) -> None:
        super().__init__()
        self.of = of
        self.words: list[tuple[Text, Bbox]] = []
        self.ticks: list[list[Bbox]] = []  # along the horizontal axes
        self.page: BboxBase = of.bbox
        self.set(zorder=1e9, in_layout=False)
        of.add_artist(self)

    def draw(self, renderer: RendererBase) -> None:
        """The layout may move things between two passes: the last one is what is saved."""
        self.words = [(text, text.get_window_extent(renderer)) for text in written(self.of)]
        self.page = self.of.bbox.frozen()
        self.ticks = [
            [text.get_window_extent(renderer) for text in x_ticks(axes) if text.get_text()]
            for axes in self.of.axes
        ]


def written(figure: Figure) -> list[Text]:
    """Everything that can be read in a picture."""
    ticks = {id(text) for axes in figure.axes for text in all_ticks(axes)}
    drawn = {id(text) for axes in figure.axes for text in [*x_ticks(axes), *y_ticks(axes)]}
    shown = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible()]
    shown = [text for text in shown if id(text) not in ticks or id(text) in drawn]
    return [text for text in shown if text.get_text().strip() and _on(text)]


def saved(figure: Figure, path: Path) -> Witness:
    """What is in the file, once it is written."""
    seen = Witness(figure)
    save(figure, path)
    seen.remove()  # whatever is drawn from now on is not in the file
    assert seen.words
    return seen


def check_whole(seen: Witness) -> None:
    """Nothing that the file shows is cut off at its edges."""
    edge = 1.5 * seen.of.dpi / 100
    for text, box in seen.words:
        across = seen.page.x0 - edge <= box.x0 and box.x1 <= seen.page.x1 + edge
        upright = seen.page.y0 - edge <= box.y0 and box.y1 <= seen.page.y1 + edge
        assert (across, upright) == (True, True), f"{text.get_text()} is cut"


@pytest.mark.parametrize(
    ("name", "width"),
    [  # a column has the least room, and lines and legends have the most to place
        pytest.param(name, width, marks=[] if often else pytest.mark.slow)
        for name in PICTURES
        for width in WIDTHS
        for often in [width == "column" or name in ("many curves", "plan")]
    ],
)
def test_every_picture_fits_its_width(name: str, width: str, tmp_path: Path) -> None:
    figure = fitted(PICTURES[name](width), width)
    kind = "pdf" if name == "plan" else "svg"  # both place words alike, and fonts take their time
    seen = saved(figure, tmp_path / f"picture.{kind}")
    assert figure.get_figwidth() == pytest.approx(WIDTHS[width])
    check_whole(seen)
    for text, _ in seen.words:
        if width != "slide":
            assert SMALLEST - 0.01 <= float(text.get_fontsize()) <= LARGEST + 0.01, text.get_text()
    for boxes in seen.ticks:
        for left, right in pairwise(sorted(boxes, key=lambda box: box.x0)):
            assert left.x1 <= right.x0 + 0.5, f"ticks of {name} are written over each other"


def test_a_label_that_the_file_cuts_is_seen(tmp_path: Path) -> None:
    """Even if a layout makes room for it afterwards: that comes too late."""
    figure = Figure(figsize=(3.3, 2.0))
    figure.subplots_adjust(left=0.02)
    figure.subplots().set_ylabel("two\nlines")
    seen = saved(figure, tmp_path / "picture.svg")
    figure.subplots_adjust(left=0.3)
    figure.draw_without_rendering()
    assert all(text.get_window_extent().x0 > -1.5 for text, _ in seen.words)  # whole on the screen
    with pytest.raises(AssertionError, match="is cut"):
        check_whole(seen)


def all_ticks(axes: Axes) -> list[Text]:
    kinds = [False, True]
    return [
        label
        for minor in kinds
        for label in [*axes.get_xticklabels(minor=minor), *axes.get_yticklabels(minor=minor)]
    ]


def x_ticks(axes: Axes) -> list[Text]:
    """Labels of ticks within the axis: others are never drawn."""
    low, high = sorted(axes.get_xlim())
    pairs = zip(axes.get_xticks(), axes.get_xticklabels(), strict=False)
    return [text for at, text in pairs if low <= at <= high and text.get_visible()]


def y_ticks(axes: Axes) -> list[Text]:
    low, high = sorted(axes.get_ylim())
    pairs = zip(axes.get_yticks(), axes.get_yticklabels(), strict=False)
    return [text for at, text in pairs if low <= at <= high and text.get_visible()]


def _on(text: Text) -> bool:
    """Axes that are switched off draw no labels."""
    return text.axes is None or text.axes.axison or text in text.axes.texts


def test_panels_of_a_row_share_their_unit() -> None:
    names = {axes.get_xlabel() for axes in swept(None).axes if "time" in axes.get_xlabel()}
    assert len(names) == 1


def test_two_wide_panels_are_refused_in_a_column(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not fit a width of 'column': choose the width page"):
        save(held(None), tmp_path / "x.pdf", "column")


@given(st.integers(2, 60), st.integers(0, 2**32 - 1))
def test_circles_of_a_map_do_not_overlap(count: int, seed: int) -> None:
    """However close servers are; even at one place."""
    places = np.random.default_rng(seed).integers(-5, 6, (count, 2)) / 5.0
    size = np.full(count, min(0.2, 0.8 / np.sqrt(count)))
    found = apart(places, size)
    gaps = np.linalg.norm(found[:, None] - found, axis=2) + 9 * np.eye(count)
    assert gaps.min() >= size[0]
    assert np.abs(found).max() < 2.5


def test_legends_of_a_plan_hide_no_candidate() -> None:
    figure = planned(None)
    figure.draw_without_rendering()
    for axes in figure.axes:
        legend = axes.get_legend()
        assert legend is not None
        assert not axes.get_window_extent().overlaps(legend.get_window_extent())
        assert "$" not in "".join(text.get_text() for text in all_ticks(axes))  # no powers of ten
    assert min(figure.axes[0].get_ylim()) > 0.3  # nobody runs a tenth of an iteration


def test_an_unknown_width_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no width 'wide': choose one of column, page, slide"):
        save(curves(runs()), tmp_path / "x.pdf", "wide")
