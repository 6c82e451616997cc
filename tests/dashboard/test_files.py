"""No name and no link leads out of the directory."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.run_files import EVENTS, EXPERIMENT
from sdfeel.dashboard import log_files
from sdfeel.dashboard.log_files import NotHere, Root
from tests.dashboard.logs import events, write

HOSTILE = ["..", "../outside", "a/../../outside", "/etc", "a/./../..", ".hidden", "a\0b", "~", "//"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with a run, beside one that nobody may see."""
    write(tmp_path / "served" / "race" / "one", events())
    write(tmp_path / "outside", events())
    return tmp_path


def test_runs_are_found_at_any_depth(home: Path) -> None:
    write(home / "served" / "deep" / "er" / "two", events())
    (home / "served" / "waiting").mkdir()
    (home / "served" / "waiting" / EXPERIMENT).write_text("")
    names = sorted(place.name for place in Root(home / "served").runs())
    assert names == ["deep/er/two", "race/one", "waiting"]


def test_a_run_may_be_the_directory_itself(home: Path) -> None:
    root = Root(home / "outside")
    assert [place.name for place in root.runs()] == ["."]
    assert root.read(".", EVENTS)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_climbs_out(home: Path, name: str) -> None:
    root = Root(home / "served")
    with pytest.raises(NotHere):
        root.folder(name)
    with pytest.raises(NotHere):
        root.open(name, EVENTS)


@given(st.text(st.sampled_from("./ao\\%~\0e"), max_size=14))
def test_whatever_the_name_the_path_stays_inside(home: Path, name: str) -> None:
    root = Root(home / "served")
    try:
        found = root.directory(name)
    except NotHere:
        return
    assert found.resolve().is_relative_to(root.path)


def test_links_are_neither_listed_nor_followed(home: Path) -> None:
    served = home / "served"
    (served / "way-out").symlink_to(home / "outside")
    (served / "linked-log").mkdir()
    (served / "linked-log" / EXPERIMENT).write_text("")
    (served / "linked-log" / EVENTS).symlink_to(home / "outside" / EVENTS)
    root = Root(served)
    assert "way-out" not in {place.name for place in root.runs()}
    for name, file in [("way-out", EVENTS), ("linked-log", EVENTS)]:
        with pytest.raises(NotHere):
            root.read(name, file)


def test_a_pipe_in_place_of_a_log_blocks_nobody(home: Path) -> None:
    (home / "served" / "pipe").mkdir()
    os.mkfifo(home / "served" / "pipe" / EVENTS)
    with pytest.raises(NotHere, match="is not a file"):
        Root(home / "served").open("pipe", EVENTS)


def test_looking_for_runs_ends_even_in_a_forest(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MOST", 5)
    for number in range(20):
        (home / "served" / f"empty{number}").mkdir()
    assert len(list(Root(home / "served").runs())) <= 5
