"""The cheapest claims, judged for real: a change that flips one of these verdicts is seen here.

All others are judged by `make figures`.
"""

from pathlib import Path

import pytest

from sdfeel.figures.catalogue import FIGURES
from sdfeel.figures.judging import curves, judge, load
from sdfeel.figures.running import Carrying, wanted

RESULTS = Path(__file__).parents[2] / "results"
CLEAR = 2.0  # standard errors: what is closer may flip with a compiler


def verdicts(name: str) -> dict[tuple[str, str], str]:
    """Every claim of a figure at quick scale, by its number and price list."""
    figure = FIGURES[name]
    list(Carrying(wanted(figure.lines(figure.setting("quick")), 3), 2))
    judged = judge(figure, "quick", curves(figure, "quick", 3))
    return {(each.claim.id, each.prices): each.verdict.state for each in judged}


def kept(name: str) -> dict[tuple[str, str], str]:
    """The clear verdicts that are kept in results/."""
    found = load(RESULTS, "quick", name)
    assert found is not None
    return {
        (each["id"], each["prices"]): each["verdict"]
        for each in found["claims"]
        if each["effect"] is not None and abs(each["effect"]) >= CLEAR * each["error"]
    }


@pytest.mark.parametrize("name", ["3", "table1", "4a"])
def test_the_verdicts_are_those_that_are_kept(name: str) -> None:
    clear, now = kept(name), verdicts(name)
    assert clear
    assert {claim: now[claim] for claim in clear} == clear


def test_the_race_is_won_as_the_paper_says() -> None:
    clear = kept("4a")
    assert clear["4.1", "A"] == clear["4.1", "E"] == "holds"
    assert (clear["4.4", "A"], clear["4.4", "E"]) == ("does not hold", "holds")
