"""docs/reproduce.md and its pages say what results/ says."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.figures.all_figures import FIGURES
from sdfeel.figures.document import PAGE, PAGES, documents
from sdfeel.figures.fixed_texts import HEADLINES
from sdfeel.figures.judging import load
from sdfeel.figures.quick_claims import Compared
from sdfeel.figures.settings import SCALES, Reading, Scale
from sdfeel.figures.summary import (
    PICTURED,
    TITLES,
    ShownClaim,
    bullets,
    drawn_at,
    figure_and_claim,
    first_screen,
)
from sdfeel.figures.verdicts import Verdict
from sdfeel.figures.verdicts_together import together
from sdfeel.figures.wanted_runs import PLANNED

ROOT = Path(__file__).parents[2]
STATES = ("holds", "does not hold", "not decided")


def test_the_pages_are_written_from_the_results() -> None:
    for place, text in documents(ROOT / "results").items():
        kept = (ROOT / place).read_text(encoding="utf-8")
        assert kept == text, f"rewrite {place}: python -m sdfeel.figures.document"


def test_the_page_can_be_read_in_one_go() -> None:
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) < 400


def test_every_kept_figure_has_a_picture_that_is_small() -> None:
    for figure in FIGURES.values():
        if drawn_at(ROOT / "results", figure) is not None:
            picture = ROOT / PAGES / f"{figure.name}.svg"
            assert picture.is_file(), "draw it: python -m sdfeel.figures.document"
            assert picture.stat().st_size < 100_000
            texts = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
            told = " ".join("".join(text.itertext()) for text in texts)  # in lines, perhaps
            assert " seed" in told or figure.drawn is not None


def test_the_first_screen_is_short_and_every_kind_on_it_has_a_picture() -> None:
    text = first_screen(ROOT / "results")
    told, pictures = text.split("\n| ", 1)
    assert len([line for line in told.splitlines() if line]) <= 10
    kinds = [TITLES[kind] for kind in PICTURED if f"**{TITLES[kind]}" in told]
    assert [kind for kind in kinds if f"{kind}: " not in f"| {pictures}"] == []


@given(st.lists(st.sampled_from(STATES), min_size=2 * len(HEADLINES), max_size=2 * len(HEADLINES)))
def test_whatever_the_verdicts_are_a_dozen_lines_say_them(states: list[str]) -> None:
    shown = [
        ShownClaim(
            *figure_and_claim(claim),
            "full",
            {"A": {"verdict": here}, "E": {"verdict": states[-1 - place]}},
        )
        for place, (claim, here) in enumerate(zip(HEADLINES, states, strict=False))
    ]
    told = "".join(bullets({k: [e for e in shown if e.kind == k] for k in TITLES}, ("A", "E")))
    assert len(told.splitlines()) <= 12
    assert all(f"[{claim}]" in told for claim in HEADLINES)


def test_verdicts_are_counted_once_each_when_they_are_judged_together() -> None:
    records = [load(ROOT / "results", "full", name) for name in FIGURES]
    claims = [each for record in records if record is not None for each in record["claims"]]
    counted = sum(each["seeds"] > 0 and each["verdict"] != "report only" for each in claims)
    assert f" all {counted} at full scale" in " ".join(together(ROOT / "results").split())


def test_headlines_are_about_claims_that_exist() -> None:
    assert set(HEADLINES) <= {claim.id for each in FIGURES.values() for claim in each.claims}


def test_no_record_speaks_of_a_claim_that_is_gone() -> None:
    for scale in SCALES:
        for file in (ROOT / "results" / scale).glob("*.json"):
            found = load(ROOT / "results", scale, file.stem)
            assert found is not None
            known = {claim.id for claim in FIGURES[file.stem].claims}
            assert {each["id"] for each in found["claims"]} <= known


def seen(state: str, agree: int, against: int) -> Verdict:
    return Verdict(state, seeds=5, agree=agree, against=against)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quick", "first", "second", "may", "confirmed"),
    [
        (seen("holds", 5, 0), seen("not decided", 2, 0), seen("not decided", 3, 0), True, True),
        (seen("holds", 5, 0), seen("not decided", 2, 0), seen("not decided", 1, 2), True, False),
        (seen("holds", 5, 0), seen("not decided", 0, 2), seen("not decided", 3, 0), False, False),
        (seen("holds", 5, 0), seen("not decided", 1, 1), seen("not decided", 3, 0), False, False),
        (
            seen("not decided", 4, 1), seen("not decided", 2, 0), seen("not decided", 3, 0),
            False, False,
        ),
        (
            seen("does not hold", 0, 5), seen("not decided", 0, 2), seen("not decided", 0, 3),
            True, True,
        ),
    ],
)  # fmt: skip
def test_quick_scale_may_judge_what_half_of_the_full_seeds_say_too(
    quick: Verdict, first: Verdict, second: Verdict, may: bool, confirmed: bool
) -> None:
    found = Compared("4a", "4.1", "A", quick, first, second)
    assert (found.may, found.confirmed) == (may, confirmed)


@pytest.mark.parametrize(
    ("scale", "verdicts", "kind", "marks"),
    [
        ("full", {"A": "holds", "E": "holds"}, "holds", ""),
        ("full", {"A": "holds"}, "holds", " (under A)"),
        ("full", {"A": "does not hold", "E": "holds"}, "depends", " (E only)"),
        ("full", {"A": "not decided", "E": "holds"}, "not decided", " (E: holds)"),
        ("quick", {"A": "holds", "E": "holds"}, "digits", " (holds)"),
        (None, {}, "none", ""),
    ],
)
def test_a_claim_is_filed_under_what_its_readings_say_together(
    scale: Scale | None, verdicts: dict[Reading | None, str], kind: str, marks: str
) -> None:
    figure = FIGURES["4a"]
    said = {reading: {"verdict": state} for reading, state in verdicts.items()}
    shown = ShownClaim(figure, figure.claims[0], scale, said)
    assert shown.kind == kind
    assert shown.told(("A", "E")) == f"[SD-FEEL beats HierFAVG][4.1]{marks}"


def test_planned_is_what_the_design_pages_name() -> None:
    """Figures and readings of the table of costs; the tiers are planned below it, in words."""
    text = (ROOT / PAGES / "full.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z0-9, -]+) \| [\d.]+ \| ([\d.]+|none) \|", text, re.MULTILINE)
    found: dict[Reading, set[str]] = {"A": set(), "E": set()}
    for names, passes in rows:
        for name in names.split(", "):
            found["A"].add(name)
            if passes != "none" and "E" in FIGURES[name].readings:
                found["E"].add(name)
    planned = {reading: set(PLANNED["full", reading]) for reading in found}
    assert planned["A"] - found["A"] == {"tiers-tuned", "4b-bridge"}
    assert planned["E"] - found["E"] == {"tiers-tuned", "tiers-review"}
    assert not (found["A"] - planned["A"] | found["E"] - planned["E"])
    small = (ROOT / PAGES / "cifar10.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"figure ([a-z0-9,-]+) --scale small", small)
    assert set(command.split(",")) <= set(PLANNED["small", "A"])


def test_a_dash_stands_for_what_is_planned_and_missing_and_for_nothing_else() -> None:
    found = documents(ROOT / "results")
    listed = set(re.findall(r"^\| full \| [AE] \| 0 of \d \| `sdfeel figure ([a-z0-9,-]+)",
                            found[PAGE], re.MULTILINE))  # fmt: skip
    missing = {name for names in listed for name in names.split(",")}
    rows = found[PAGES / "verdicts.md"].splitlines()
    dashed = {row.split("[")[1].split("]")[0] for row in rows if " | - |" in row}
    assert dashed == missing
