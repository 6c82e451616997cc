"""A server's own log: whole after any restart, and bounded records do not shorten it."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from sdfeel.core.run_files import EVENTS
from sdfeel.live.edge.journal import Journal, RoundTally, notices
from sdfeel.live.store import Store
from sdfeel.schemes import SDFeel
from tests.live.village import Village, network


def record(k: int, **more: Any) -> dict[str, Any]:
    """Round k of server 0, one second and ten bytes each."""
    phases = dict.fromkeys(("compute", "upload", "mix"), 0.25)
    told: dict[str, Any] = {"away": [], "missing": [], "guests": [], "mixed": [], "steps": {"0": 2}}
    return {
        **{"server": 0, "k": k, "number": k + 1, "iterations": 2.0 * (k + 1)},
        **{"began": 100.0 + k, "ended": 101.0 + k, "first": 100.0},
        **{"bytes": 10, "total": 10 * (k + 1)},
        **phases,
        **told,
        **more,
    }


def written(directory: Path, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    federation = Village(SDFeel(), network(), directory).federation
    Journal(directory, federation, 0, records)
    return [json.loads(line) for line in (directory / EVENTS).read_text().splitlines()]


def test_a_restart_with_fewer_records_writes_the_same_log(tmp_path: Path) -> None:
    records = [record(k, guests=[4] if 3 < k < 7 else []) for k in range(10)]
    whole = written(tmp_path, records)
    assert whole[0]["clock"] == "real"
    assert [each["number"] for each in whole if each["event"] == "round"] == list(range(1, 11))
    for kept in (9, 3, 1):  # guests came and went before the oldest of these
        assert written(tmp_path, records[kept:]) == whole


def test_a_torn_line_is_written_again(tmp_path: Path) -> None:
    records = [record(k) for k in range(4)]
    whole = written(tmp_path, records)
    text = (tmp_path / EVENTS).read_text()
    (tmp_path / EVENTS).write_text(text[: len(text) - 30])
    assert written(tmp_path, records[2:]) == whole


def test_counting_continues_from_the_first_record_that_is_kept() -> None:
    late = RoundTally(servers=1).round({0: record(6)})
    assert (late.number, late.seconds, late.bytes) == (7, 7.0, 70)


def test_phases_are_those_of_the_server_that_all_waited_for() -> None:
    """It does not matter which ends last by a hair: the others waited while they mixed."""
    slow = record(0, server=1, compute=0.8, upload=0.1, mix=0.1, ended=101.0)
    fast = record(0, server=0, compute=0.1, upload=0.1, mix=0.8, ended=101.001)
    told = RoundTally(servers=2).round({0: fast, 1: slow})
    assert told.phases == {"compute": 0.8, "upload": 0.1, "mix": 0.1}
    assert told.seconds == pytest.approx(1.001)


def test_comings_and_goings_are_reported_in_sentences() -> None:
    before, now = record(1, away=[2], missing=[3]), record(2, guests=[4], missing=[3])
    assert list(notices(None, before)) == [
        "round 2: edge-0 goes on without client-3",
        "round 2: edge-0 goes on without edge-2",
    ]
    assert list(notices(before, now)) == [
        "round 3: edge-2 is back at edge-0",
        "round 3: client-4 works for edge-0, its own server is away",
    ]
    assert list(notices(now, now)) == []
    assert list(notices(record(1, missing=[0, 4]), record(2, steps={"0": 2}))) == [
        "round 3: client-0 is back at edge-0"
    ]


def test_a_server_whose_clock_is_an_hour_ahead_adds_no_second() -> None:
    """Each server tells how long it has run by its own clock; moments are never compared."""
    tally = RoundTally(servers=2)
    for k in range(3):
        ahead = record(k, server=1, ended=3701.0 + k, first=3700.0, elapsed=1.0 + k)
        found = tally.round({0: record(k, elapsed=1.25 + k), 1: ahead})
        assert found.seconds == 1.25 + k


def test_a_clock_that_jumps_in_the_middle_of_a_run_changes_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    village = Village(SDFeel(tau1=2), network(), tmp_path, iterations=10)
    real, calls = time.time, itertools.count()
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * (next(calls) > 4))
    village.go()
    for server in village.ended:
        store = Store(tmp_path / f"edge-{server}")
        found = [each["elapsed"] for each in store.records()]
        store.close()
        assert found == sorted(found)
        assert found[-1] < 3600
