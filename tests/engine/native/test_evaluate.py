"""Measuring a model natively gives what torch gives."""

import pytest
import torch
from torch import Tensor, nn

from sdfeel.data.federated import Examples
from sdfeel.engine.base import Training, Workload
from sdfeel.engine.evaluate import Metric
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.models.zoo import build
from tests.engine.native.helpers import PARTS, examples, needs_compiler

pytestmark = needs_compiler
SHAPE = (1, 28, 28)


def both(test: Examples, measured: Examples | None = None) -> tuple[NativeEngine, LoopEngine]:
    module, train = build("mnist-cnn", SHAPE, 10, 0), examples(SHAPE)

    def spread(out: Tensor, y: Tensor) -> float:
        assert len(out) == len(y)
        return float(out.std())

    metrics: dict[str, Metric] = {"spread": spread}
    training = Training(0.05, 10)
    return (
        NativeEngine(Workload(module, train, PARTS, test, training, 5, metrics, measured)),
        LoopEngine(Workload(module, train, PARTS, test, training, 5, metrics, measured)),
    )


@pytest.mark.parametrize("count", [1, 7, 250, 777])
def test_scores_are_those_of_torch(count: int) -> None:
    ours, theirs = both(examples(SHAPE, count), examples(SHAPE, 33))
    model = ours.initial()
    a, b = ours.evaluate(model), theirs.evaluate(model)
    assert a.loss == pytest.approx(b.loss, rel=1e-6)
    assert a.test_loss == pytest.approx(b.test_loss, rel=1e-6)
    assert a.accuracy == b.accuracy
    assert a.metrics["spread"] == pytest.approx(b.metrics["spread"], rel=1e-5)


def test_of_equal_scores_the_first_counts() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    data = Examples(torch.randn(30, 4), torch.arange(30) % 3)
    engine = NativeEngine(Workload(module, data, [PARTS[0]], data, Training(0.1, 5), 0))
    scores = engine.evaluate(torch.zeros(15))
    assert scores.accuracy == pytest.approx(1 / 3)
    assert scores.test_loss == pytest.approx(1.0986123, rel=1e-6)


def test_large_scores_do_not_overflow() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    data = Examples(torch.randn(30, 4), torch.arange(30) % 3)
    engine = NativeEngine(Workload(module, data, [PARTS[0]], data, Training(0.1, 5), 0))
    other = LoopEngine(Workload(module, data, [PARTS[0]], data, Training(0.1, 5), 0))
    model = engine.initial() * 1e4
    assert engine.evaluate(model).loss == pytest.approx(other.evaluate(model).loss, rel=1e-5)
