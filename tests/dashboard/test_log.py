"""A log gives the same whether read at once or in pieces; and whatever it holds, it is read."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.events import Evaluated, Round
from sdfeel.core.run_files import EVENTS
from sdfeel.dashboard import log as module
from sdfeel.dashboard.log import LogReader
from sdfeel.dashboard.log_files import Root
from sdfeel.report.history import History
from sdfeel.report.timeline import spans
from sdfeel.run import store
from tests.dashboard.logs import events, line, measured, played, started, write


def reader(directory: Path) -> LogReader:
    found = LogReader(Root(directory.parent), directory.name)
    found.refresh()
    return found


def test_a_small_log_is_read_whole(tmp_path: Path) -> None:
    run = write(tmp_path / "run", events())
    ours, theirs = (
        History.of("", found) for found in (reader(run).events(), store.read_events(run))
    )
    assert ours.evaluations == theirs.evaluations
    assert ours.finished == theirs.finished
    assert ours.warnings == theirs.warnings
    assert [r.seconds for r in ours.rounds] == [r.seconds for r in theirs.rounds]


@given(cuts=st.lists(st.integers(0, 20_000), max_size=6))
def test_a_growing_log_gives_what_a_grown_one_gives(tmp_path: Path, cuts: list[int]) -> None:
    run = write(tmp_path / "grown", events())
    whole = (run / EVENTS).read_bytes()
    growing = tmp_path / "growing"
    growing.mkdir(exist_ok=True)
    (growing / EVENTS).write_bytes(b"")
    found = LogReader(Root(tmp_path), "growing")
    for cut in sorted(min(cut, len(whole)) for cut in cuts):
        (growing / EVENTS).write_bytes(whole[:cut])
        found.refresh()
    (growing / EVENTS).write_bytes(whole)
    found.refresh()
    assert found.events() == reader(run).events()
    assert (found.damages, found.half) == (0, False)


def test_a_log_that_was_cut_back_is_read_again(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [started(), measured(0), *(played(n) for n in range(1, 9))])
    found = reader(run)
    write(run, [started(seed=7), measured(0), *(played(n) for n in range(1, 30))])
    found.refresh()
    history = History.of("", found.events())
    assert history.started is not None
    assert history.started.seed == 7
    assert len(history.rounds) == 29


@given(junk=st.binary(max_size=80), place=st.integers(0, 20))
def test_junk_between_the_lines_breaks_nothing(tmp_path: Path, junk: bytes, place: int) -> None:
    lines = [line(event) for event in events(8)]
    run = write(tmp_path / "run", [])
    (run / EVENTS).write_bytes(b"".join(lines[:place]) + junk + b"\n" + b"".join(lines[place:]))
    found = reader(run)
    assert found.damages >= 1
    assert len(History.of("", found.events()).evaluations) >= 2


@pytest.mark.parametrize(
    "bad",
    [
        b'{"event": "round", "number": "many"}\n',
        b'{"event": "evaluated", "seconds": [1]}\n',
        b'{"event": "unheard-of"}\n',
        b'{"event": "round"\n',
        b"\n",
        b"\xff\xfe\x00\n",
        line(replace(measured(0), bytes=10**400)),
        line(replace(measured(0), iterations=-1)),
        line(replace(started(), servers=-(10**400))),
        line(replace(started(), parameters=10**400)),
    ],
)
def test_a_bad_line_is_counted_and_named(tmp_path: Path, bad: bytes) -> None:
    found = reader(write(tmp_path / "run", [started()], bad + line(measured(0))))
    assert (found.damages, found.damaged) == (1, [2])
    assert len(found.events()) == 2


def test_half_a_line_at_the_end_is_reported(tmp_path: Path) -> None:
    found = reader(write(tmp_path / "run", [started()], line(measured(0))[:-9]))
    assert found.half
    assert found.damages == 0


def test_a_long_log_is_thinned_and_its_ends_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in {"ROUNDS": 16, "EVALUATIONS": 8, "CHUNK": 4000}.items():
        monkeypatch.setattr(module, name, size)
    found = reader(write(tmp_path / "run", events(400)))
    kept = found.events()
    rounds = [event for event in kept if isinstance(event, Round)]
    measured_ones = [event for event in kept if isinstance(event, Evaluated)]
    assert found.lines == 4 + 400 + 100
    assert len(rounds) <= 17
    assert len(measured_ones) <= 9
    assert (rounds[0].number, rounds[-1].number) == (1, 400)
    assert (measured_ones[0].number, measured_ones[-1].number) == (0, 400)


@pytest.mark.parametrize(("begin", "end"), [(0.0, 3.0), (4.0, 9.5), (11.0, 12.5)])
def test_a_window_of_a_thinned_log_shows_what_the_whole_log_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: float, end: float
) -> None:
    monkeypatch.setattr(module, "ROUNDS", 4)
    found = reader(write(tmp_path / "run", events(40)))
    window = [started(), *found.between(begin, end, most=1000)]
    whole = spans(events(40), begin, end)
    assert whole
    assert spans(window, begin, end) == whole


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("kind", [None, "round", "evaluated"])
def test_pages_from_the_end_are_the_log_backwards(
    tmp_path: Path, size: int, kind: str | None
) -> None:
    run = write(tmp_path / "run", events(12))
    found, seen, before = reader(run), [], None
    while True:
        page = found.tail(before, size, kind)
        seen += [each.data for each in page.lines]
        before = page.before
        if before is None:
            break
    lines = (run / EVENTS).read_bytes().splitlines()
    wanted = [each for each in lines if kind is None or f'"event": "{kind}"'.encode() in each]
    assert seen == wanted[::-1]
