"""Functions like F.dropout have addresses, too: the same masks as layers, in every engine."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdfeel.core.errors import InputError
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.batched import BatchedEngine
from sdfeel.engine.loop import TORCH, TORCH_CALLS, LoopEngine
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.engine.parallel import ParallelEngine
from sdfeel.engine.select import choose

PARTS = [np.arange(0, 17), np.arange(17, 40), np.arange(40, 60)]


class Called(nn.Module):
    """The usual way to write dropout in forward()."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.hidden, self.last = nn.Conv2d(1, 4, 3), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(F.dropout2d(self.conv(x), 0.25, self.training), 2))
        x = F.relu(self.hidden(x.flatten(1)))
        found: Tensor = self.last(F.dropout(x, p=0.4, training=self.training))
        return found


class Layered(Called):
    """The same with layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Dropout2d(0.25), nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.one(self.conv(x)), 2))
        found: Tensor = self.last(self.two(F.relu(self.hidden(x.flatten(1)))))
        return found


class Mixed(Called):
    """A layer and a call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(F.dropout2d(self.conv(x), 0.25, self.training), 2))
        found: Tensor = self.last(self.layer(F.relu(self.hidden(x.flatten(1)))))
        return found


class Always(Called):
    """The usual mistake: it drops when it is measured, too."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv(x), 2))
        found: Tensor = self.last(F.dropout(F.relu(self.hidden(x.flatten(1)))))
        return found


def workload(module: nn.Module) -> Workload:
    draws = torch.Generator().manual_seed(2)
    data = Examples(
        torch.randn(60, 1, 6, 6, generator=draws), torch.randint(3, (60,), generator=draws)
    )
    return Workload(module, data, PARTS, data, Training(0.1, 5), seed=4)


def tasks(start: Tensor) -> list[Task]:
    return [Task(client, start, 6, first) for client, first in ((0, 0), (1, 3), (2, 40))]


def trained(engine: LoopEngine | NativeEngine | BatchedEngine | ParallelEngine) -> Tensor:
    return torch.stack([row.clone() for row in engine.train(tasks(engine.initial()))])


def test_calls_have_the_masks_of_layers_in_the_same_place() -> None:
    called, layered = LoopEngine(workload(Called())), LoopEngine(workload(Layered()))
    assert torch.equal(trained(called), trained(layered))
    assert (called.bits, layered.bits) == (TORCH_CALLS, TORCH)


def test_calls_come_after_layers() -> None:
    module = Mixed()
    loop = LoopEngine(workload(module))
    native = NativeEngine(workload(module))
    assert torch.allclose(trained(native), trained(loop), rtol=1e-4, atol=1e-6)
    without = Mixed()
    without.layer = nn.Identity()  # type: ignore[assignment]
    assert not torch.equal(trained(LoopEngine(workload(without))), trained(loop))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_mask_depends_on_client_and_step_alone(order: tuple[int, ...]) -> None:
    engine = LoopEngine(workload(Called()))
    given = tasks(engine.initial())
    found = [row.clone() for row in engine.train([given[n] for n in order])]
    assert all(torch.equal(trained(engine)[n], row) for n, row in zip(order, found, strict=True))
    (half,) = [row.clone() for row in engine.train([Task(0, engine.initial(), 2, 0)])]
    (rest,) = [row.clone() for row in engine.train([Task(0, half, 4, 2)])]
    assert torch.equal(rest, trained(engine)[0])


def test_all_engines_agree() -> None:
    loop = LoopEngine(workload(Called()))
    expected = trained(loop)
    parallel = ParallelEngine(LoopEngine(workload(Called())), 2)
    try:
        assert torch.equal(trained(parallel), expected)
        assert parallel.bits == TORCH_CALLS
    finally:
        parallel.close()
    native, batched = NativeEngine(workload(Called())), BatchedEngine(workload(Called()))
    assert batched.mismatch() is None
    for engine in (native, batched):
        assert torch.allclose(trained(engine), expected, rtol=1e-4, atol=1e-6)


def test_nothing_is_dropped_where_models_are_measured() -> None:
    module = Called()
    loop, native = LoopEngine(workload(module)), NativeEngine(workload(module))
    row = loop.initial()
    scores = loop.evaluate(row)
    assert scores == loop.evaluate(row)
    assert native.evaluate(row).test_loss == pytest.approx(scores.test_loss, rel=1e-5)
    _, one = loop.loss_and_gradient(0, row, 0)
    _, other = LoopEngine(workload(Layered())).loss_and_gradient(0, row, 0)
    assert torch.equal(one, other)
    x = workload(module).train.x
    with torch.no_grad():
        plain = F.cross_entropy(module.eval()(x), workload(module).train.y).item()
    assert scores.test_loss == pytest.approx(plain, rel=1e-5)


def test_dropout_that_measures_with_masks_is_left_to_torch() -> None:
    with pytest.raises(InputError, match=r"training=self\.training"):
        choose("native", workload(Always()))
    assert choose("auto", workload(Always()), 1)[0].name == "loop"


def test_errors_in_a_forward_pass_leave_nothing_behind() -> None:
    module = Called()
    engine = LoopEngine(workload(module))
    before = trained(engine)
    own = engine._flat.module
    own.train()
    with pytest.raises(RuntimeError):
        own(torch.zeros(1, 7))
    ones = torch.ones(1000)
    dropped = F.dropout(ones, 0.5)
    assert not torch.equal(dropped, F.dropout(ones, 0.5))  # torch's own again
    assert torch.equal(trained(engine), before)
