"""Times engines on the same work, interleaved: what is trained, in which ways, and how fast."""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sdfeel.bench.machine_limit import needed_flops, peak
from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, unknown
from sdfeel.core.seeds import number
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Engine, Task, Training, Workload, one_thread
from sdfeel.engine.batched import TOLERANCE
from sdfeel.engine.combine import Sums
from sdfeel.engine.native.build import ALL, code_instructions
from sdfeel.engine.native.lower import lower
from sdfeel.engine.select import Kind, choose
from sdfeel.engine.tasks import Crowd, folding
from sdfeel.models import zoo

RATE = 0.01


@dataclass(frozen=True)
class BenchWork:
    """One round: every client takes `steps` mini-batches; without steps, one pass over all data."""

    name: str
    model: str
    shape: tuple[int, ...]
    clients: int
    steps: int
    batch: int = 10
    examples: int = 1200  # of each client: 50 of them share the 60,000 of MNIST
    device: str = "cpu"  # of the way `batched`

    @property
    def evaluates(self) -> bool:
        return self.steps == 0

    @property
    def samples(self) -> int:
        """Examples that are trained on, or measured."""
        return self.clients * (self.examples if self.evaluates else self.steps * self.batch)

    @property
    def flops(self) -> float:
        """Floating-point operations of one example."""
        count = forward_flops if self.evaluates else training_flops
        return count(self.module(), self.shape)

    @property
    def needed(self) -> float:
        """Operations that cannot be skipped; all, if the model is not a chain of known layers."""
        plan = lower(self.module(), self.training, self.shape)
        return self.flops if isinstance(plan, str) else needed_flops(plan, not self.evaluates)

    @property
    def training(self) -> Training:
        return Training(RATE, self.batch, device=self.device)

    def module(self) -> nn.Module:
        if self.model == "lenet":
            return lenet()
        options = {"hidden": 200} if self.model == "mlp" else {}
        return zoo.build(self.model, self.shape, 10, 0, **options)

    def data(self) -> tuple[Examples, list[Ints]]:
        """Examples that look like normalised images, and who holds which."""
        count = self.clients * self.examples
        return drawn(count, self.shape), np.array_split(np.arange(count), self.clients)


@lru_cache(maxsize=1)  # all ways use the same memory
def drawn(count: int, shape: tuple[int, ...]) -> Examples:
    """Noise with labels."""
    draws = torch.Generator().manual_seed(number(0, "bench"))
    x = torch.randn(count, *shape, generator=draws)
    return Examples(x, torch.randint(10, (count,), generator=draws))


WORKS = {
    work.name: work
    for work in (
        BenchWork("mnist-cnn", "mnist-cnn", (1, 28, 28), clients=50, steps=5),
        BenchWork("mlp", "mlp", (1, 28, 28), clients=50, steps=5),
        BenchWork("lenet", "lenet", (3, 32, 32), clients=50, steps=5, examples=300),
        BenchWork("cifar-cnn", "cifar-cnn", (3, 32, 32), clients=4, steps=5, examples=50),
        BenchWork("evaluation", "mnist-cnn", (1, 28, 28), clients=50, steps=0, examples=200),
    )
}


def find(name: str) -> BenchWork:
    """The work called `name`."""
    if name not in WORKS:
        raise unknown("benchmark", name, WORKS)
    return WORKS[name]


def lenet() -> nn.Module:
    """LeNet-5 for colour images: a model that the project does not ship."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def training_flops(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Floating-point operations of one example's training step, if nothing is skipped.

    Forward, gradient by weights and gradient by inputs cost the same; the first layer needs no
    gradient by its inputs.

    >>> round(training_flops(find("mnist-cnn").module(), (1, 28, 28)))
    2595000
    """
    layers = _products(module, shape)
    return 2 * (3 * sum(layers) - layers[0])


def forward_flops(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Floating-point operations of one example's outputs.

    >>> round(forward_flops(nn.Linear(3, 4), (3,)))
    24
    """
    return 2 * sum(_products(module, shape))


def _products(module: nn.Module, shape: tuple[int, ...]) -> list[float]:
    """Multiplications of each layer that has weights, for one example."""
    layers: list[float] = []

    def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        if isinstance(layer, nn.Linear):
            layers.append(out.numel() * layer.in_features)
        elif isinstance(layer, nn.Conv2d):
            layers.append(out.numel() * prod(layer.weight.shape[1:]))

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    with torch.no_grad():
        module.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return layers


Way = Callable[[], object]  # does the work once

BATCH = 500  # of an evaluation: about where plain torch is fastest


def naive(work: BenchWork) -> Way:
    """A module, a DataLoader, an optimiser and a state_dict per client; torch's own threads."""
    if work.evaluates:
        return plain_evaluation(work)
    data, parts = work.data()
    sets = [TensorDataset(data.x[part], data.y[part]) for part in map(torch.as_tensor, parts)]
    server = work.module()

    def go() -> dict[str, Tensor]:
        states = []
        for own in sets:
            module = copy.deepcopy(server)
            optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
            batches = iter(DataLoader(own, batch_size=work.batch, shuffle=True))
            for _ in range(work.steps):
                x, y = next(batches)
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(module(x), y))
                optimizer.step()
            states.append(module.state_dict())
        return {
            key: torch.stack([state[key].double() for state in states]).mean(0) for key in states[0]
        }

    return go


