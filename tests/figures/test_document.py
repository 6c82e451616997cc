"""docs/reproduce.md says what results/ says."""

from pathlib import Path

from sdfeel.figures.catalogue import FIGURES
from sdfeel.figures.document import document, pairs
from sdfeel.figures.judging import load
from sdfeel.figures.settings import SCALES

ROOT = Path(__file__).parents[2]


def test_the_page_is_written_from_the_results() -> None:
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert page == document(ROOT / "results"), "rewrite it: python -m sdfeel.figures.document"


def test_every_figure_is_judged_at_quick_scale() -> None:
    for name, figure in FIGURES.items():
        if "quick" not in figure.scales:
            continue
        found = load(ROOT / "results", "quick", name)
        assert found is not None, f"no verdicts of {name}: sdfeel figure {name} --records results"
        kept = [(each["id"], each["prices"]) for each in found["claims"]]
        made = [(c.id, a if c.timed else "") for c in figure.claims for a in c.axes]
        assert kept == made


def test_quick_scale_says_what_full_scale_says_or_why_it_cannot() -> None:
    found = list(pairs(ROOT / "results", "full"))
    assert len(found) > 50
    assert [pair for pair in found if not pair.same and not pair.why] == []
    assert [pair for pair in found if pair.open or pair.contradicts] == []


def test_quick_scale_contradicts_reduced_scale_nowhere() -> None:
    found = list(pairs(ROOT / "results", "reduced"))
    assert found
    assert [pair for pair in found if pair.contradicts] == []


def test_no_record_speaks_of_a_claim_that_is_gone() -> None:
    for scale in SCALES:
        for file in (ROOT / "results" / scale).glob("*.json"):
            found = load(ROOT / "results", scale, file.stem)
            assert found is not None
            known = {claim.id for claim in FIGURES[file.stem].claims}
            assert {each["id"] for each in found["claims"]} <= known
