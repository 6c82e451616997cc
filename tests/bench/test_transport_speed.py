"""The commands that measure the transport run, and measure what they say."""

import re
import sys

import pytest

from sdfeel.bench import transport_speed
from tests.tools import siege


@pytest.mark.slow
def test_speeds_are_measured_for_both_directions_and_all_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transport_speed.measure, "__defaults__", (2, 1))
    transport_speed.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:7]] == [
        [kind, *size.split()] for size in transport_speed.SIZES for kind in ("push", "pull")
    ]
    assert all(line.endswith(" MB/s") for line in lines[5:7])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads a process's memory from /proc")
def test_a_siege_reports_seconds_copies_and_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"IDLE": 3, "TURNS": 1, "CALLS": 2}.items():
        monkeypatch.setattr(transport_speed, name, value)
    for name, value in {"UPLOADS": 2, "REFUSED": 4}.items():
        monkeypatch.setattr(siege, name, value)
    monkeypatch.setattr(siege, "CROWDS", ((50, True), (50, False)))
    siege.main()
    *crowds, seconds, work, uploads, refused, _ = capsys.readouterr().out.splitlines()
    assert len(crowds) == 2
    assert all(re.fullmatch(r"an honest call beside \d+ idle .*: .* s", each) for each in crowds)
    assert seconds.startswith("time of a push and a pull")
    assert work.endswith(" ms beside 3 idle connections")
    assert 0 < float(uploads.split()[-4]) < 4
    assert refused.startswith("8 refused calls: ")
