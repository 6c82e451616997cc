"""How plans are judged; the grid itself is for `sdfeel bench plan`."""

from pathlib import Path

import pytest

from sdfeel.core.errors import InputError
from sdfeel.run.plan import bench
from sdfeel.run.plan.bench import Tried, Verdict, experiment, grid
from tests.cli.command import call

GOOD = Verdict("slow backhaul", "a", 1.0, "b", 0.9, 2.0, 20, 400, 50, 1000)


def test_a_verdict_is_three_ratios() -> None:
    assert GOOD.behind == pytest.approx(1 / 0.9)
    assert GOOD.speedup == 2.0
    assert GOOD.compute == 0.05


def test_five_situations_start_from_the_papers_default_setting() -> None:
    assert len(bench.SITUATIONS) == 5
    for name in bench.SITUATIONS:
        found = experiment(name)
        assert (found.scheme.name, found.network.graph) == ("sd-feel", "ring")
        assert found.scheme.options == {}


def test_a_damaged_grid_is_told(tmp_path: Path) -> None:
    (tmp_path / "slow-backhaul-0.jsonl").write_text('{"label": "x", "sec')
    with pytest.raises(InputError, match=r"slow-backhaul-0.jsonl is damaged: remove it"):
        next(grid("slow backhaul", tmp_path))


def test_what_is_in_the_directory_is_not_done_again(tmp_path: Path) -> None:
    (tmp_path / "slow-backhaul-0.jsonl").write_text('{"label": "x", "seconds": null, "steps": 7}\n')
    assert next(grid("slow backhaul", tmp_path)) == Tried("x", None, 7)


def test_an_unknown_situation_is_told_with_a_guess() -> None:
    outcome = call("bench", "plan", "--situations", "slow backhall")
    assert outcome.code == 1
    assert "unknown situation 'slow backhall': did you mean 'slow backhaul'?" in outcome.sentence
