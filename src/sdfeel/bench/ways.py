"""Ways to do the work, from what most people write to the fastest that we have."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sdfeel.bench.work import RATE, BenchWork
from sdfeel.core.errors import InputError
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Workload
from sdfeel.engine.combine import Sums
from sdfeel.engine.select import Kind, choose
from sdfeel.engine.threads import one_thread

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
        raise InputError(f"this way trains, and '{work.name}' does not: leave it out")


def ours(work: BenchWork, kind: Kind) -> Way:
    """One of the project's engines, seeds, checks and all."""
    data, parts = work.data()
    # An engine looks at training and at test data: here at one half each.
    first, second = (Examples(x, y) for x, y in zip(data.x.chunk(2), data.y.chunk(2), strict=True))
    module, training = work.module(), work.training
    workload = Workload(module, data, parts, second, training, seed=0, measured=first)
    engine, _ = choose(kind, workload)
    start, turn = engine.initial(), 0
    if work.evaluates:
        return lambda: engine.evaluate(start)

    def go() -> None:
        nonlocal turn
        tasks = [Task(c, start, work.steps, turn * work.steps) for c in range(work.clients)]
        with one_thread():  # as the simulator works: torch's idle threads would spin
            average = Sums(1, start)
            for model in engine.train(tasks):
                average.add(0, 1 / work.clients, model)
            average.rows()
        turn += 1

    return go


WAYS: dict[str, Callable[[BenchWork], Way]] = {
    "naive": naive,
    "centralised": centralised,
    "lean": lean,
    "loop": lambda work: ours(work, "loop"),
    "parallel": lambda work: ours(work, "parallel"),
    "native": lambda work: ours(work, "native"),
}
