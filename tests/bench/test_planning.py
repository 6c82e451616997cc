"""How plans are judged; the grid itself is for `sdfeel bench plan`."""

import json
from dataclasses import asdict
from math import inf
from pathlib import Path

import pytest

from sdfeel.bench import planning
from sdfeel.bench.planning import Online, SituationResult, Tried, experiment, grid
from sdfeel.core.errors import InputError
from tests.cli.command import call

GOOD = SituationResult("slow backhaul", "a", 1.0, "b", 0.9, 2.0, 20, 400, 50, 1000)


def test_a_verdict_is_three_ratios() -> None:
    assert GOOD.behind == pytest.approx(1 / 0.9)
    assert GOOD.speedup == 2.0
    assert GOOD.compute == 0.05


def test_all_situations_start_from_the_papers_default_setting() -> None:
    assert len(planning.SITUATIONS) == 6
    for name in planning.SITUATIONS:
        found = experiment(name)
        graph = "geometric" if name == "far cells" else "ring"
        assert (found.scheme.name, found.network.graph) == ("sd-feel", graph)
        assert found.scheme.options == {}


def test_a_damaged_grid_is_reported(tmp_path: Path) -> None:
    (tmp_path / "slow-backhaul-0.jsonl").write_text('{"label": "x", "sec')
    with pytest.raises(InputError, match=r"slow-backhaul-0.jsonl is damaged: remove it"):
        next(grid("slow backhaul", tmp_path))


def test_what_is_in_the_directory_is_not_done_again(tmp_path: Path) -> None:
    (tmp_path / "slow-backhaul-0.jsonl").write_text('{"label": "x", "seconds": null, "steps": 7}\n')
    assert next(grid("slow backhaul", tmp_path)) == Tried("x", None, 7)


def test_an_unknown_situation_is_refused_with_a_guess() -> None:
    outcome = call("bench", "plan", "--situations", "slow backhall")
    assert outcome.code == 1
    assert "unknown situation 'slow backhall': did you mean 'slow backhaul'?" in outcome.sentence


DEFAULT = "sd-feel tau1=5 tau2=1 alpha=1 rate=0.05"


def test_an_online_line_compares_with_the_best_fixed_setting_and_the_default() -> None:
    line = Online("slow backhaul", 0.05, 1.2, "b", 1.0, 3.0)
    assert line.behind == 1.2
    assert line.speedup == pytest.approx(2.5)
    never = Online("slow backhaul", 0.05, None, "b", 1.0, 3.0)
    assert (never.behind, never.speedup) == (inf, 0.0)


@pytest.mark.slow
def test_periods_chosen_on_the_way_run_at_the_given_rate(tmp_path: Path) -> None:
    """A grid whose lines are all there already, of which only the default reached the target."""
    name = "imbalanced clusters"
    _, entries = planning._field(name, 0)
    tried = [Tried(e.candidate.label, None, 10) for e in entries if e.candidate.label != DEFAULT]
    lines = [*tried, Tried(DEFAULT, 0.847, 10)]
    file = tmp_path / "imbalanced-clusters-0.jsonl"
    file.write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines))
    words = ("bench", "plan", "--online", "--situations", name, "--out", str(tmp_path))
    outcome = call(*words, "--json")
    assert outcome.code == 0, outcome.err
    (found,) = json.loads(outcome.out)
    assert (found["rate"], found["best"], found["best_seconds"]) == (0.05, DEFAULT, 0.847)
    assert found["seconds"] is not None
    assert found["behind"] == pytest.approx(found["seconds"] / 0.847)
    with pytest.raises(InputError, match=r"nothing reached 0\.9 in the situation"):
        planning.online(name, tried)
    assert "best fixed setting" in call(*words).out
