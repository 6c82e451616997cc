"""Several runs side by side."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdfeel.core.events import Evaluated, Event, Finished, Round, Started
from sdfeel.core.run_files import EXPERIMENT, GROUP
from tests.dashboard.conftest import Page
from tests.dashboard.logs import events, measured, started, write


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


def test_seeds_that_were_measured_at_different_moments_are_still_seeds(
    page: Page, tmp_path: Path
) -> None:
    """How often a run is measured is chosen for each seed; the user asked for the same."""
    names = []
    for seed, every in enumerate((4, 8)):
        kept = [
            event
            for event in events(40, "x", seed)
            if not (isinstance(event, Evaluated) and event.number % every)
        ]
        run = write(tmp_path / f"x-seed{seed}", kept)
        (run / EXPERIMENT).write_text(f"seed = {seed}\n[evaluation]\nevery = {every}\n")
        names.append(run.name)
    (only,) = compared(page, names, seeds="mean")["charts"]["lines"]
    assert only["label"] == "x (mean of 2 seeds)"
    # Both measured the same curve, so at equal iterations they agree and the band is a line.
    assert only["x"][1] == [0, 10, 20, 30, 40, 50]
    for low, high in zip(only["low"][0], only["high"][0], strict=True):
        assert low == pytest.approx(high)


def test_a_collapse_between_many_measurements_is_drawn_and_the_page_says_what_is_left_out(
    page: Page, tmp_path: Path
) -> None:
    fallen = {1001, 1777, 2500, 3333}
    steady = [measured(n, 0.02 if n in fallen else 0.9) for n in range(4000)]
    write(tmp_path / "long", [started(), *steady])
    (line,) = compared(page, ["long"])["charts"]["lines"]
    assert line["y"][0].count(0.02) == 4
    assert len(line["y"][0]) < line["measured"] == 4000


def test_a_run_has_one_look_in_the_list_alone_and_among_others(
    page: Page, names: list[str], tmp_path: Path
) -> None:
    lines = {"feel": ["feel-seed0", "feel-seed1"], "sd-feel": ["sd-feel-seed0", "sd-feel-seed1"]}
    (tmp_path / "race" / GROUP).write_text(json.dumps({"lines": lines}))
    client = page()
    listed = {found.name: found.style for found in client.app.app.state.dashboard.catalogue.runs()}  # type: ignore[attr-defined]
    assert listed["race/feel-seed0"] == 0
    assert listed["race/sd-feel-seed0"] == 1  # as in the group's own picture
    for some in (names, names[::-1], names[2:3]):
        shown = client.get("/api/compare", params={"run": some}).json()["charts"]["lines"]
        assert {line["label"]: line["style"] for line in shown} == {n: listed[n] for n in some}
        alone = client.get("/api/run", params={"name": some[0]}).json()
        assert alone["charts"]["lines"][0]["style"] == listed[some[0]]
    means = compared(page, names, seeds="mean")["charts"]["lines"]
    assert [line["style"] for line in means] == [1, 0]


def test_what_nobody_measured_is_not_zero(page: Page, tmp_path: Path) -> None:
    real: list[Event] = []
    for event in events():
        if isinstance(event, Started):
            real.append(replace(event, clock="real"))
        elif isinstance(event, Round | Evaluated | Finished):
            real.append(replace(event, joules=0.0))
    write(tmp_path / "deployed", real)
    shown = compared(page, ["deployed"])
    titles = [column["title"] for column in shown["table"]["columns"]]
    row = dict(zip(titles, shown["table"]["rows"][0], strict=True))
    assert next(cell["text"] for title, cell in row.items() if "energy" in title) == "unknown"
    figures = page().get("/api/run", params={"name": "deployed"}).json()["figures"]
    assert ["energy", "unknown"] in figures


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


def test_a_table_for_a_paper_has_a_line_for_all_seeds(page: Page, tmp_path: Path) -> None:
    for seed in (0, 1):
        run = write(tmp_path / f"race_one-seed{seed}", events(seed=seed))
        (run / "experiment.toml").write_text(f"seed = {seed}\n[scheme]\nname = 'sd-feel'\n")
    write(tmp_path / "two", events())
    client = page()
    runs = [("run", name) for name in ("race_one-seed0", "race_one-seed1", "two")]
    tex = client.get("/table", params=[*runs, ("as", "tex")]).text
    assert r"\toprule" in tex
    assert tex.count(r"race\_one &") >= 1
    assert "seed" not in tex.split(r"\toprule")[1].split(r"\bottomrule")[0]
    csv = client.get("/table", params=[*runs, ("as", "csv")]).text
    assert len(csv.splitlines()) > 2
    assert client.get("/table", params=[*runs, ("as", "exe")]).status_code == 400
