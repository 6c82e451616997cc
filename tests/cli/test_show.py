"""`sdfeel show` makes again what was made, and destroys nothing."""

import json
from pathlib import Path

import pytest

from sdfeel.core.run_files import GROUP, PAGE
from tests.cli.command import call, settings

pytestmark = pytest.mark.usefixtures("_undrawn")

QUICK = ["--set", "training.iterations=10", "--set", "training.engine=loop"]


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "--schemes", "sd-feel,fedavg", "--seeds", "2"],
        ["sweep", "scheme.tau1=1,5", "seed=0..1"],
    ],
    ids=["compare", "sweep"],
)
def test_shown_again_seeds_are_still_averaged(command: list[str], tmp_path: Path) -> None:
    made = call(*command, *settings(), *QUICK, "--out", tmp_path / "out", "--json")
    assert made.code == 0, made.err
    page = (tmp_path / "out" / PAGE).read_text()
    shown = call("show", tmp_path / "out", "--json")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["runs"] == json.loads(made.out)["runs"]
    assert (tmp_path / "out" / PAGE).read_text() == page


def test_a_directory_without_a_record_shows_every_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = call(
        "compare", "--schemes", "sd-feel", "--seeds", "2", *settings(), *QUICK, "--out", out
    )
    assert made.code == 0, made.err
    (out / GROUP).write_text("{not json")
    shown = json.loads(call("show", out, "--json").out)
    assert [run["label"] for run in shown["runs"]] == ["sd-feel-seed0", "sd-feel-seed1"]
