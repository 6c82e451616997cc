"""Second-order local steps: exact on quadratics, plain SGD without curvature, and they travel."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Scheme
from sdfeel.core.seeds import rng
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.batches import batches
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.newton import NEWTON
from sdfeel.engine.parallel import ParallelEngine
from sdfeel.engine.select import choose
from sdfeel.models.flat import FlatModule
from sdfeel.models.zoo import build
from sdfeel.schemes import AsyncSDFeel, FedAvg, FedMes, HierFavg, SDFeel
from sdfeel.sim.simulate import Simulation

CURVATURES = torch.tensor([0.1, 1.0, 30.0], dtype=torch.float64)
CENTRES = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
COUNTS = [1, 2, 3, 4, 5, 6]  # examples of each client
PARTS = np.split(np.arange(21), np.cumsum(COUNTS)[:-1])


class Bowl(nn.Module):
    """With the mean of its outputs as the loss, 1/2 (w - x)' A (w - x) with a diagonal A."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = nn.Parameter(torch.full((1,), 5.0, dtype=torch.float64))
        self.rest = nn.Parameter(torch.full((2,), -7.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        gaps = torch.cat([self.ahead, self.rest]) - x
        return (CURVATURES * gaps.square()).sum(dim=1) / 2


def average(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.mean()


def bowls(proximal: float = 0.0, **options: Any) -> LoopEngine:
    """Six clients whose losses share one Hessian but have different minima."""
    x = CENTRES.repeat_interleave(torch.tensor(COUNTS), dim=0)
    data = Examples(x, torch.zeros(len(x)))
    options = {"damping": 0.0, **options}
    training = Training(1.0, 10, NEWTON, options, loss=average, proximal=proximal)
    return LoopEngine(Workload(Bowl(), data, PARTS, data, training, 0))


def network(graph: str = "ring", servers: int = 3) -> Network:
    return clustered(
        np.array(COUNTS, dtype=float), [n % servers for n in range(6)], links(graph, servers)
    )


def prices() -> Cost:
    links = ("client-server", "server-server", "server-cloud", "client-cloud")
    return Cost(np.full(6, 0.01), 1e6, dict.fromkeys(links, 1e6))  # type: ignore[arg-type]


def after(engine: LoopEngine, scheme: Scheme, rounds: int = 1) -> Simulation:
    simulation = Simulation(Decisions.of(scheme, network(), prices()), engine)
    for _ in islice(simulation, rounds):
        pass
    return simulation


SYNCHRONOUS = [SDFeel(), SDFeel(tau1=3, tau2=1, alpha=2), FedAvg(), HierFavg(), FedMes()]


@pytest.mark.parametrize("scheme", SYNCHRONOUS, ids=repr)
@pytest.mark.parametrize("probes", [1, 3])
def test_a_common_hessian_is_solved_in_one_step_whatever_is_averaged(
    scheme: Scheme, probes: int
) -> None:
    share = torch.tensor(COUNTS, dtype=torch.float64) / 21
    engine = bowls(probes=probes)
    for rounds in (1, 2):
        simulation = after(engine, scheme, rounds)
        model = simulation.model()
        torch.testing.assert_close(model[:3], share @ CENTRES, rtol=1e-12, atol=1e-12)
        learned = simulation.state.servers[:, 3:6] / simulation.state.servers[:, 6:]
        torch.testing.assert_close(learned, CURVATURES.expand_as(learned), rtol=1e-12, atol=0)


def test_the_pull_to_the_start_is_part_of_the_curvature() -> None:
    start, pull = bowls().initial(), 0.5
    (found,) = bowls(proximal=pull).train([Task(2, start, 1, 0)])
    expected = (CURVATURES * CENTRES[2] + pull * start[:3]) / (CURVATURES + pull)
    torch.testing.assert_close(found[:3], expected, rtol=1e-12, atol=1e-12)


def test_a_tasks_rate_shortens_the_step() -> None:
    start = bowls().initial()
    (found,) = bowls().train([Task(2, start, 1, 0, rate=0.25)])
    torch.testing.assert_close(found[:3], 0.75 * start[:3] + 0.25 * CENTRES[2])


def normed() -> nn.Module:
    draws = torch.Generator().manual_seed(1)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(36, 3),
    )
    module.register_parameter("spare", nn.Parameter(torch.zeros(2)))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draws))
    return module


def pictures(optimizer: str = NEWTON, rate: float = 0.05, **options: Any) -> LoopEngine:
    """A model with everything in it: convolution, BatchNorm, dropout, an unused parameter."""
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    x = torch.randn(120, 1, 8, 8, generator=draws) + y[:, None, None, None]
    data, training = Examples(x, y), Training(rate, 5, optimizer, options)
    return LoopEngine(
        Workload(normed(), data, np.array_split(np.arange(120), 6), data, training, 0)
    )


@pytest.mark.parametrize("scheme", [SDFeel(tau1=2), AsyncSDFeel()], ids=repr)
def test_the_identity_reproduces_plain_sgd_bit_for_bit(scheme: Scheme) -> None:
    plain, own = pictures("sgd"), pictures(identity=True)
    expected, found = after(plain, scheme, 6), after(own, scheme, 6)
    assert torch.equal(found.state.servers, expected.state.servers)
    assert not torch.equal(found.state.servers[0], plain.initial())
    assert own.layout == plain.layout