def plain_evaluation(work: BenchWork) -> Callable[[], tuple[float, int]]:
    """Loss and accuracy in large batches; torch's own threads."""
    data, _ = work.data()
    module = work.module().eval()

    def go() -> tuple[float, int]:
        loss, right = 0.0, 0
        with torch.no_grad():
            for begin in range(0, len(data), BATCH):
                x, y = data.x[begin : begin + BATCH], data.y[begin : begin + BATCH]
                out = module(x)
                loss += nn.functional.cross_entropy(out, y, reduction="sum").item()
                right += int((out.argmax(1) == y).sum())
        return loss / len(data), right

    return go


def centralised(work: BenchWork) -> Way:
    """One model on the same number of examples in large batches; torch's own threads."""
    only_training(work)
    data, _ = work.data()
    module = work.module()
    parameters = list(module.parameters())
    size = work.samples // work.steps

    def go() -> None:
        for step in range(work.steps):
            rows = torch.arange(step * size, (step + 1) * size) % len(data)
            loss = nn.functional.cross_entropy(module(data.x[rows]), data.y[rows])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.add_(gradient, alpha=-RATE)

    return go


def lean(work: BenchWork) -> Way:
    """The least that plain torch needs: one module, one thread, no seeds, no checks."""
    only_training(work)
    data, parts = work.data()
    module = work.module()
    parameters = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    rows = [torch.as_tensor(part) for part in parts]

    def go() -> None:
        with one_thread():
            for own in rows:
                with torch.no_grad():
                    for parameter, value in zip(parameters, start, strict=True):
                        parameter.copy_(value)
                for picked in own[torch.randint(len(own), (work.steps, work.batch))]:
                    loss = nn.functional.cross_entropy(module(data.x[picked]), data.y[picked])
                    gradients = torch.autograd.grad(loss, parameters)
                    with torch.no_grad():
                        for parameter, gradient in zip(parameters, gradients, strict=True):
                            parameter.add_(gradient, alpha=-RATE)

    return go


def only_training(work: BenchWork) -> None:
    if work.evaluates:
        raise InputError(f"this way trains, but '{work.name}' does not: leave it out")


def ours(work: BenchWork, kind: Kind) -> Way:
    """One of the project's engines, seeds, checks and all."""
    data, parts = work.data()
    # An engine measures training and test data: here one half each.
    first, second = (Examples(x, y) for x, y in zip(data.x.chunk(2), data.y.chunk(2), strict=True))
    module, training = work.module(), work.training
    workload = Workload(module, data, parts, second, training, seed=0, measured=first)
    engine, _ = choose(kind, workload)
    start, turn = engine.initial(), 0
    if work.evaluates:
        return lambda: engine.evaluate(start)

    def go() -> None:
        nonlocal turn
        with one_thread():  # as the simulator works: torch's idle threads would spin
            averaged(engine, start, work, turn)
        turn += 1

    return go


def averaged(engine: Engine, start: Tensor, work: BenchWork, turn: int) -> Tensor:
    """(1, P) the mean of all clients' models after a round, made as the simulator makes it."""
    count = work.clients
    if able := folding(engine):  # it adds them up itself
        each = np.arange(count)
        crowd = Crowd(
            clients=each,
            starts=start[None].numpy(),
            start=np.zeros(count, dtype=np.int64),
            steps=np.full(count, work.steps),
            first=np.full(count, turn * work.steps),
            rates=np.ones(count),
            begins=np.arange(count + 1),
            into=np.zeros(count, dtype=np.int64),
            weights=np.full(count, 1 / count),
            updates=False,
        )
        totals = torch.zeros(1, len(start), dtype=torch.float64)
        able.gather(crowd, totals.numpy()).fold()
        return totals.to(start.dtype)
    average = Sums(1, start)
    tasks = [Task(c, start, work.steps, turn * work.steps) for c in range(count)]
    for model in engine.train(tasks):
        average.add(0, 1 / count, model)
    return average.rows()


