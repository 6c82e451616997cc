"""The bound next to what was measured: its table, its picture, its place on the page."""

from io import StringIO
from xml.etree import ElementTree

import pytest
from rich.console import Console

from sdfeel.report import bound, bound_picture
from sdfeel.report.curves import own_names
from sdfeel.report.drawing import svg
from sdfeel.report.history import History
from sdfeel.report.page import page
from sdfeel.report.tables import summary
from sdfeel.run import bounds
from tests.report.runs import measured, started


def history(label: str, covered: bool, known: bool = True) -> History:
    events = [started()]
    for number in range(5):
        found = {
            bounds.SLOPE: 1.0 / (1 + number),
            bounds.MEAN: 2.0 / (1 + number),
            bounds.SMOOTHNESS: 3.0 + (number == 2),
            bounds.NOISE: 0.5,
            bounds.DIVERGENCE: 6.0,
        }
        if known:
            found |= {bounds.PROVEN: 0.01, bounds.COVERED: float(covered)}
            found |= {bounds.BOUND: 80.0 / number} if number else {}
        events.append(measured(number, 0.5, metrics=found))  # type: ignore[arg-type]
    return History.of(label, events)


def test_a_line_shows_how_loose_the_bound_is_with_the_worst_values_seen() -> None:
    (line,) = bound.rows([history("a", True), History.of("plain", [measured(1, 0.5)])])
    assert dict(zip(bound.TITLES, line, strict=True)) == {
        "run": "a",
        "measured": "0.400",
        "bound": "20.0",
        "bound / measured": "50.0",
        "L": "4.00",
        "sigma²": "0.500",
        "kappa²": "6.00",
        "proven rate": "0.0100",
    }


def test_a_scheme_that_the_theorem_does_not_know_has_no_bound() -> None:
    (line,) = bound.rows([history("a", False, known=False)])
    assert line[2:4] == ["-", "-"]
    assert bound.beyond([history("a", False, known=False)]) == []


@pytest.mark.usefixtures("_undrawn")
def test_the_page_says_whose_learning_rate_is_beyond_the_proof() -> None:
    html = page("x", [history("within", True), history("<b>eyond", False)], None, "")
    assert "The bound of Theorem 1" in html
    assert "The learning rate of &lt;b&gt;eyond is larger" in html
    assert "The bound of Theorem 1" not in page(
        "x", [History.of("a", [measured(1, 0.5)])], None, ""
    )


def test_estimates_are_not_among_the_users_metrics() -> None:
    assert own_names([history("a", True)]) == []


def test_the_picture_has_three_lines_for_each_run_that_has_them() -> None:
    plain = History.of("plain", [measured(1, 0.5)])
    drawn = bound_picture.picture([plain, history("a", True), history("b", False)])
    lines = drawn.axes[0].get_lines()
    assert len(lines) == 6
    assert len({line.get_color() for line in lines}) == 2
    assert "at the proven rate" in svg(drawn)
    ElementTree.fromstring(svg(drawn))


def test_the_terminal_says_what_is_promised_and_for_which_rate() -> None:
    told = {covered: printed(history("a", covered)) for covered in (True, False)}
    for text in told.values():
        assert "mean squared gradient" in text
        assert "20.0" in text
        assert bounds.COVERED not in text
    assert "at the proven rate 0.0100" in told[False]
    assert "at the proven rate" not in told[True]


def printed(one: History) -> str:
    console = Console(width=100, file=StringIO())
    console.print(summary(one, None))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]
