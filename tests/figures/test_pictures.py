"""The pictures of figures: lines that can be told apart, and legends that say what is not drawn."""

from itertools import combinations

import numpy as np
import pytest

from sdfeel.figures.all_figures import FIGURES
from sdfeel.figures.curves import Axis, Curve, Measure, RunTrack
from sdfeel.figures.figure import Figure, Panel, Scale
from sdfeel.figures.paper.race import ALL, CELL, PRINTED
from sdfeel.figures.pictures import note, picture, plain, styles_by_label, units_of
from sdfeel.figures.settings import Reading
from sdfeel.report.styles import line_style

DRAWN = [
    (figure, scale, reading)
    for figure in FIGURES.values()
    for scale in figure.scales
    for reading in figure.readings
    if figure.panels
]


def track(height: float, diverged: bool = False) -> RunTrack:
    x = np.array([0.0, 300.0, 600.0])
    columns: dict[Measure, np.ndarray] = {
        "loss": 2.3 - x / 300,
        "accuracy": 0.1 + height * x / 600,
        "spread": 0 * x,
    }
    axes: tuple[Axis, ...] = ("iterations", "seconds", "bytes", "joules")
    return RunTrack({axis: x for axis in axes}, columns, diverged)


def curves_of(figure: Figure, scale: Scale, reading: Reading) -> dict[str, Curve]:
    lines = figure.lines(figure.setting(scale, reading))
    return {
        line.label: Curve(line.label, (track(0.8 - 0.01 * n), track(0.7 - 0.01 * n)))
        for n, line in enumerate(lines)
    }


@pytest.mark.parametrize(("figure", "scale", "reading"), DRAWN, ids=lambda x: getattr(x, "name", x))
def test_no_two_lines_of_a_panel_have_one_colour(
    figure: Figure, scale: Scale, reading: Reading
) -> None:
    """But for kinds of the same variant ("synchronous, H = 5"), which differ in their dash."""
    panels = [panel for panel in figure.panels if panel.reading == reading]
    known = list(curves_of(figure, scale, reading))
    shown = [[plain(label, panel) for label in panel.labels or known] for panel in panels]
    styles = styles_by_label(list(dict.fromkeys(label for labels in shown for label in labels)))
    looks = {label: line_style(style) for label, style in styles.items()}
    for labels in shown:
        for one, other in combinations(labels, 2):
            same = one.partition(", ")[2] == other.partition(", ")[2] != ""
            what = "linestyle" if same else "color"
            assert looks[one][what] != looks[other][what], f"{one} and {other} look alike"


@pytest.mark.parametrize("name", ["7", "8a", "tiers-tuned"])
def test_panels_of_one_measure_have_one_scale(name: str) -> None:
    figure = FIGURES[name]
    found = {reading: curves_of(figure, "full", reading) for reading in figure.readings}
    drawn = picture(figure, "full", found)
    assert drawn is not None
    limits = {axes.get_ylim() for axes in drawn.axes if axes.lines}
    assert len(limits) == 1


PAPERS = [each for each in FIGURES.values() if each.name[0].isdigit() and each.panels]


@pytest.mark.parametrize("figure", PAPERS, ids=lambda figure: figure.name)
def test_what_a_figure_of_the_paper_claims_can_be_seen(figure: Figure) -> None:
    """Every line in some panel, and a panel with the axis of every claim."""
    elsewhere = {ALL, CELL} if {ALL, CELL} <= drawn_in(FIGURES["5a"]) else set()  # the same runs
    for scale in figure.scales:
        for reading in figure.readings:
            lines = {line.label for line in figure.lines(figure.setting(scale, reading))}
            shown = drawn_in(figure, reading)
            assert lines - (shown or lines) <= elsewhere
            assert shown <= lines
    axes = {panel.axis for panel in figure.panels}
    assert {claim.axis for claim in figure.claims} <= axes


def drawn_in(figure: Figure, reading: Reading = "A") -> set[str]:
    """The labels in a figure's panels; none if one of them has all lines."""
    panels = [panel.labels for panel in figure.panels if panel.reading == reading]
    return {label for labels in panels for label in labels} if all(panels) else set()


@pytest.mark.parametrize("name", ["7", "4a", "5a"])
def test_the_first_panels_have_the_papers_lines_and_no_others(name: str) -> None:
    printed = {"7": {"tau1 = 1, tau2 = 1", "tau1 = 3, tau2 = 1", "tau1 = 20, tau2 = 1"}}
    for reading in ("A", "E"):
        first = next(panel for panel in FIGURES[name].panels if panel.reading == reading)
        assert set(first.labels) == printed.get(name, set(PRINTED))


@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize("name", ["4a", "7", "10a"])
def test_a_picture_in_print_fits_its_page(name: str, width: str) -> None:
    figure = FIGURES[name]
    found = {reading: curves_of(figure, "full", reading) for reading in figure.readings}
    drawn = picture(figure, "full", found, width)
    assert drawn is not None
    assert drawn.get_figheight() < 9.5  # inches: an A4 page has 11.7, and margins
    assert drawn.get_suptitle() == ""  # papers have captions


def test_a_run_that_is_not_drawn_is_not_left_out() -> None:
    found = curves_of(FIGURES["drift"], "full", "A")
    strained = next(label for label in found if label.endswith("rate 0.2"))
    found[strained] = Curve(strained, (track(0.8), track(0.8, diverged=True)))
    assert "left out" not in note(FIGURES["drift"], "full", {"A": found})
    shown = FIGURES["drift"].panels[0].labels[0]
    found[shown] = found[strained]
    assert "left out" in note(FIGURES["drift"], "full", {"A": found})


def test_times_in_a_picture_have_one_unit() -> None:
    """Beside an hour and a half, 85 minutes would look longer."""
    panels = tuple(Panel("loss", "seconds", (label,)) for label in ("long", "short"))
    x = np.array([0.0, 6000.0, 12000.0])
    found = {
        label: Curve(label, (RunTrack({"seconds": x * size}, {"loss": 2.3 - x / 12000}),))
        for label, size in (("long", 1.0), ("short", 0.2))
    }
    assert len({unit.name for unit in units_of(panels, {"A": found}).values()}) == 1


@pytest.mark.parametrize(
    ("lost", "told"),
    [((), "eta = 0.1"), (("E",), "eta = 0.1 (E: 1 of 3 diverged)"), (("A", "E"), "A: 1 of 3")],
)
def test_a_line_is_the_mean_of_the_runs_that_lasted_and_says_how_many_did_not(
    lost: tuple[Reading, ...], told: str
) -> None:
    figure = FIGURES["11a"]
    found = {reading: curves_of(figure, "full", reading) for reading in figure.readings}
    for reading in lost:
        lasting = found[reading]["eta = 0.1"].runs
        gone = RunTrack({k: x[:2] / 9 for k, x in lasting[0].x.items()}, {
            k: y[:2] for k, y in lasting[0].y.items()
        }, True)  # fmt: skip
        found[reading]["eta = 0.1"] = Curve("eta = 0.1", (*lasting, gone))
    drawn = picture(figure, "full", found)
    assert drawn is not None
    box = drawn.legends[0]
    assert any(told in text.get_text() for text in box.get_texts())
    assert ("left out" in " ".join(box.get_title().get_text().split())) == bool(lost)
    for axes in drawn.axes:
        ends = [float(np.asarray(line.get_ydata())[-1]) for line in axes.lines]
        assert min(ends) > 0.7
