"""`sdfeel timeline`: a picture of a run's log, or its spans as JSON."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import call, settings

UNEQUAL = {"devices_spread": "5", "devices_gflops": "0.003"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synchronous and an asynchronous run."""
    directory = tmp_path_factory.mktemp("timeline")
    with pytest.MonkeyPatch.context() as patch:  # drawing takes longer than these runs
        patch.setattr("sdfeel.report.drawing.save", lambda *given: None)
        for name in ("sd-feel", "async-sd-feel"):
            done = call("run", *settings(scheme_name=name, **UNEQUAL), "--out", directory / name)
            assert done.code == 0, done.err
    return directory


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_is_drawn_beside_its_log(runs: Path) -> None:
    done = call("timeline", runs / "sd-feel")
    assert done.code == 0, done.err
    assert (runs / "sd-feel" / "timeline.png").stat().st_size > 5000
    assert re.search(r"clients wait [\d.]+ %, servers wait [\d.]+ % of the time\n", done.out)


def test_two_runs_are_drawn_together(runs: Path, tmp_path: Path) -> None:
    done = call("timeline", runs / "sd-feel", runs / "async-sd-feel", "--out", "both.svg")
    assert done.code == 0, done.err
    text = (tmp_path / "both.svg").read_text()
    assert ">sd-feel: 10 clients wait" in text
    assert ">async-sd-feel: 10 clients wait" in text


def test_waiting_for_the_slowest_costs_more_than_deadlines(runs: Path, tmp_path: Path) -> None:
    done = call("timeline", runs / "sd-feel", runs / "async-sd-feel", "--json", "--servers", "0,2")
    document = json.loads(done.out)
    synchronous, asynchronous = document["runs"]
    assert synchronous["clients_wait"] > 2 * asynchronous["clients_wait"]
    assert document["picture"] is None
    assert not list(tmp_path.iterdir())
    assert {s["who"] for s in synchronous["spans"] if s["kind"] == "gossip"} == {
        "server 0",
        "server 2",
    }
    assert all(0 <= s["begin"] < s["end"] <= document["to"] for s in asynchronous["spans"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere is not a run: it has no events.jsonl"),
        (["{}/sd-feel", "--from", "1e9"], "sd-feel: nothing happens from 1e+09 to"),
        (["{}/sd-feel", "--servers", "0,3"], "the run has no server 3: its servers are 0 to 2"),
        (["{}/sd-feel", "--servers", "all"], "--servers 'all' must be server numbers"),
        (["{}/sd-feel", "--out", "x.gif"], "end it in .png, .svg or .pdf"),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(
    runs: Path, arguments: list[str], sentence: str
) -> None:
    done = call("timeline", *(word.format(runs) for word in arguments))
    assert done.code == 1
    assert sentence in done.sentence
    assert len(done.err.strip().splitlines()) == 1


def test_a_log_of_an_earlier_version_is_refused(runs: Path, tmp_path: Path) -> None:
    new = {"home", "edges", "mixed", "crew"}
    lines = (runs / "sd-feel" / "events.jsonl").read_text().splitlines()
    records = [{k: v for k, v in json.loads(line).items() if k not in new} for line in lines]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    assert (
        "from an earlier version of sdfeel; run the experiment again"
        in call("timeline", tmp_path).sentence
    )
