"""The list of runs: what it shows, and that it changes on its own."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import StreamingResponse

from sdfeel.core.events import Round
from sdfeel.core.run_files import EVENTS, EXPERIMENT, LOCK, NOTES
from sdfeel.dashboard import http
from sdfeel.dashboard.jobs import Jobs
from sdfeel.dashboard.log_files import NotHere, Root, locked_inodes
from sdfeel.dashboard.views import run_list, updates
from sdfeel.dashboard.views.run_list import Catalogue
from sdfeel.dashboard.views.updates import CUT, NEXT, delta, list_updates, run_updates
from sdfeel.experiment.loading import load
from sdfeel.report.history import History
from sdfeel.run.session import start
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
    monkeypatch.setattr(run_list, "FRESH", -1.0)
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


def test_a_run_that_did_not_end_after_a_round_has_crashed(tmp_path: Path) -> None:
    """A real run: stopped, it has a checkpoint of its whole log; killed, it has not."""
    directory = tmp_path / "run"
    settings = ["training.iterations=50", "network.clients=5", "network.servers=1"]
    session = start(load(None, [*settings, "training.engine=loop"]), directory)
    for event in session:
        if isinstance(event, Round):
            session.stop()
    os.utime(directory / EVENTS, (1e9, 1e9))
    assert states(tmp_path) == {"run": "stopped"}
    with (directory / EVENTS).open("ab") as file:  # what a killed run would have written since
        file.write(line(played(99)))
    os.utime(directory / EVENTS, (1e9, 1e9))
    assert states(tmp_path) == {"run": "crashed"}


@pytest.mark.skipif(locked_inodes() is None, reason="this system does not say who holds locks")
def test_who_holds_the_lock_is_running(tmp_path: Path) -> None:
    run = write(tmp_path / "one", events()[:-1])
    with (run / LOCK).open("w") as file:
        assert states(tmp_path) == {"one": "stopped"}
        fcntl.flock(file, fcntl.LOCK_EX)
        assert states(tmp_path) == {"one": "running"}


def test_where_locks_are_not_listed_a_log_that_grows_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "locked_inodes", lambda: None)
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
    assert locked_inodes(file) == {2146550, 2146551}
    assert locked_inodes(tmp_path / "none") is None


def test_updates_of_the_list_contain_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "AGE", 0.0)
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
    assert news() == [("runs", {"changed": [], "gone": ["one"], "whole": False})]
    again = list_updates(Catalogue(root), Jobs(root))()[0][1]  # a page that missed the above
    assert ([run["name"] for run in again["changed"]], again["whole"]) == (["two"], True)


@pytest.mark.parametrize("error", [NotHere("gone"), OSError("gone"), LookupError("gone")])
@pytest.mark.parametrize("step", ["read_ends", "read_notes", "style_of", "lock_inode"])
def test_a_run_that_disappears_while_it_is_read_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    """Whatever fails for one run, the list has all the others as they are."""
    for name in ("one", "two", "three"):
        run = write(tmp_path / name, events())
        (run / NOTES).write_text("{}")
        (run / LOCK).touch()
    whole = getattr(run_list, step)

    def failing(*told: Any) -> Any:
        if any("two" in str(each) for each in told):
            raise error
        return whole(*told)

    monkeypatch.setattr(run_list, step, failing)
    write(tmp_path / "two", events()[:-1])  # not finished: its lock is looked at, too
    assert states(tmp_path) == {"one": "finished", "three": "finished", "two": "damaged"}


def test_a_stream_says_what_it_cannot_read_and_looks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "POLL", 0.0)
    looks: list[Any] = [OSError("away"), OSError("away"), [("runs", {})], NotHere("gone"), []]

    async def news() -> Any:
        look = looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return look

    async def told() -> list[str]:
        request = Request({"type": "http", "headers": []})
        answer = http.stream(request, news, closing=lambda: not looks)
        assert isinstance(answer, StreamingResponse)
        return [str(piece, "utf-8") async for piece in answer.body_iterator]  # type: ignore[arg-type]

    assert anyio.run(told) == [
        'event: trouble\ndata: {"error":"OSError: away"}\n\n',  # once
        "event: runs\ndata: {}\n\n",
        'event: trouble\ndata: {"error":"NotHere: gone"}\n\n',
    ]


def test_comparisons_and_plans_are_groups_and_damaged_ones_do_no_harm(tmp_path: Path) -> None:
    write(tmp_path / "race" / "one", events())
    write(tmp_path / "bad" / "two", events())
    (tmp_path / "plan").mkdir()
    (tmp_path / "race" / "group.json").write_text('{"title": "A sweep", "lines": {"one": ["one"]}}')
    (tmp_path / "bad" / "group.json").write_text("[1")
    (tmp_path / "plan" / "plan.json").write_text("{}")
    known = Catalogue(Root(tmp_path))
    assert [run.name for run in known.runs()] == ["bad/two", "race/one"]
    found = {group["name"]: (group["title"], group["plan"]) for group in known.groups()}
    wanted = {"race": ("A sweep", False), "bad": ("Runs", False), "plan": ("A plan", True)}
    assert found == wanted


def test_updates_of_a_run_contain_everything_and_then_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "APART", 0.0)
    root = Root(tmp_path)
    run = write(tmp_path / "one", events()[:-1])
    news = run_updates(Catalogue(root), Jobs(root), "one")
    (kind, whole), jobs = news()
    assert (kind, jobs[0]) == ("run", "jobs")
    assert news() == []
    with (run / EVENTS).open("ab") as file:
        file.write(line(measured(44)))
    ((kind, part),) = news()
    assert kind == "more"
    assert len(json.dumps(part)) < len(json.dumps(whole)) / 4
    (run / EVENTS).unlink()
    assert news() == [("gone", {"gone": "one is not a run"})]
    assert news() == []


def applied(old: Any, change: Any) -> Any:
    """What live.js does with a change."""
    if not isinstance(change, dict):
        return change
    if not change:
        return old
    kept = change.get(CUT)
    rest = {key: value for key, value in change.items() if key not in (CUT, NEXT)}
    if kept is True:
        return rest
    if isinstance(old, list):
        if NEXT in change:
            return old[:kept] + change[NEXT]
        return [applied(each, rest.get(str(i), {})) for i, each in enumerate(old)]
    return {**old, **{key: applied(old.get(key), value) for key, value in rest.items()}}


leaves = st.one_of(st.none(), st.integers(-3, 3), st.text("ab", max_size=2))
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=12,
)


@given(documents, documents)
def test_a_change_turns_the_old_into_the_new(old: Any, new: Any) -> None:
    assert applied(old, json.loads(json.dumps(delta(old, new)))) == new


def test_a_list_that_grows_sends_only_its_end() -> None:
    old = {"lines": [{"x": list(range(900)), "label": "a"}]}
    new = {"lines": [{"x": list(range(901)), "label": "a"}]}
    assert len(json.dumps(delta(old, new))) < 70
    assert applied(old, delta(old, new)) == new


def test_memory_is_bounded_by_the_logs_that_were_opened_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "OPEN", 2)
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
