"""Carries out a scheme by weighted sums on a virtual clock."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import Ints
from sdfeel.core.cost import Bill, Cost
from sdfeel.core.events import Round
from sdfeel.core.network import Network
from sdfeel.core.scheme import Mix, Scheme, View, Work
from sdfeel.engine.base import Engine, Task
from sdfeel.engine.sums import Sums, mean, mixed, weighted
from sdfeel.engine.threads import one_thread
from sdfeel.sim.state import LaneState, State


class Simulation:
    """An endless iterator of finished rounds, in time order. `state` may be saved between two.

    Synchronous schemes have one lane of all servers, asynchronous ones a lane per server; the
    loop is the same. A lane trains when its round ends, from models fixed when it began.
    """

    def __init__(
        self,
        scheme: Scheme,
        net: Network,
        cost: Cost,
        engine: Engine,
        seed: int = 0,
        state: State | None = None,
    ) -> None:
        self.scheme, self.cost, self.engine, self.seed = scheme, cost, engine, seed
        self.net = scheme.adapt(net)
        if state is None:
            state = State.fresh(engine.initial(), len(self.net.servers), len(net.samples))
            state.lanes = [LaneState(lane, 0, 0.0, None) for lane in scheme.lanes(self.net)]
            self.state = state
            for each in state.lanes:
                self._begin(each)
        self.state = state

    def __iter__(self) -> Iterator[Round]:
        return self

    def __next__(self) -> Round:
        """Finish the round that ends first; the lower lane wins a tie."""
        with one_thread():
            return self._finish(min(self.state.lanes, key=lambda each: (each.ends, each.lane)))

    def model(self) -> Tensor:
        """(P,) the mean of the servers' models, weighted by their clusters' data."""
        return mean(self.net.mass.tolist(), self.state.servers)

    def spread(self) -> float:
        """How far the servers' models are from their mean: a weighted root mean square."""
        gaps = (self.state.servers - self.model()).double().norm(dim=1) ** 2
        return float(np.sqrt(self.net.mass @ gaps.numpy()))

    def _view(self, each: LaneState) -> View:
        age = self.state.number - self.state.led
        return View(self.net, each.lane, each.k, age, self.seed)

    def _begin(self, each: LaneState) -> None:
        _, _, _, bill = self._plan(each)
        each.ends = self.state.seconds + bill.seconds
        alone = len(self.state.lanes) == 1
        each.base = None if alone else self.state.servers.clone()

    def _plan(self, each: LaneState) -> tuple[Work, Ints, Mix, Bill]:
        """What the lane does in this round, and what it costs.

        Decisions are pure, so asking again when the round ends is free. How models are weighed
        may have changed by then; how long it takes has not.
        """
        work = self.scheme.work(self._view(each))
        done = self.cost.done(work)
        mix = self.scheme.mix(self._view(each), done)
        return work, done, mix, self.cost.bill(work, mix, done)

    def _finish(self, each: LaneState) -> Round:
        state = self.state
        work, done, mix, bill = self._plan(each)
        base = state.servers if each.base is None else each.base
        self._up(work, mix, done, base)
        if mix.across is not None:
            rows = torch.from_numpy(np.array(mix.across.rows))
            for _ in range(mix.across.hops):
                state.servers[rows] = mixed(mix.across, state.servers)
        state.number += 1
        state.seconds = each.ends
        state.bytes += bill.bytes
        state.joules += bill.joules
        state.taken = state.taken + done
        state.led[list(each.lane)] = state.number
        each.steps += int(done.max())
        each.k += 1
        self._begin(each)
        return Round(
            number=state.number,
            lane=each.lane,
            iterations=state.iterations,
            seconds=state.seconds,
            bytes=state.bytes,
            joules=state.joules,
            clients=len(work.down.rows),
            phases={"compute": bill.compute, "upload": bill.upload, "mix": bill.mix},
        )

    def _up(self, work: Work, mix: Mix, done: Ints, base: Tensor) -> None:
        """Clients train, one block after another, and fold into their servers' sums."""
        state = self.state
        sums = Sums(len(mix.up.rows), state.servers)
        takers = _takers(mix)
        tasks = self._tasks(work, done, base)
        for task, trained in zip(tasks, self.engine.train(tasks), strict=True):
            row = trained if mix.payload == "model" else trained - task.start
            for index, weight in takers.get(task.client, ()):
                sums.add(index, weight, row)
        rows = torch.from_numpy(np.array(mix.up.rows))
        if mix.payload == "model":
            state.servers[rows] = sums.rows()
        else:
            state.servers[rows] += sums.rows()

    def _tasks(self, work: Work, done: Ints, base: Tensor) -> list[Task]:
        tasks = []
        for client, sources, weights in work.down:
            if len(sources) == 1 and weights[0] == 1:
                start = base[int(sources[0])]
            else:
                terms = zip(weights.tolist(), sources.tolist(), strict=True)
                start = weighted((weight, base[source]) for weight, source in terms)
            first = int(self.state.taken[client])
            tasks.append(Task(client, start, int(done[client]), first))
        return tasks


def _takers(mix: Mix) -> dict[int, list[tuple[int, float]]]:
    """Per client, the sums that its model goes into, and with which weight."""
    takers: dict[int, list[tuple[int, float]]] = {}
    for index, (_, sources, weights) in enumerate(mix.up):
        for source, weight in zip(sources.tolist(), weights.tolist(), strict=True):
            takers.setdefault(source, []).append((index, weight))
    return takers
