"""Carries out a scheme by weighted sums on a virtual clock."""

from collections.abc import Iterator, Mapping
from math import ceil

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import Ints
from sdfeel.core.cost import Bill, Cost
from sdfeel.core.events import Round
from sdfeel.core.network import Network
from sdfeel.core.scheme import Mix, Scheme, View, Work
from sdfeel.core.staleness import Clocks
from sdfeel.engine.base import Engine, Task
from sdfeel.engine.sums import Sums, mean, mixed, weighted
from sdfeel.engine.threads import one_thread
from sdfeel.sim.state import LaneState, State

Plan = tuple[Work, Ints, Mix, Bill]  # a round's decisions, the steps taken, the price


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
        self._plan_of_the_only_lane: tuple[int, Plan] | None = None
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
        return View(
            self.net, each.lane, each.k, self.state.clocks, self.cost.step_seconds, self.seed
        )

    def _begin(self, each: LaneState) -> None:
        work, _, _, bill = self._plan(each)
        each.ends = self.state.seconds + bill.seconds
        if len(self.state.lanes) > 1:  # others will change the servers' models meanwhile
            each.sources = np.unique(work.down.sources).tolist()
            each.base = self.state.servers[each.sources]

    def _plan(self, each: LaneState) -> Plan:
        """What the lane does in this round, and what it costs.

        Decisions are pure, so they may be asked for again when the round ends. How models are
        weighed may have changed by then; how long it takes has not. With one lane, nothing can
        have changed.
        """
        alone = len(self.state.lanes) == 1
        known = self._plan_of_the_only_lane
        if alone and known is not None and known[0] == each.k:
            return known[1]
        plan = self._asked(each)
        if alone:
            self._plan_of_the_only_lane = each.k, plan
        return plan

    def _asked(self, each: LaneState) -> Plan:
        work = self.scheme.work(self._view(each))
        done = self.cost.done(work)
        mix = self.scheme.mix(self._view(each), done)
        return work, done, mix, self.cost.bill(work, mix, done)

    def _finish(self, each: LaneState) -> Round:
        state = self.state
        work, done, mix, bill = self._plan(each)
        self._up(work, mix, done, each)
        mixed_with = np.empty(0, dtype=np.int64)
        if mix.across is not None:
            mixed_with = mix.across.rows
            rows = torch.from_numpy(np.array(mix.across.rows))
            for _ in range(mix.across.hops):
                state.servers[rows] = mixed(mix.across, state.servers)
        state.clocks = state.clocks.after(np.array(each.lane), mixed_with)
        state.seconds = each.ends
        state.bytes += bill.bytes
        state.joules += bill.joules
        state.taken = state.taken + done
        each.steps += length(self.net, work, done)
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

    def _up(self, work: Work, mix: Mix, done: Ints, each: LaneState) -> None:
        """Clients train, one block after another, and fold into their servers' sums."""
        state = self.state
        sums = Sums(len(mix.up.rows), state.servers)
        takers = _takers(mix)
        tasks = self._tasks(work, done, each)
        for task, trained in zip(tasks, self.engine.train(tasks), strict=True):
            row = trained if mix.payload == "model" else trained - task.start
            for index, weight in takers.get(task.client, ()):
                sums.add(index, weight, row)
        rows = torch.from_numpy(np.array(mix.up.rows))
        if mix.payload == "model":
            state.servers[rows] = sums.rows()
        else:
            state.servers[rows] += sums.rows()

    def _tasks(self, work: Work, done: Ints, each: LaneState) -> list[Task]:
        models: Mapping[int, Tensor] | Tensor = self.state.servers
        if each.base is not None:
            models = dict(zip(each.sources, each.base, strict=True))
        tasks = []
        for client, sources, weights in work.down:
            if len(sources) == 1 and weights[0] == 1:
                start = models[int(sources[0])]
            else:
                terms = zip(weights.tolist(), sources.tolist(), strict=True)
                start = weighted((weight, models[source]) for weight, source in terms)
            first = int(self.state.taken[client])
            tasks.append(Task(client, start, int(done[client]), first))
        return tasks


def length(net: Network, work: Work, done: Ints) -> float:
    """Local iterations that a round counts for.

    Where a scheme draws each client's steps, its time slots; else the steps of those who took
    part, weighted by their data, and exact where all took the same.
    """
    if work.each is not None:
        return float(work.steps)
    who = done.nonzero()[0]
    if not who.size or done[who].min() == done[who].max():
        return float(done.max())
    return float(np.average(done[who], weights=net.samples[who]))


def expected_rounds(scheme: Scheme, net: Network, cost: Cost, iterations: int, seed: int) -> int:
    """Rounds of all lanes until `iterations` are done, if rounds go on as they begin."""
    own = scheme.adapt(net)
    clocks = Clocks.fresh(len(own.servers))
    total = 0
    for lane in scheme.lanes(own):
        work = scheme.work(View(own, lane, 0, clocks, cost.step_seconds, seed))
        total += ceil(iterations / max(length(own, work, cost.done(work)), 1))
    return total


def _takers(mix: Mix) -> dict[int, list[tuple[int, float]]]:
    """Per client, the sums that its model goes into, and with which weight."""
    takers: dict[int, list[tuple[int, float]]] = {}
    for index, (_, sources, weights) in enumerate(mix.up):
        for source, weight in zip(sources.tolist(), weights.tolist(), strict=True):
            takers.setdefault(source, []).append((index, weight))
    return takers
