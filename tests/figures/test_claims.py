"""The cheapest claims, judged for real: a change that flips one of these verdicts is seen here.

All others are judged by `make figures`.
"""

from sdfeel.figures.catalogue import FIGURES
from sdfeel.figures.judging import curves, judge
from sdfeel.figures.lines import Line
from sdfeel.figures.running import Carrying, wanted


def verdicts(name: str) -> dict[str, str]:
    """Every claim of a figure at quick scale, with its price list where it has one."""
    figure = FIGURES[name]
    lines: list[Line] = list(figure.lines(figure.setting("quick")))
    list(Carrying(wanted(lines, 3), 2))
    judged = judge(figure, "quick", curves(figure, "quick", 3))
    return {f"{j.claim.id} {j.prices}".strip(): j.verdict.state for j in judged}


def test_the_graphs_agree_as_fast_as_printed() -> None:
    assert verdicts("3") == {"3.1": "holds"}


def test_the_table_is_as_printed() -> None:
    assert verdicts("table1") == {"T1": "holds"}


def test_uneven_data_slow_training_down() -> None:
    assert verdicts("9a") == {"9a.1 A": "holds", "9a.1 E": "holds"}
