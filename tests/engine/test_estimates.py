"""Estimates of how steep, curved, different and noisy losses are, against known ones."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sdfeel.core.errors import InputError, SdfeelError
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.batches import batches
from sdfeel.engine.estimates import Estimator, Probing, estimate, probe, probing
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.parallel import ParallelEngine
from sdfeel.run.session import Timed

CURVATURE = 1.7
CENTRES = torch.tensor([[1.0, -2.0, 0.5], [4.0, 0.0, 0.0], [-3.0, 1.0, 2.0]]).double()
WEIGHTS = {0: 0.5, 1: 0.3, 2: 0.2}


class Bowl(nn.Module):
    """With the mean of its outputs as the loss, F(w) = curvature / 2 * mean |w - x|^2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return CURVATURE / 2 * (self.w - x).square().sum(dim=1)


def average(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.mean()


def bowls(spread: float = 0.0, each: int = 40, batch: int = 4) -> LoopEngine:
    """Three clients; their examples lie around their centres."""
    draws = torch.Generator().manual_seed(3)
    x = CENTRES.repeat_interleave(each, dim=0)
    x = x + spread * torch.randn(x.shape, generator=draws, dtype=torch.float64)
    data = Examples(x, torch.zeros(len(x)))
    parts = np.array_split(np.arange(3 * each), 3)
    return LoopEngine(Workload(Bowl(), data, parts, data, Training(0.1, batch, loss=average), 0))


def test_on_quadratics_the_estimates_are_the_true_constants() -> None:
    own, start = bowls(), torch.tensor([0.3, 0.1, -1.0]).double()
    tasks = [Task(client, start, 3, 0) for client in WEIGHTS]
    ends = {task.client: end.clone() for task, end in zip(tasks, own.train(tasks), strict=True)}
    steps = dict.fromkeys(ends, 3)
    found = estimate(own, dict.fromkeys(ends, start), ends, steps, WEIGHTS)

    def loss(client: int, model: Tensor) -> float:
        return float(CURVATURE / 2 * (model - CENTRES[client]).square().sum())

    steepness = {
        i: abs(loss(i, end) - loss(i, start)) / float((end - start).norm())
        for i, end in ends.items()
    }
    mass = torch.tensor(list(WEIGHTS.values()), dtype=torch.float64)
    gaps = (CENTRES - mass @ CENTRES).norm(dim=1)
    assert found.beta == pytest.approx(CURVATURE, rel=1e-12)
    assert found.delta == pytest.approx(CURVATURE * float(mass @ gaps), rel=1e-12)
    assert found.rho == pytest.approx(sum(WEIGHTS[i] * rho for i, rho in steepness.items()))
    assert found.sigma2 == pytest.approx(0, abs=1e-20)
    assert found.loss == pytest.approx(sum(WEIGHTS[i] * loss(i, start) for i in WEIGHTS))


def test_clients_that_do_not_differ_have_no_delta() -> None:
    own, start = bowls(), torch.ones(3, dtype=torch.float64)
    same = estimate(own, {1: start}, {1: start + 1}, {1: 0}, {1: 0.2})
    assert same.delta == pytest.approx(0, abs=1e-12)
    assert same.beta == pytest.approx(CURVATURE)


def test_a_client_that_did_not_move_says_nothing_about_steepness() -> None:
    own, start = bowls(), torch.ones(3, dtype=torch.float64)
    starts, steps = dict.fromkeys((0, 1), start), {0: 0, 1: 0}
    one = estimate(own, starts, {0: start, 1: start + 1}, steps, WEIGHTS)
    assert one.beta == pytest.approx(CURVATURE)
    none = estimate(own, starts, {0: start, 1: start}, steps, WEIGHTS)
    assert (none.rho, none.beta) == (0, 0)
    with pytest.raises(InputError, match="at least one client with data"):
        Estimator(own).estimates()


def test_noise_is_the_variance_of_a_mini_batch() -> None:
    """Three dimensions of spread 0.5, four examples a batch: 1.7^2 * 3 * 0.25 / 4."""
    own, start = bowls(spread=0.5, each=600), torch.zeros(3, dtype=torch.float64)
    noises = [probe(own, 1, start, start, step).noise for step in range(0, 300, 2)]
    assert np.mean(noises) == pytest.approx(CURVATURE**2 * 3 * 0.25 / 4, rel=0.1)
    whole = bowls(spread=0.5, each=4)  # a batch is all there is
    assert probe(whole, 1, start, start, 0).noise == pytest.approx(0, abs=1e-20)


def messy() -> LoopEngine:
    """BatchNorm, two kinds of dropout, and a parameter that nobody uses."""
    draws = torch.Generator().manual_seed(0)
    module = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.AlphaDropout(0.5), nn.Linear(8, 3)
    )
    module.register_parameter("spare", nn.Parameter(torch.ones(2)))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws))
    data = Examples(torch.randn(60, 6, generator=draws), torch.arange(60) % 3)
    return LoopEngine(Workload(module, data, [np.arange(60)], data, Training(0.1, 10), 5))


