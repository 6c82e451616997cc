"""What a person sees while runs are under way."""

from io import StringIO

import pytest
from rich.console import Console

from sdfeel.core.events import Event, Warned
from sdfeel.report import progress
from sdfeel.report.progress import Progress
from tests.report.runs import events, finished, measured, played, started


def shown(log: list[tuple[str, Event]], totals: dict[str, int], terminal: bool = False) -> str:
    console = Console(file=StringIO(), width=110, force_terminal=terminal, color_system=None)
    with Progress(totals, console) as bars:
        for label, event in log:
            bars.update(label, event)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_without_a_terminal_few_lines_come_but_always_the_last() -> None:
    log = [("sd-feel", event) for event in events("sd-feel")]
    lines = shown(log, {"sd-feel": 100}).splitlines()
    assert len(lines) <= 6
    assert lines[0].startswith("sd-feel: round 0/100, virtual time 0 s, accuracy 10.0 %, loss ")
    assert "sd-feel: round 100/100, virtual time 61.0 s, accuracy 91.6 %, loss 0.102" in lines
    assert lines[-1] == "sd-feel: all rounds done after 100 rounds"


def test_the_last_evaluation_is_printed_once_even_when_a_run_breaks_off() -> None:
    log: list[tuple[str, Event]] = [("a", measured(1, 0.1)), ("a", measured(2, 0.2))]
    log += [("b", measured(7, None, loss=0.5))]
    lines = shown(log, {"a": 9, "b": 9}).splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "a: round 1/9",
        "b: round 7/9",
        "a: round 2/9",
    ]
    assert "test loss 0.550, loss 0.500" in lines[1]


def test_lines_come_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)
    log: list[tuple[str, Event]] = [("a", measured(number, 0.1)) for number in range(5)]
    assert len(shown(log, {"a": 5}).splitlines()) == 5


def test_labels_and_warnings_are_printed_as_they_are() -> None:
    label = "[bold]run[/bold] " + 100 * "x"
    log: list[tuple[str, Event]] = [(label, measured(1, 0.5)), (label, Warned("[red] is hot"))]
    lines = shown(log, {label: 3}).splitlines()
    assert lines[0].startswith(f"{label}: round 1/3")
    assert lines[1] == f"{label}: note: [red] is hot"


def test_a_terminal_shows_a_line_per_run() -> None:
    log: list[tuple[str, Event]] = [("[b]one", event) for event in events("sd-feel")]
    log += [("two", started()), ("two", played(1)), ("two", measured(1, None))]
    lines = shown(log, {"[b]one": 100, "two": 50}, terminal=True).splitlines()
    last = [line for line in lines if "/100" in line or "/50" in line][-2:]
    assert "[b]one" in last[0]
    for words in ("100/100", "61.0 s", "accuracy 91.6 %", "all rounds done"):
        assert words in last[0]
    assert "1/50" in last[1]
    assert "test loss 0.550" in last[1]


def test_a_run_without_a_total_is_shown_too() -> None:
    for terminal in (False, True):
        text = shown([("new", measured(3, 0.5))], {}, terminal)
        assert "round 3" in text
        assert "round 3/" not in text


def test_the_time_left_counts_only_rounds_of_this_process() -> None:
    run = progress._Run("resumed", 100)
    progress._restart(run, 0.0)
    progress._advance(run, played(41), 2.0)
    progress._advance(run, played(50), 20.0)
    assert run.remaining(20.0) == pytest.approx(100.0)  # 2 s a round, 50 to go
    progress._advance(run, finished(100), 120.0)
    assert run.remaining(120.0) is None


@pytest.mark.parametrize("terminal", [False, True])
def test_updates_of_one_moment_are_shown_once(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "monotonic", lambda: 5.0)
    shows: list[float] = []
    show = Progress._show

    def counted(bars: Progress, run: progress._Run, now: float) -> None:
        shows.append(now)
        show(bars, run, now)

    monkeypatch.setattr(Progress, "_show", counted)
    console = Console(file=StringIO(), width=110, force_terminal=terminal)
    with Progress({"a": 10**6}, console) as bars:
        bars.update("a", measured(3, 0.5))
        for number in range(1000):
            bars.update("a", played(number))
        assert len(shows) == 1
