"""Kept verdicts are those of the kept curves, and the cheapest ones are computed for real.

All others are computed again by `make figures`.
"""

import csv
from pathlib import Path

import pytest

from sdfeel.figures import kept_curves
from sdfeel.figures.all_figures import FIGURES
from sdfeel.figures.figure import Scale
from sdfeel.figures.judging import flips, is_clear, load, record, shifts
from sdfeel.figures.running import Carrying, wanted
from sdfeel.figures.settings import SCALES

RESULTS = Path(__file__).parents[2] / "results"
KEPT = [(scale, file.stem) for scale in SCALES for file in sorted((RESULTS / scale).glob("*.json"))]


@pytest.mark.parametrize(("scale", "name"), KEPT, ids="-".join)
def test_every_kept_verdict_is_what_the_kept_curves_say(scale: Scale, name: str) -> None:
    figure = FIGURES[name]
    runs = kept_curves.load(RESULTS, scale, figure) or kept_curves.KeptFigure()
    assert runs.runs or not figure.data, "verdicts without curves prove nothing"
    again = record(figure, scale, runs.curves(figure, scale))
    assert again == load(RESULTS, scale, name), (
        f"judge them again: sdfeel figure {name} --scale {scale} --keep"
    )


@pytest.mark.parametrize(("scale", "name"), KEPT, ids="-".join)
def test_every_kept_curve_says_where_it_comes_from_and_is_small(scale: Scale, name: str) -> None:
    runs = kept_curves.load(RESULTS, scale, FIGURES[name])
    for made in runs.made() if runs is not None else ():
        assert {"versions", "machine", "engine", "data", "commit"} <= set(made)
        assert {"CPU", "instruction set"} <= set(made["machine"])
    file = kept_curves.file_of(RESULTS, scale, name)
    assert not file.is_file() or file.stat().st_size < 100_000


def test_what_is_calculated_has_not_changed() -> None:
    for name in ("3", "table1"):
        kept = load(RESULTS, "quick", name)
        assert kept is not None
        assert any(is_clear(claim) for claim in kept["claims"])
        assert record(FIGURES[name], "quick", {}) == kept


@pytest.mark.slow
def test_the_race_can_be_run_again() -> None:
    kept, figure = load(RESULTS, "quick", "5a"), FIGURES["5a"]
    assert kept is not None
    seeds = kept["seeds"]["A"]
    places = kept_curves.places(figure, "quick", seeds)
    runs = wanted((place[0], line, place[2]) for place, line in places if place[0] == "A")
    list(Carrying(runs, 2))
    runs_now = kept_curves.gathered(figure, "quick", seeds, kept_curves.KeptFigure())
    found = runs_now.curves(figure, "quick")
    now = record(figure, "quick", {"A": found["A"]})
    kept["claims"] = [claim for claim in kept["claims"] if claim["reading"] == "A"]
    kept["lines"] = {"A": kept["lines"]["A"]}
    assert [str(flip) for flip in flips(kept, now) if flip.clear] == []
    assert shifts(kept, now) == []


def rows() -> list[dict[str, str]]:
    with (RESULTS / "claims.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


OWN = {"B", "D", "K", "L", "M", "S"}  # prefixes of claims that are not the paper's


def test_every_claim_of_the_paper_has_a_line_and_every_line_a_claim_or_a_reason() -> None:
    ids = {claim.id for figure in FIGURES.values() for claim in figure.claims}
    printed = [name for row in rows() for name in row["claims"].split()]
    ours = [name for row in rows() for name in row["ours"].split()]
    assert {*printed, *ours} <= ids
    assert {name for name in ids if name[0] not in OWN} <= {*printed, *ours}
    assert not {*printed} & {*ours}
    assert [row for row in rows() if not row["claims"] and not row["why not"]] == []


def test_what_we_added_is_not_counted_as_the_papers() -> None:
    """4.1c contradicts the paper; the others were added when a claim of the paper's had failed."""
    ours = {name for row in rows() for name in row["ours"].split()}
    assert ours == {"4.1c", "7a.1b", "8.1b", "9a.1b", "9a.1c"}
    text = " ".join((RESULTS.parent / "docs" / "reproduce.md").read_text(encoding="utf-8").split())
    assert "9a.1b, 9a.1c, 7a.1b and 8.1b were added after" in text
    assert "4.1c is ours" in text


def test_the_papers_lines_are_in_order() -> None:
    lines = [int(row["line"]) for row in rows()]
    assert lines == sorted(lines)
    assert len(lines) > 40


def test_no_figure_uses_an_id_twice() -> None:
    for figure in FIGURES.values():
        ids = [claim.id for claim in figure.claims]
        assert len(ids) == len(set(ids))
