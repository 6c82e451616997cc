"""The stopwatch knows when workers keep training while the caller works."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from sdfeel.engine.base import Scores, Task
from sdfeel.run import session
from sdfeel.run.session import Timed
from tests.clock import Clock

TASKS = [Task(n, torch.zeros(1), 1, 0) for n in range(3)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock(0)
    monkeypatch.setattr(session, "perf_counter", own)
    return own


class Sleeper:
    """Each model takes one second."""

    name = "sleeper"

    def __init__(self, clock: Clock, works_ahead: bool) -> None:
        self.clock, self.works_ahead = clock, works_ahead

    def initial(self) -> Tensor:
        return torch.zeros(1)

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        for task in tasks:
            self.clock.now += 1
            yield task.start

    def evaluate(self, model: Tensor) -> Scores:
        self.clock.now += 1
        return Scores(float(model.sum()), 0.0, None)


@pytest.mark.parametrize(("works_ahead", "seconds"), [(False, 3), (True, 5)])
def test_the_callers_time_is_training_only_while_others_train(
    clock: Clock, works_ahead: bool, seconds: int
) -> None:
    own = Timed(Sleeper(clock, works_ahead))
    for _ in own.train(TASKS):
        clock.now += 1
    assert own.training == seconds
    assert clock.now == 6


def test_measuring_is_counted_apart(clock: Clock) -> None:
    own = Timed(Sleeper(clock, works_ahead=True))
    own.evaluate(own.initial())
    assert list(own.train([])) == []
    assert (own.evaluating, own.training) == (1, 0)
