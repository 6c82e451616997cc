"""Neither threads nor memory nor other tasks change a result."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from sdfeel.engine.base import Task, Training
from sdfeel.engine.batches import Picker, batches
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.models.zoo import build
from tests.engine.native.helpers import PARTS, examples, native, needs_compiler, trained

SHAPE = (1, 28, 28)


def engine(**options: int) -> NativeEngine:
    return native(build("mnist-cnn", SHAPE, 10, 0), examples(SHAPE), Training(0.05, 10), **options)


def some_tasks(own: NativeEngine) -> list[Task]:
    """Ten tasks: clients with large and small batches in turn, at several places."""
    return [Task(n % 3, own.initial() * (1 + n / 100), 2 + n % 2, first=n) for n in range(10)]


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@needs_compiler
@pytest.mark.parametrize(
    "options", [{"threads": 1}, {"threads": 3}, {"rooms": 1}, {"rooms": 3}, {"threads": 9}]
)
def test_neither_threads_nor_rooms_change_a_result(options: dict[str, int]) -> None:
    own, other = engine(threads=2), engine(**options)
    assert same(trained(own, some_tasks(own)), trained(other, some_tasks(other)))


@needs_compiler
@pytest.mark.parametrize("name", ["mnist-cnn", "logistic"])
def test_the_batch_that_it_is_compiled_for_changes_no_bit(name: str) -> None:
    """A deployed client compiles for its own data, a simulation for the largest client's."""
    module, data = build(name, SHAPE, 10, 0), examples(SHAPE)
    one, other = (native(module, data, Training(0.05, 10), batch=batch) for batch in (10, 33))
    assert same(trained(one, some_tasks(one)), trained(other, some_tasks(other)))


@needs_compiler
def test_neither_order_nor_other_tasks_change_a_result() -> None:
    own = engine()
    tasks = some_tasks(own)
    together = trained(own, tasks)
    assert same(together, trained(own, tasks[::-1])[::-1])
    assert same(together[3:4], trained(own, tasks[3:4]))


@needs_compiler
def test_a_diverged_client_leaves_no_trace() -> None:
    """Nothing of a client stays in a thread's working memory."""
    own = engine(threads=1)
    task = Task(2, own.initial(), 3, 0)
    poisoned = Task(0, torch.full_like(own.initial(), float("nan")), 3, 0)
    (alone,) = trained(own, [task])
    block = own._trainer.prepared([poisoned, task])  # by the same thread, one after the other
    after = torch.from_numpy(own._trainer.trained(block).models)
    assert torch.isnan(after[0]).any()
    assert torch.equal(after[1], alone)


@needs_compiler
def test_scores_do_not_depend_on_threads() -> None:
    model = engine().initial()
    assert engine(threads=1).evaluate(model) == engine(threads=3).evaluate(model)


def test_a_remembered_pass_gives_the_same_batches() -> None:
    own = Picker(PARTS, 10, seed=5, examples=64)
    draws = np.random.default_rng(0)
    for _ in range(200):
        client, first, steps = (int(draws.integers(n)) for n in (3, 30, 9))
        expected = batches(PARTS[client], 10, 5, client, first, steps)
        found = own.picked(client, first, steps)
        np.testing.assert_array_equal(found, expected)
        assert found.flags.c_contiguous


def test_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(IndexError, match="beyond the 63 examples"):
        Picker(PARTS, 10, seed=5, examples=63).picked(2, 0, 1)
