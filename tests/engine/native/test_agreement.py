"""The native engine takes the local steps that loop.py defines."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdfeel.core.errors import Diverged, InputError, SdfeelError
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.models.zoo import build
from tests.engine.native.helpers import (
    PARTS,
    assert_agrees,
    examples,
    loop,
    native,
    needs_compiler,
    seeded,
    trained,
)

pytestmark = needs_compiler


class LeNet(nn.Module):
    """A stranger's model: written out in forward(), with functions for layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), (2, 2))
        x = x.view(x.size(0), -1)
        out: Tensor = self.fc3(self.fc2(self.fc1(x).relu()).relu())
        return out


def small() -> nn.Module:
    """Padding, a layer without bias, a stride, dropout in every kind of place."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 7, (3, 2), stride=(2, 1), padding="valid"),
        nn.Dropout2d(0.3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(56, 20, bias=False),
        nn.Dropout(0.5),
        nn.ReLU(),
        nn.Linear(20, 10),
    )


SMALL = (2, 10, 10)


def test_the_papers_cnn_with_its_dropouts() -> None:
    shape = (1, 28, 28)
    assert_agrees(build("mnist-cnn", shape, 10, 0), examples(shape), Training(0.05, 10))


@pytest.mark.parametrize("name", ["mlp", "logistic"])
def test_models_without_convolutions(name: str) -> None:
    shape = (1, 9, 9)
    assert_agrees(build(name, shape, 10, 0), examples(shape), Training(0.1, 10))


def test_a_strangers_model() -> None:
    shape = (3, 32, 32)
    assert_agrees(seeded(LeNet), examples(shape), Training(0.05, 10))


def test_padding_strides_no_bias_and_dropout_between() -> None:
    assert_agrees(seeded(small), examples(SMALL), Training(0.1, 10))


@pytest.mark.parametrize(
    "options", [{"momentum": 0.9, "weight_decay": 0.01}, {"momentum": 0.5}, {"weight_decay": 0.1}]
)
def test_momentum_and_weight_decay(options: dict[str, float]) -> None:
    assert_agrees(seeded(small), examples(SMALL), Training(0.05, 10, options=options))


def normalised() -> nn.Module:
    """Batch normalisation first, before and after ReLU, dropout and pooling, with and without
    weights."""
    return nn.Sequential(
        nn.BatchNorm2d(2, affine=False),
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6, momentum=0.3),
        nn.ReLU(),
        nn.Conv2d(6, 9, 3, bias=False),
        nn.ReLU(),
        nn.Dropout2d(0.3),
        nn.BatchNorm2d(9, eps=0.01),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 10),
    )


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_batch_normalisation(options: dict[str, float]) -> None:
    training = Training(0.05, 10, options=options)
    assert_agrees(seeded(normalised), examples(SMALL), training)


def every_output_counts() -> nn.Module:
    """Nothing stops an output of these convolutions: rows that are longer and shorter than what is
    summed at once, borders wider and narrower than the kernel, dropped channels."""
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.Conv2d(5, 18, (2, 5), padding=(1, 2)),
        nn.Dropout2d(0.3),
        nn.BatchNorm2d(18),
        nn.ReLU(),
        nn.Conv2d(18, 35, (3, 2), padding=(2, 1)),
        nn.BatchNorm2d(35),
        nn.MaxPool2d(4),
        nn.Conv2d(35, 4, (1, 5), padding=(0, 2)),
        nn.Flatten(),
        nn.Linear(60, 10),
    )


def test_convolutions_whose_outputs_all_have_a_gradient() -> None:
    shape = (2, 9, 19)
    assert_agrees(seeded(every_output_counts), examples(shape), Training(0.05, 10))


def test_running_variances_are_raised_to_the_floor_of_the_loop() -> None:
    data, training = examples(SMALL), Training(0.05, 10)
    own, other = (make(seeded(normalised), data, training) for make in (native, loop))
    mixed = own.initial()
    mixed[-9:] = -0.1  # the last running variances, as negative weights may leave them
    for steps in (0, 3):
        (ours,), (theirs,) = (trained(e, [Task(0, mixed, steps, 0)]) for e in (own, other))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert ours[-9:].min() > 0
    a, b = own.evaluate(mixed), other.evaluate(mixed)
    assert a.loss == pytest.approx(b.loss, rel=1e-5)
    assert a.accuracy == b.accuracy


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_a_client_may_have_a_learning_rate_of_its_own(options: dict[str, float]) -> None:
    training = Training(0.05, 10, options=options)
    assert_agrees(seeded(small), examples(SMALL), training, rates=(0.5, 1, 1.7))


def test_an_iteration_can_be_a_pass_over_the_data() -> None:
    assert_agrees(seeded(small), examples(SMALL), Training(0.05, 10, iteration="epoch"))


def test_momentum_is_forgotten_at_every_broadcast() -> None:
    own = native(seeded(small), examples(SMALL), Training(0.05, 10, options={"momentum": 0.9}))
    task = Task(1, own.initial(), 4, 0)
    first, again = trained(own, [task, task])
    assert torch.equal(first, again)


def test_an_unused_parameter_stays() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.used, self.other = nn.Linear(3, 3), nn.Linear(81, 10), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(x.flatten(1))
            return out

    own = native(seeded(Spare), examples((1, 9, 9)), Training(0.1, 10))
    before = own.initial()
    (after,) = trained(own, [Task(0, before, 3, 0)])
    assert torch.equal(after[:12], before[:12])
    assert torch.equal(after[-6:], before[-6:])
    assert not torch.equal(after, before)
    assert own.parameters == 12 + 820 + 6
    assert set(own.state_dict(after)) == set(Spare().state_dict())


def test_no_steps_change_nothing() -> None:
    own = native(build("logistic", (1, 9, 9), 10, 0), examples((1, 9, 9)), Training(0.1, 10))
    (row,) = trained(own, [Task(2, own.initial(), 0, 5)])
    assert torch.equal(row, own.initial())
    assert trained(own, []) == []


def test_divergence_reads_as_in_the_loop() -> None:
    data, training = examples((1, 9, 9)), Training(1e30, 10)
    module = build("mlp", (1, 9, 9), 10, 0)
    own, other = native(module, data, training), loop(module, data, training)
    tasks = [Task(1, own.initial(), 0, 0), Task(1, own.initial(), 5, 2)]
    with pytest.raises(Diverged) as expected:
        trained(other, tasks)
    rows = own.train(tasks)
    assert torch.equal(next(rows), own.initial())  # what came before is handed out
    with pytest.raises(Diverged) as found:
        next(rows)
    assert str(found.value) == str(expected.value)


def test_a_client_that_is_not_there_is_named() -> None:
    own = native(build("logistic", (1, 9, 9), 10, 0), examples((1, 9, 9)), Training(0.1, 10))
    with pytest.raises(SdfeelError, match="client 7 failed in its local iteration 2: IndexError"):
        trained(own, [Task(7, own.initial(), 1, 2)])


def test_a_model_of_the_wrong_size_is_refused() -> None:
    own = native(build("logistic", (1, 9, 9), 10, 0), examples((1, 9, 9)), Training(0.1, 10))
    with pytest.raises(SdfeelError, match=r"a model of \(5,\) where \(820,\) is needed"):
        trained(own, [Task(0, torch.zeros(5), 1, 0)])


def test_the_constructor_raises_the_reason_that_create_returns() -> None:
    data, module = (
        examples((1, 9, 9)),
        nn.Sequential(nn.Flatten(), nn.Linear(81, 10), nn.Softplus()),
    )
    reason = NativeEngine.create(Workload(module, data, PARTS, data, Training(0.1, 10), 0))
    assert isinstance(reason, str)
    with pytest.raises(InputError) as raised:
        NativeEngine(Workload(module, data, PARTS, data, Training(0.1, 10), 0))
    assert str(raised.value).endswith(reason)
