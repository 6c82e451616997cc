"""Several runs side by side."""

from pathlib import Path
from typing import Any

import pytest

from sdfeel.core.run_files import EXPERIMENT
from tests.dashboard.conftest import Page
from tests.dashboard.logs import events, write


def seeded(root: Path, scheme: str, seed: int, rounds: int = 40) -> str:
    run = write(root / "race" / f"{scheme}-seed{seed}", events(rounds, scheme, seed))
    (run / EXPERIMENT).write_text(f'seed = {seed}\n[scheme]\nname = "{scheme}"\ntau1 = 5\n')
    return f"race/{run.name}"


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    return [seeded(tmp_path, scheme, seed) for scheme in ("sd-feel", "feel") for seed in (0, 1)]


def compared(page: Page, names: list[str], **more: str) -> Any:
    query: dict[str, str | list[str]] = {"run": names, **more}
    return page().get("/api/compare", params=query).json()


def test_every_run_has_a_line_a_row_and_a_column_of_differences(
    page: Page, names: list[str]
) -> None:
    shown = compared(page, names)
    assert [line["label"] for line in shown["charts"]["lines"]] == names
    assert len(shown["table"]["rows"]) == 4
    assert shown["differences"] == [
        {"key": "seed", "values": ["0", "1", "0", "1"]},
        {"key": "scheme.name", "values": ["sd-feel", "sd-feel", "feel", "feel"]},
    ]
    assert shown["alike"] == 1


def test_seeds_are_one_line_with_a_band(page: Page, names: list[str]) -> None:
    shown = compared(page, names, seeds="mean")
    lines = shown["charts"]["lines"]
    assert [line["label"] for line in lines] == [
        "race/sd-feel (mean of 2 seeds)",
        "race/feel (mean of 2 seeds)",
    ]
    assert lines[0]["low"][0] == lines[0]["y"][0] == lines[0]["high"][0]  # the seeds agree here


def test_time_and_data_to_the_target_are_shown(page: Page, names: list[str]) -> None:
    shown = compared(page, names, target="0.4")
    titles = [column["title"] for column in shown["table"]["columns"]]
    row = dict(zip(titles, shown["table"]["rows"][0], strict=True))
    # The accuracy is a 50th of the round, and is measured at every fourth: 0.4 at the 20th.
    assert row["time to 40 %"]["text"] == "6.25 s"
    assert row["data to 40 %"]["text"] == "20.0 kB"


@pytest.mark.parametrize("target", ["1.5", "-1", "nan", "many"])
def test_a_bad_target_is_refused(page: Page, names: list[str], target: str) -> None:
    assert "target" in compared(page, names, target=target)["error"]


def test_too_many_runs_are_refused(page: Page) -> None:
    assert "at most 60" in compared(page, [f"run{n}" for n in range(61)])["error"]
