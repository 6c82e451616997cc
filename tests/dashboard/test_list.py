"""The list of runs: what it shows, and that it changes by itself."""

import fcntl
import os
from pathlib import Path

import pytest

from sdfeel.core.run_files import EVENTS, EXPERIMENT, LOCK
from sdfeel.dashboard.jobs import Jobs
from sdfeel.dashboard.log_files import Root, held
from sdfeel.dashboard.views import catalogue
from sdfeel.dashboard.views.catalogue import Catalogue, list_updates, run_updates
from sdfeel.report.history import History
from tests.dashboard.logs import events, line, measured, played, started, write


def states(directory: Path) -> dict[str, str]:
    return {found.name: found.state for found in Catalogue(Root(directory)).runs()}


def test_a_row_shows_what_the_whole_log_shows(tmp_path: Path) -> None:
    write(tmp_path / "one", events(400))
    row = Catalogue(Root(tmp_path)).runs()[0].record()
    history = History.of("", events(400))
    assert history.last is not None
    assert row["accuracy"] == history.last.accuracy
    assert row["seconds"] == history.last.seconds
    assert (row["scheme"], row["seed"], row["reason"]) == ("async-sd-feel", 0, "all done")


def test_the_newest_measurement_is_found_far_from_the_end(tmp_path: Path) -> None:
    rounds = [played(number) for number in range(1, 400)]  # about 100 kB
    write(tmp_path / "one", [started(), measured(0, accuracy=0.25), *rounds])
    row = Catalogue(Root(tmp_path)).runs()[0].record()
    assert row["accuracy"] == 0.25
    assert row["seconds"] == rounds[-1].seconds


def test_scheme_and_seed_are_found_in_a_first_line_of_any_length(tmp_path: Path) -> None:
    long = line(started(seed=12)).replace(b'"home": [', b'"home": [' + b"0, " * 50_000)
    write(tmp_path / "one", [], long)
    row = Catalogue(Root(tmp_path)).runs()[0].record()
    assert (row["scheme"], row["seed"]) == ("async-sd-feel", 12)


def test_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "FRESH", -1.0)
    write(tmp_path / "done", events())
    write(tmp_path / "stopped", events()[:-1])
    write(tmp_path / "damaged", [started()], b"junk\n")
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting" / EXPERIMENT).write_text("")
    write(tmp_path / "half", events()[:-1], b'{"event": "rou')
    assert states(tmp_path) == {
        "done": "finished",
        "stopped": "stopped",
        "damaged": "damaged",
        "waiting": "waiting",
        "half": "stopped",
    }


@pytest.mark.skipif(held() is None, reason="this system does not say who holds locks")
def test_who_holds_the_lock_is_running(tmp_path: Path) -> None:
    run = write(tmp_path / "one", events()[:-1])
    with (run / LOCK).open("w") as file:
        assert states(tmp_path) == {"one": "stopped"}
        fcntl.flock(file, fcntl.LOCK_EX)
        assert states(tmp_path) == {"one": "running"}


def test_without_news_of_locks_a_log_that_grows_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "held", lambda: None)
    run = write(tmp_path / "one", events()[:-1])
    assert states(tmp_path) == {"one": "running"}
    os.utime(run / EVENTS, (1e9, 1e9))
    assert states(tmp_path) == {"one": "stopped"}


def test_locks_are_read_as_the_system_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "locks"
    file.write_text(
        "1: FLOCK  ADVISORY  WRITE 12479 fe:00:2146550 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 77 fe:00:2146551 0 EOF\n"
        "2: POSIX  ADVISORY  READ 5 08:01:99 128 128\n"
    )
    assert held(file) == {2146550, 2146551}
    assert held(tmp_path / "none") is None


def test_news_of_the_list_are_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "AGE", 0.0)
    root = Root(tmp_path)
    write(tmp_path / "one", events())
    news = list_updates(Catalogue(root), Jobs(root))
    (kind, first), jobs = news()
    assert (kind, [run["name"] for run in first["changed"]]) == ("runs", ["one"])
    assert jobs == ("jobs", [])
    assert news() == []
    write(tmp_path / "two", events())
    assert [run["name"] for run in news()[0][1]["changed"]] == ["two"]
    (tmp_path / "one" / EVENTS).unlink()
    assert news() == [("runs", {"changed": [], "gone": ["one"]})]


def test_news_of_a_run_are_signs_of_change(tmp_path: Path) -> None:
    root = Root(tmp_path)
    run = write(tmp_path / "one", events()[:-1])
    news = run_updates(Catalogue(root), Jobs(root), "one")
    assert news()[0][0] == "run"
    assert news() == []
    with (run / EVENTS).open("ab") as file:
        file.write(line(measured(44)))
    assert news()[0][0] == "run"
    (run / EVENTS).unlink()
    assert news() == [("run", {"gone": "one is not a run"})]


def test_memory_is_bounded_by_the_logs_that_were_opened_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "OPEN", 2)
    known = Catalogue(Root(tmp_path))
    for name in "abc":
        write(tmp_path / name, events())
        known.log(name)
    first = known.log("c")
    assert known.log("c") is first
    assert known.log("b") is known.log("b")
    a = known.log("a")
    assert known.log("a") is a
    assert known.log("c") is not first
