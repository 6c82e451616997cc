"""`sdfeel figure`: what it prints, draws and refuses."""

import json
from pathlib import Path

import pytest

from tests.cli.command import call

RESULTS = Path(__file__).parents[2] / "results"


def test_a_figure_without_runs_is_drawn_and_judged(tmp_path: Path) -> None:
    done = call("figure", "3", "--out", tmp_path)
    assert done.code == 0
    assert "holds" in done.out
    assert (tmp_path / "quick" / "3.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("form", "begins"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_figure_is_drawn_from_its_kept_curves(tmp_path: Path, form: str, begins: bytes) -> None:
    done = call(
        "figure", "4a", "--scale", "quick", "--results", RESULTS, "--out", tmp_path,
        "--format", form, "--check",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "seeds for," in done.out.replace("\n", " ")
    assert (tmp_path / "quick" / f"4a.{form}").read_bytes().startswith(begins)


def test_without_curves_the_way_to_them_is_named(tmp_path: Path) -> None:
    done = call("figure", "4a", "--scale", "full", "--results", tmp_path)
    assert done.code == 1
    assert done.sentence == (
        f"sdfeel: {tmp_path} has no curves of figure 4a at full scale: compute them with sdfeel "
        f"figure 4a --scale full --run, or name another directory with --results"
    )


def test_json_is_one_document(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = call("figure", "3,table1", "--out", tmp_path, "--results", kept, "--keep", "--json")
    figures = json.loads(done.out)["figures"]
    assert [each["figure"] for each in figures] == ["3", "table1"]
    assert figures[0]["claims"][0]["verdict"] == "holds"
    saved = json.loads((kept / "quick" / "3.json").read_text())
    assert saved["claims"] == figures[0]["claims"]


def test_an_unknown_figure_gets_a_guess() -> None:
    done = call("figure", "4z")
    assert done.code == 1
    assert "unknown figure '4z'" in done.sentence
    assert "4a" in done.sentence


def test_verdicts_are_compared_with_the_kept_ones(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    call("figure", "3", "--out", tmp_path, "--results", kept, "--keep")
    assert call("figure", "3", "--out", tmp_path, "--results", kept, "--check").code == 0
    file = kept / "quick" / "3.json"
    file.write_text(file.read_text().replace('"holds"', '"does not hold"'))
    done = call("figure", "3", "--out", tmp_path, "--results", kept, "--check", "--keep")
    assert done.code == 1
    assert "3, claim 3.1: 'does not hold' became 'holds'" in done.err
    assert "verdicts or numbers differ from those kept" in done.sentence
    assert '"does not hold"' in file.read_text(), "what differs is not kept by a check"


def test_a_scale_that_a_figure_does_not_have_is_named() -> None:
    done = call("figure", "4a", "--scale", "small")
    assert done.code == 1
    assert done.sentence == "sdfeel: figure 4a has no small scale: choose quick or full"
