"""The cheapest claims, judged for real: a change that flips one of these verdicts is seen here.

All others are judged by `make figures`.
"""

from pathlib import Path
from typing import Any

import pytest

from sdfeel.figures.catalogue import FIGURES
from sdfeel.figures.judging import curves, flips, is_clear, judge, load, record
from sdfeel.figures.running import Carrying, wanted

RESULTS = Path(__file__).parents[2] / "results"


def today(name: str) -> dict[str, Any]:
    """A figure's record at quick scale, run again."""
    figure = FIGURES[name]
    list(Carrying(wanted(figure.lines(figure.setting("quick")), 3), 2))
    found = curves(figure, "quick", 3)
    return record(figure, "quick", 3, found, judge(figure, "quick", found))


def kept(name: str) -> dict[str, Any]:
    """A figure's record at quick scale that is kept in results/."""
    found = load(RESULTS, "quick", name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["3", "table1", pytest.param("4a", marks=pytest.mark.slow)])
def test_no_clear_verdict_has_flipped(name: str) -> None:
    assert any(is_clear(claim) for claim in kept(name)["claims"])
    assert [str(flip) for flip in flips(kept(name), today(name)) if flip.clear] == []


def test_the_race_is_won_as_the_paper_says() -> None:
    clear = {(c["id"], c["prices"]): c["verdict"] for c in kept("4a")["claims"] if is_clear(c)}
    assert clear["4.1", "A"] == clear["4.1", "E"] == "holds"
    assert (clear["4.4", "A"], clear["4.4", "E"]) == ("does not hold", "holds")