WAYS: dict[str, Callable[[BenchWork], Way]] = {
    "naive": naive,
    "centralised": centralised,
    "lean": lean,
    "loop": lambda work: ours(work, "loop"),
    "parallel": lambda work: ours(work, "parallel"),
    "native": lambda work: ours(work, "native"),
    "batched": lambda work: ours(work, "batched"),
}
USUAL = tuple(way for way in WAYS if way != "batched")  # which is slow on a CPU


@dataclass(frozen=True)
class DeviceAgreement:
    """How far the models of `batched` on a device are from the loop's."""

    work: str
    device: str
    off: float  # the largest difference of a number, over the largest step
    engine: str  # "batched", or what it fell back to
    agrees: bool


def check(work: BenchWork, clients: int = 4, steps: int = 3) -> DeviceAgreement:
    """Train a few clients by the loop on the CPU and by `batched` on the work's device."""
    small = replace(work, clients=clients, steps=steps, examples=max(work.batch, 30))
    data, parts = small.data()
    workload = Workload(small.module(), data, parts, data, small.training, seed=0)
    engines = [choose(kind, workload)[0] for kind in ("loop", "batched")]
    start = engines[0].initial()
    tasks = [Task(c, start, steps, 0) for c in range(clients)]
    loop, batched = (torch.stack([m.clone() for m in each.train(tasks)]) for each in engines)
    off = float((loop - batched).abs().max() / (loop - start).abs().max())
    name = engines[1].name
    return DeviceAgreement(
        work.name, work.device, off, name, name == "batched" and off <= TOLERANCE
    )


AT_LEAST = 0.25  # seconds of one repeat


@dataclass(frozen=True)
class EngineSpeed:
    """One way's speed on one work."""

    work: str
    way: str
    samples_per_second: float
    of_loop: float  # ratio to the loop engine, within the same repeats
    of_peak: float  # operations, if nothing is skipped, over what the cores can do at most
    of_needed: float  # the same for the operations that cannot be skipped
    instructions: str  # of the code: native's are chosen, torch takes what it finds
    peak: float  # operations per second of the cores at most, with such instructions


def compare(
    work: BenchWork,
    ways: Sequence[str],
    repeats: int,
    report: Callable[[str, int, int], None] = lambda way, done, repeats: None,
) -> list[EngineSpeed]:
    """The median speed of every way over `repeats`, and what the machine allows at most.

    The last line is the speed at which all cores would do nothing but the necessary operations.
    """
    ready: dict[str, Way] = {}
    for name in ways:
        with suppress(InputError):  # not every way fits every work
            ready[name] = WAYS[name](work)
    seconds = timed(ready, repeats, report)
    speeds = [
        _speed(work, name, work.samples / median(times), _ratio(seconds.get("loop", times), times))
        for name, times in seconds.items()
    ]
    limit = peak().flops / work.needed
    of_loop = median(seconds["loop"]) * limit / work.samples
    return [*speeds, _speed(work, "limit", limit, of_loop)]


def timed(
    ready: dict[str, Way], repeats: int, report: Callable[[str, int, int], None]
) -> dict[str, list[float]]:
    """Seconds of a round, by way and repeat; ways take turns.

    The first turn does not count. In it, ways compile, fork and fill their caches, and a machine
    that was idle gets up to speed: a single round is too short for that.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    for turn in range(repeats + 1):
        for name, way in ready.items():
            if turn == 0:
                way()
            found = sustained(way)
            if turn:
                seconds[name].append(found)
            report(name, turn, repeats)
    return seconds


def _speed(work: BenchWork, way: str, speed: float, of_loop: float) -> EngineSpeed:
    """`speed` in samples a second, compared with what its own instructions could do at most."""
    own = way in ("native", "limit")
    flops = peak("" if own else ALL).flops
    torchs = torch.backends.cpu.get_cpu_capability().lower()
    return EngineSpeed(
        work=work.name,
        way=way,
        samples_per_second=speed,
        of_loop=of_loop,
        of_peak=speed * work.flops / flops,
        of_needed=speed / (flops / work.needed),
        instructions=code_instructions() if own else torchs,
        peak=flops,
    )


def sustained(way: Way) -> float:
    """Seconds of one round, among as many as take a while.

    The first round after another way finds cold caches and a sleeping core, unlike those in a long
    run.
    """
    rounds, begin = 0, perf_counter()
    while (passed := perf_counter() - begin) < AT_LEAST:
        way()
        rounds += 1
    return passed / rounds


def _ratio(reference: list[float], times: list[float]) -> float:
    return median(a / b for a, b in zip(reference, times, strict=True))
