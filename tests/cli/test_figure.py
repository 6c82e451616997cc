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
