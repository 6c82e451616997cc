"""Models come in order while others are still training; stopping early leaves nothing hanging."""

import os
import sys

import pytest
import torch

from sdfeel.core.errors import SdfeelError
from sdfeel.engine.base import Task, Training
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.models.zoo import build
from tests.engine.native.helpers import examples, native, needs_compiler, trained
from tests.waiting import finished

SHAPE = (1, 28, 28)


def engine(**options: int) -> NativeEngine:
    return native(build("mnist-cnn", SHAPE, 10, 0), examples(SHAPE), Training(0.05, 10), **options)


def tasks(own: NativeEngine, count: int) -> list[Task]:
    return [Task(n % 3, own.initial(), 2, first=n) for n in range(count)]


@needs_compiler
def test_no_tasks_no_models() -> None:
    assert trained(engine(), []) == []


@needs_compiler
def test_a_caller_that_stops_early_may_begin_again() -> None:
    own = engine(threads=2, rooms=3)
    whole = trained(own, tasks(own, 20))
    for count in (1, 7):
        some = own.train(tasks(own, 20))
        found = [next(some).clone() for _ in range(count)]
        some.close()  # type: ignore[attr-defined]  # it is a generator
        assert all(torch.equal(a, b) for a, b in zip(found, whole, strict=False))
    assert all(torch.equal(a, b) for a, b in zip(trained(own, tasks(own, 20)), whole, strict=True))


@needs_compiler
def test_two_rounds_may_be_under_way_at_once() -> None:
    own = engine(threads=2, rooms=2)
    whole = trained(own, tasks(own, 9))
    for a, b, right in zip(own.train(tasks(own, 9)), own.train(tasks(own, 9)), whole, strict=True):
        assert torch.equal(a, right)
        assert torch.equal(b, right)


@needs_compiler
def test_a_task_that_cannot_be_described_is_named_after_those_before_it() -> None:
    own = engine(threads=2, rooms=2)
    wrong = Task(1, torch.zeros(3), 2, first=40)
    given = own.train([*tasks(own, 8), wrong])
    found = [next(given).clone() for _ in range(5)]
    assert len(found) == 5
    with pytest.raises(SdfeelError, match="client 1 failed in its local iteration 40: ValueError"):
        list(given)


FORKS = """
import os, sys, signal
from tests.engine.native.test_stream import engine, tasks
import torch
signal.alarm(60)  # a process that hangs is killed
own = engine(threads=2, rooms=3)
before = [model.clone() for model in own.train(tasks(own, 9))]
under_way = own.train(tasks(own, 9))
next(under_way)
child = os.fork()
if child == 0:
    signal.alarm(60)
    under_way.close()  # its threads are the parent's
    after = [model.clone() for model in own.train(tasks(own, 9))]
    os._exit(0 if all(map(torch.equal, before, after)) else 3)
_, status = os.waitpid(child, 0)
rest = [model.clone() for model in under_way]
assert all(map(torch.equal, before[1:], rest))
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_threads_of_its_own() -> None:
    engine()  # compiled here, so that the time limit is that of the forks
    done = finished([sys.executable, "-W", "ignore", "-c", FORKS])
    assert done.returncode == 0, done.stderr
