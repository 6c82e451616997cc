"""The local step: defined here by hand in plain torch, and compared bit for bit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sdfeel.core.errors import Diverged, InputError, SdfeelError
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload, one_thread
from sdfeel.engine.batches import batches, passes
from sdfeel.engine.loop import LoopEngine, torch_seed
from sdfeel.models.zoo import build

PARTS = [np.arange(0, 23), np.arange(23, 60), np.arange(60, 64)]


def examples(count: int = 64, seed: int = 0) -> Examples:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 8, 8, generator=draws)
    return Examples(x, torch.randint(10, (count,), generator=draws))


def engine(module: nn.Module | None = None, seed: int = 5, **training: Any) -> LoopEngine:
    options = {"learning_rate": 0.1, "batch_size": 10, **training}
    own = module if module is not None else build("mlp", (1, 8, 8), 10, 0)
    data = examples()
    return LoopEngine(Workload(own, data, PARTS, data, Training(**options), seed))


def trained(own: LoopEngine, tasks: Sequence[Task]) -> list[Tensor]:
    return [row.clone() for row in own.train(tasks)]


def task(own: LoopEngine, client: int = 1, steps: int = 4, first: int = 0) -> Task:
    return Task(client, own.initial(), steps, first)


def test_a_local_step_is_plain_sgd_on_the_addressed_batches() -> None:
    own, data = engine(), examples()
    module = build("mlp", (1, 8, 8), 10, 0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with one_thread():  # torch's own sums depend on the number of threads
        for picked in torch.from_numpy(batches(PARTS[1], 10, 5, 1, 3, 4)):
            optimizer.zero_grad()
            torch.autograd.backward(
                nn.functional.cross_entropy(module(data.x[picked]), data.y[picked])
            )
            optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert torch.equal(trained(own, [task(own, first=3)])[0], expected)


def test_neither_order_nor_other_tasks_change_a_result() -> None:
    own = engine(build("mnist-cnn", (1, 28, 28), 10, 0))
    data = examples()
    big = Examples(nn.functional.interpolate(data.x, size=(28, 28)), data.y)
    own = LoopEngine(
        Workload(build("mnist-cnn", (1, 28, 28), 10, 0), big, PARTS, big, Training(0.1, 10), 5)
    )
    tasks = [task(own, client) for client in range(3)]
    together = trained(own, tasks)
    backwards = trained(own, tasks[::-1])[::-1]
    alone = [trained(own, [each])[0] for each in tasks]
    for a, b, c in zip(together, backwards, alone, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_dropout_follows_seed_client_and_place_and_leaves_torch_alone() -> None:
    zeroed = nn.Linear(64, 10)

    def dropped(seed: int, client: int, first: int) -> Tensor:
        own = engine(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), zeroed), seed)
        return trained(own, [Task(client, torch.zeros_like(own.initial()), 1, first)])[0]

    before = torch.random.get_rng_state()
    assert torch.equal(dropped(1, 0, 0), dropped(1, 0, 0))
    assert not torch.equal(dropped(1, 0, 0), dropped(2, 0, 0))
    assert not torch.equal(dropped(1, 0, 0), dropped(1, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch_seed(3):
        torch.rand(1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_is_trained_and_measured_by_one_thread_and_the_others_are_given_back() -> None:
    seen: set[int] = set()

    class Watching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.add(torch.get_num_threads())
            return super().forward(x)

    own, before = engine(nn.Sequential(nn.Flatten(), Watching(64, 10))), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        list(own.train([task(own)]))
        own.evaluate(own.initial())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == {1}


@given(
    count=st.integers(1, 40),
    size=st.integers(1, 12),
    first=st.integers(0, 50),
    steps=st.integers(0, 30),
)
def test_batches_are_a_function_of_the_step_alone(
    count: int, size: int, first: int, steps: int
) -> None:
    own = np.arange(100, 100 + count)
    whole = batches(own, size, 7, 3, 0, first + steps)
    np.testing.assert_array_equal(batches(own, size, 7, 3, first, steps), whole[first:])
    assert whole.shape[1] == min(size, count)
    per_pass = passes(own, size)
    for begin in range(0, len(whole) - per_pass + 1, per_pass):
        once = whole[begin : begin + per_pass].reshape(-1)
        assert len(set(once.tolist())) == len(once)  # no example twice in a pass
    assert set(whole.reshape(-1).tolist()) <= set(own.tolist())


def test_an_iteration_can_be_a_pass_over_the_data() -> None:
    own, by_batch = engine(iteration="epoch"), engine()
    a = trained(own, [task(own, client=1, steps=2, first=1)])[0]
    b = trained(by_batch, [task(by_batch, client=1, steps=6, first=3)])[0]  # 37 examples: 3 each
    c = trained(by_batch, [task(by_batch, client=1, steps=6, first=0)])[0]
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("sgd", {"momentum": 0.9}), ("Adam", {}), ("adamw", {"weight_decay": 0.1}), ("LBFGS", {})],
)
def test_any_optimiser_works_and_forgets_at_every_broadcast(
    optimizer: str, options: dict[str, Any]
) -> None:
    own = engine(optimizer=optimizer, options=options, learning_rate=0.01)
    first = trained(own, [task(own)])[0]
    again = trained(own, [task(own), task(own)])[1]
    assert torch.equal(first, again)
    assert not torch.equal(first, own.initial())


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
def test_a_tasks_rate_multiplies_the_learning_rate_of_this_round_only(
    options: dict[str, Any],
) -> None:
    own, faster = engine(options=options), engine(options=options, learning_rate=0.25)
    before = trained(own, [task(own)])[0]
    assert torch.equal(
        trained(own, [replace(task(own), rate=2.5)])[0], trained(faster, [task(faster)])[0]
    )
    assert torch.equal(trained(own, [task(own)])[0], before)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
def test_the_proximal_term_pulls_to_where_the_round_began(options: dict[str, Any]) -> None:
    """Against float64 autograd of F(w) + rho/2 |w - w0|^2, written down."""
    pull, module, data = 0.7, build("mlp", (1, 8, 8), 10, 0).double(), examples()
    own = engine(module, proximal=pull, options=options)
    start = [p.detach().clone() for p in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, **options)
    for picked in torch.from_numpy(batches(PARTS[1], 10, 5, 1, 0, 4)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(data.x[picked].double()), data.y[picked])
        gaps = [(p - w).square().sum() for p, w in zip(module.parameters(), start, strict=True)]
        torch.autograd.backward(loss + pull / 2 * torch.stack(gaps).sum())
        optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    (found,) = trained(own, [task(own)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    plain = engine(build("mlp", (1, 8, 8), 10, 0).double(), options=options)
    (free,) = trained(plain, [task(plain)])
    assert (found - own.initial()).norm() < (free - own.initial()).norm()
    assert torch.equal(trained(own, [task(own), task(own)])[1], found)  # each round starts afresh


class Place(nn.Module):
    """Its loss is 1/2 (w - x)^2 with the mean of the outputs as the loss."""

    def __init__(self, at: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([at], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w - x).square() / 2


def average(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.mean()


def test_a_quadratic_with_a_proximal_term_ends_between_start_and_centre() -> None:
    """w := w - eta ((w - c) + rho (w - w0)) goes to (c + rho w0) / (1 + rho)."""
    data = Examples(torch.full((4, 1), 3.0), torch.zeros(4))
    training = Training(0.5, 4, loss=average, proximal=2.0)
    own = LoopEngine(Workload(Place(), data, [np.arange(4)], data, training, 0))
    (found,) = trained(own, [Task(0, torch.tensor([-1.0], dtype=torch.float64), 60, 0)])
    assert float(found) == pytest.approx((3 - 2) / 3, abs=1e-12)


def test_momentum_zero_is_plain_sgd() -> None:
    own, other = engine(optimizer="SGD", options={"dampening": 0.0, "nesterov": False}), engine()
    assert torch.equal(trained(own, [task(own)])[0], trained(other, [task(other)])[0])


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimizer": "sdg"}, "unknown optimizer 'sdg': did you mean 'sgd'"),
        ({"optimizer": "adam", "options": {"speed": 1}}, "does not accept its options"),
    ],
)
def test_a_wrong_optimiser_is_refused(training: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        engine(**training)


def test_divergence_names_the_client_and_the_learning_rate() -> None:
    own = engine(learning_rate=1e30)
    with pytest.raises(Diverged, match=r"client 1, local iteration 7.*learning rate 1e\+30"):
        list(own.train([task(own, client=1, steps=5, first=2)]))


def test_a_model_that_raises_names_the_client() -> None:
    own = engine(nn.Sequential(nn.Flatten(), nn.Linear(63, 10)))
    with pytest.raises(SdfeelError, match="client 2 failed in its local iteration 0: RuntimeError"):
        list(own.train([task(own, client=2)]))


def test_an_unused_parameter_stays() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(64, 10), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(x.flatten(1))
            return out

    own = engine(Spare())
    assert torch.equal(trained(own, [task(own)])[0][-12:], own.initial()[-12:])


def test_evaluation_measures_all_examples_once() -> None:
    own = engine()
    module, data = build("mlp", (1, 8, 8), 10, 0), examples(613, seed=3)
    big = LoopEngine(
        Workload(module, examples(), PARTS, data, Training(0.1, 10), 0, {"mean": mean_logit})
    )
    scores = big.evaluate(big.initial())
    with torch.no_grad():
        out = module(data.x)
    assert scores.test_loss == pytest.approx(float(nn.functional.cross_entropy(out, data.y)), 1e-6)
    assert scores.accuracy == pytest.approx(float((out.argmax(1) == data.y).double().mean()))
    assert scores.metrics["mean"] == pytest.approx(float(out.mean()), rel=1e-4)
    assert own.evaluate(own.initial()).loss > 2


def mean_logit(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.mean()


def test_regression_has_no_accuracy() -> None:
    x = torch.randn(30, 3)
    data = Examples(x, x.sum(dim=1, keepdim=True))
    training = Training(0.1, 5, loss=nn.functional.mse_loss)
    own = LoopEngine(Workload(nn.Linear(3, 1), data, [np.arange(30)], data, training, 0))
    before = own.evaluate(own.initial())
    after = own.evaluate(trained(own, [Task(0, own.initial(), 100, 0)])[0])
    assert before.accuracy is None
    assert after.loss < 0.01 * before.loss
