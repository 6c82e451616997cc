"""`sdfeel bench deploy`: its options, its table and its document, with measurements made up."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdfeel.bench import deployment
from sdfeel.bench.deployment import MeasuredGoal
from tests.cli.command import call


def good(directory: Path) -> Iterator[MeasuredGoal]:
    yield MeasuredGoal("a push of 25 MB", "above 200 MB/s", "321 MB/s", True, {"seconds": 0.078})


def mixed(directory: Path) -> Iterator[MeasuredGoal]:
    yield MeasuredGoal(
        "a round", "below 50 ms", "77.0 ms", False, note="median of 3: commit 1.0 ms"
    )
    yield MeasuredGoal(
        "a round over links", "within 10 %", "not measured", None, note="no `unshare` here"
    )


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deployment, "PARTS", {"transfer": good, "round": mixed})


def test_every_line_shows_its_goal_what_was_measured_and_whether_it_is_met() -> None:
    outcome = call("bench", "deploy")
    assert outcome.code == 0, outcome.err
    words = " ".join(outcome.out.split())
    for text in ("above 200 MB/s", "321 MB/s", "77.0 ms", "not measured", "no `unshare` here"):
        assert text in words
    assert "1 of 3 met" in words
    ends = [line.split()[-1] for line in outcome.out.splitlines() if line.startswith("a ")]
    assert ends == ["yes", "no", "-"]


def test_parts_can_be_chosen_and_the_document_holds_their_figures() -> None:
    outcome = call("bench", "deploy", "--parts", "transfer", "--json")
    document = json.loads(outcome.out)
    assert document["cores"] >= 1
    (line,) = document["lines"]
    assert (line["met"], line["figures"]) == (True, {"seconds": 0.078})


def test_an_unknown_part_is_refused_with_a_guess() -> None:
    outcome = call("bench", "deploy", "--parts", "rounds")
    assert outcome.code == 1
    assert "unknown part 'rounds': did you mean 'round'?" in outcome.sentence


@pytest.mark.skipif(sys.platform != "linux", reason="real-time priority as Linux has it")
def test_urgent_measurements_run_first_and_only_they(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getscheduler(0)

    def seen(directory: Path) -> Iterator[MeasuredGoal]:
        yield MeasuredGoal("priority", "", "", os.sched_getscheduler(0) == os.SCHED_RR)

    monkeypatch.setattr(deployment, "PARTS", {"seen": seen})
    outcome = call("bench", "deploy", "--urgent", "--json")
    assert os.sched_getscheduler(0) == before
    if outcome.code:
        assert "--urgent needs real-time priority: run it as root on Linux" in outcome.sentence
    else:
        assert json.loads(outcome.out)["lines"][0]["met"] is True