def test_a_gradient_is_that_of_training_without_dropout() -> None:
    own = messy()
    loss, gradient = own.loss_and_gradient(0, own.initial(), 3)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    state = own.state_dict(own.initial())
    named = {"4.weight": "2.weight", "4.bias": "2.bias"}
    del state["spare"]
    module.load_state_dict({named.get(name, name): value for name, value in state.items()})
    data, (picked,) = own._train, batches(np.arange(60), 10, 5, 0, 3, 1)
    expected = nn.functional.cross_entropy(module(data.x[picked]), data.y[picked])
    torch.autograd.backward(expected)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    parts = [
        torch.zeros(2),
        *(p.grad.reshape(-1) for p in module.parameters() if p.grad is not None),
    ]
    torch.testing.assert_close(gradient, torch.cat(parts), rtol=1e-4, atol=1e-5)


def test_a_gradient_in_between_disturbs_neither_the_round_nor_torch() -> None:
    own = messy()
    tasks = [Task(0, own.initial(), 3, first) for first in (0, 5)]
    expected = [row.clone() for row in own.train(tasks)]
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    found = []
    torch.set_num_threads(3)
    try:
        for row in own.train(tasks):
            probe(own, 0, own.initial(), row, 7)
            found.append(row.clone())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, found, expected))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_iteration_that_is_a_pass_begins_with_its_first_batch() -> None:
    by_pass, by_batch = bowls(spread=1.0), bowls(spread=1.0)
    by_pass._training = Training(0.1, 4, loss=average, iteration="epoch")
    model = torch.zeros(3, dtype=torch.float64)
    _, found = by_pass.loss_and_gradient(2, model, 3)
    assert torch.equal(found, by_batch.loss_and_gradient(2, model, 30)[1])  # ten batches a pass


def others(own: LoopEngine) -> Iterator[Probing]:
    yield ParallelEngine(own, 2)
    yield Timed(own)


def test_other_engines_answer_alike() -> None:
    own = messy()
    expected = own.loss_and_gradient(0, own.initial(), 2)
    for engine in others(own):
        loss, gradient = probing(engine).loss_and_gradient(0, own.initial(), 2)
        assert loss == expected[0]
        assert torch.equal(gradient, expected[1])


class Mute:
    """An engine that can train and nothing else."""

    name = "mute"


def test_an_engine_without_gradients_is_refused() -> None:
    with pytest.raises(InputError, match="the engine mute cannot compute single gradients"):
        probing(Mute())


def test_a_model_that_raises_names_the_client() -> None:
    data = Examples(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    own = LoopEngine(Workload(nn.Linear(2, 2), data, [np.arange(4)], data, Training(0.1, 2), 0))
    with pytest.raises(SdfeelError, match="client 0 failed in its local iteration 5: RuntimeError"):
        own.loss_and_gradient(0, own.initial(), 5)