def test_any_model_learns_and_order_and_other_tasks_change_nothing() -> None:
    own = pictures()
    simulation = after(own, SDFeel(tau1=3), 12)
    before, now = own.evaluate(own.initial()), own.evaluate(simulation.model())
    assert now.loss < 0.7 * before.loss
    tasks = [Task(client, simulation.model(), 3, client) for client in range(6)]
    expected = [row.clone() for row in own.train(tasks)]
    backwards = [row.clone() for row in own.train(tasks[::-1])][::-1]
    parallel = ParallelEngine(own, 2)
    assert all(map(torch.equal, backwards, expected))
    assert all(map(torch.equal, (row.clone() for row in parallel.train(tasks)), expected))
    parallel.close()


def test_curvatures_travel_behind_the_model_and_are_paid_for() -> None:
    own, plain = pictures(), FlatModule(normed())
    sizes = plain.layout.trainable
    assert own.layout.sizes == (*plain.layout.sizes, *sizes, 1)
    assert sum(own.layout.priced) == 2 * own.parameters + 1
    assert sum(own.layout.sizes) == len(own.initial())
    assert torch.equal(own.initial()[: len(plain.row)], plain.row)
    assert ParallelEngine(own, 1).layout == own.layout
    (row,) = own.train([Task(0, own.initial(), 2, 0)])
    normed().load_state_dict(own.state_dict(row))


def test_an_estimate_is_signs_times_hessian_times_signs() -> None:
    """Against the whole Hessian of a model in which parameters depend on one another."""
    draws = torch.Generator().manual_seed(0)
    data = Examples(torch.randn(9, 4, generator=draws).double(), torch.arange(9) % 3)
    module = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 3)).double()
    training = Training(0.1, 5, NEWTON, {"probes": 2, "decay": 0.5})
    own = LoopEngine(Workload(module, data, [np.arange(9)], data, training, 4))
    start = own.initial()
    (row,) = own.train([Task(0, start, 1, 6)])
    (picked,) = batches(np.arange(9), 5, 4, 0, 6, 1)

    def loss(weights: Tensor) -> Tensor:
        one, two, three, four = torch.split_with_sizes(weights, own.layout.trainable)
        hidden = torch.tanh(data.x[picked] @ one.view(2, 4).T + two)
        out = hidden @ three.view(3, 2).T + four
        return nn.functional.cross_entropy(out, data.y[picked])

    weights = start[: own.parameters].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(weights), weights)
    hessian: Tensor = torch.autograd.functional.hessian(loss, start[: own.parameters])  # type: ignore[no-untyped-call]
    bits = rng(4, NEWTON, 0, 6)
    total = torch.zeros(own.parameters, dtype=torch.float64)
    for _ in range(2):
        signs = 2.0 * torch.from_numpy(bits.integers(0, 2, own.parameters, dtype=np.int8)) - 1
        total += signs * (hessian @ signs.double())
    estimate = total / 2
    torch.testing.assert_close(row[own.parameters : -1], estimate / 2)
    expected = start[: own.parameters] - 0.1 * gradient / (estimate.abs() + 0.3)
    torch.testing.assert_close(row[: own.parameters], expected)


@pytest.mark.parametrize(
    ("first", "steps", "estimates"), [(0, 4, 2), (1, 2, 1), (1, 3, 2), (3, 3, 1), (2, 0, 0)]
)
def test_estimates_are_made_now_and_then_and_before_the_first_step(
    first: int, steps: int, estimates: int
) -> None:
    own = pictures(every=3)
    (row,) = own.train([Task(0, own.initial(), steps, first)])
    assert float(row[-1]) == pytest.approx(1 - 0.9**estimates, abs=1e-6)


class Slope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.w * x


def test_a_loss_without_curvature_is_left_to_the_damping() -> None:
    data = Examples(torch.ones(4, 1), torch.zeros(4))
    training = Training(0.1, 4, NEWTON, {"damping": 0.5}, loss=average)
    own = LoopEngine(Workload(Slope(), data, [np.arange(4)], data, training, 0))
    (row,) = own.train([Task(0, own.initial(), 1, 0)])
    assert row.tolist() == pytest.approx([-0.4, 0.0, 0.1])


def test_a_mass_of_nothing_does_no_harm() -> None:
    """Gossip weights may be negative, and mixing stays linear: what is left may be 0 / 0."""
    own = bowls(decay=0.5, damping=0.1)
    start = torch.cat([own.initial()[:3], -CURVATURES, -torch.ones(1)])
    (row,) = own.train([Task(0, start, 1, 0)])
    assert row[3:].tolist() == pytest.approx([0, 0, 0, 0])
    assert torch.isfinite(row).all()


@pytest.mark.parametrize("identity", [False, True])
def test_the_native_engine_leaves_it_to_others(identity: bool) -> None:
    data = Examples(torch.randn(20, 1, 8, 8), torch.arange(20) % 10)
    training = Training(0.1, 5, NEWTON, {"identity": identity})
    own = Workload(build("mlp", (1, 8, 8), 10, 0), data, [np.arange(20)], data, training, 0)
    engine, why = choose("auto", own)
    assert engine.name in ("loop", "parallel")
    assert "its optimiser is newton-diagonal, not SGD, Adam or AdamW" in why
    engine.close()
    with pytest.raises(InputError, match="the native engine cannot run this"):
        choose("native", own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"momentum": 0.9},
            "newton-diagonal has no option momentum: its options are damping, decay",
        ),
        ({"damping": -1}, "damping must be at least 0, got -1"),
        ({"decay": 1.0}, "decay must be at least 0 and below 1, got 1.0"),
        ({"probes": 0}, "probes must be at least 1, got 0"),
        ({"every": 0}, "every must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pictures(**options)


def test_a_misspelt_name_gets_a_guess_at_the_right_one() -> None:
    with pytest.raises(InputError, match="did you mean 'newton-diagonal'"):
        pictures("newton-diagnal")
