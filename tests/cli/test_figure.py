"""`sdfeel figure`: what it prints, draws and refuses."""

import json
from pathlib import Path

from tests.cli.command import call


def test_a_figure_without_runs_is_drawn_and_judged(tmp_path: Path) -> None:
    done = call("figure", "3", "--out", tmp_path)
    assert done.code == 0
    assert "holds" in done.out
    assert (tmp_path / "quick" / "3.png").read_bytes().startswith(b"\x89PNG")


def test_machines_get_one_document(tmp_path: Path) -> None:
    done = call("figure", "3,table1", "--out", tmp_path, "--records", tmp_path / "kept", "--json")
    figures = json.loads(done.out)["figures"]
    assert [each["figure"] for each in figures] == ["3", "table1"]
    assert figures[0]["claims"][0]["verdict"] == "holds"
    kept = json.loads((tmp_path / "kept" / "quick" / "3.json").read_text())
    assert kept["claims"] == figures[0]["claims"]


def test_an_unknown_figure_gets_a_guess() -> None:
    done = call("figure", "4z")
    assert done.code == 1
    assert "unknown figure '4z'" in done.sentence
    assert "4a" in done.sentence


def test_verdicts_are_held_against_the_kept_ones(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    call("figure", "3", "--out", tmp_path, "--records", kept)
    assert call("figure", "3", "--out", tmp_path, "--check", kept).code == 0
    file = kept / "quick" / "3.json"
    file.write_text(file.read_text().replace('"holds"', '"does not hold"'))
    done = call("figure", "3", "--out", tmp_path, "--check", kept, "--records", kept)
    assert done.code == 1
    assert "3, claim 3.1: 'does not hold' became 'holds'" in done.err
    assert "verdicts differ from those kept" in done.sentence


def test_a_scale_that_a_figure_does_not_have_is_named() -> None:
    done = call("figure", "4a", "--scale", "reduced")
    assert done.code == 1
    assert done.sentence == "sdfeel: figure 4a has no reduced scale: choose quick or full"
