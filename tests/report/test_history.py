"""What a history says about a run."""

import pytest

from sdfeel.core.events import Event, Warned
from sdfeel.report.history import History, default_target
from tests.report.runs import events, finished, measured, played, runs, started


def test_a_history_sorts_its_events_by_kind() -> None:
    history = History.of("mine", events("fedavg"))
    assert history.scheme == "fedavg"
    assert [event.number for event in history.rounds] == list(range(1, 101))
    assert len(history.evaluations) == 51
    assert history.last == history.evaluations[-1]
    assert history.finished is not None
    assert len(history.warnings) == 1


def test_an_empty_history_has_nothing_to_say() -> None:
    history = History.of("empty", [])
    assert history.scheme == "unknown"
    assert (history.last, history.end, history.finished, history.started) == (None,) * 4
    assert (history.evaluations, history.rounds, history.warnings) == ([], [], [])
    assert history.reach(0.0) is None


def test_the_target_is_reached_by_the_first_evaluation_at_or_above_it() -> None:
    marks = [0.1, None, float("nan"), 0.8, 0.7, 0.9]
    history = History.of("run", [measured(number, mark) for number, mark in enumerate(marks)])
    reached = history.reach(0.8)
    assert reached is not None
    assert reached.number == 3
    assert history.reach(0.95) is None


def test_rounds_done_again_after_a_resume_count_once() -> None:
    log: list[Event] = [started(), measured(0, 0.1), played(1), measured(1, 0.2), played(2)]
    log += [measured(2, 0.3), started(iterations=5), measured(1, 0.2), played(2), measured(2, 0.31)]
    history = History.of("resumed", log)
    assert [event.number for event in history.rounds] == [1, 2]
    assert [event.accuracy for event in history.evaluations] == [0.1, 0.2, 0.31]


def test_a_run_that_continues_after_its_end_is_not_finished() -> None:
    log: list[Event] = [started(), played(1), finished(1), started(iterations=5), played(2)]
    assert History.of("longer", log).finished is None
    assert History.of("longer", [*log, finished(2)]).finished == finished(2)


def test_a_warning_repeated_on_resuming_is_shown_once() -> None:
    log: list[Event] = [started(), Warned("hot"), started(iterations=5), Warned("hot")]
    assert History.of("run", log).warnings == ["hot"]


@pytest.mark.parametrize(
    ("best", "target"), [(0.91, 0.8), (0.5, 0.45), (0.05, 0.04), (0.001, None), (0.0, None)]
)
def test_the_default_target_is_a_round_share_of_the_best(best: float, target: float | None) -> None:
    histories = [History.of(str(mark), [measured(1, mark)]) for mark in (best / 2, best)]
    assert default_target(histories) == target


def test_the_best_run_reaches_the_default_target() -> None:
    target = default_target(runs())
    assert target is not None
    assert runs()[0].reach(target) is not None


def test_without_accuracies_there_is_no_target() -> None:
    assert default_target([]) is None
    assert default_target([History.of("regression", [measured(1, None)])]) is None
    assert default_target([History.of("diverged", [measured(1, float("nan"))])]) is None
