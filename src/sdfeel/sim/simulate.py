"""Carries out a scheme by weighted sums on a virtual clock."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from sdfeel.core import membership, outages
from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.cost import Bill
from sdfeel.core.decide import Decided, Decisions, length
from sdfeel.core.events import Crew, Round
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network
from sdfeel.core.scheme import Estimates, Lane, Memory, Mix, Work
from sdfeel.core.staleness import Clocks
from sdfeel.engine.base import Engine, Task
from sdfeel.engine.combine import Sums, combined, mean, mixed, weighted
from sdfeel.engine.estimates import Estimator, probing
from sdfeel.engine.fused import bounded
from sdfeel.engine.messages import Packing
from sdfeel.engine.threads import one_thread


@dataclass(eq=False)
class LaneState:
    """Where one lane is: its round, when that ends, and the models it began from."""

    number: int  # among the scheme's lanes
    lane: Lane
    k: int = 0
    ends: float = 0.0
    base: Tensor | None = None  # (S, P) of `sources` when the round began; None: unchanged
    sources: list[int] = field(default_factory=list)
    steps: float = 0.0  # local iterations finished by this lane, a mean over its clients
    began: int = 0  # rounds that all lanes had finished when this one began
    since: float = 0.0  # the time when it began
    memory: Memory = field(default_factory=dict)  # the scheme's
    measured: Estimates | None = None
    crew: Crew = ()  # as last listed in the lane's events


@dataclass
class State:
    """A simulation between two rounds."""

    models: Tensor  # (D + S, P) the servers' models, then the scheme's shelves, last one first
    taken: Ints  # (C,) local iterations of each client so far
    clocks: Clocks
    lanes: list[LaneState] = field(default_factory=list)
    seconds: float = 0.0
    bytes: int = 0
    joules: float = 0.0
    owed: dict[int, Tensor] = field(default_factory=dict)  # what clients' messages have lost
    public: Tensor | None = None  # (D, P) the servers' models as their neighbours know them
    own: dict[int, Tensor] = field(default_factory=dict)  # what stays with clients that trained
    over: str | None = None  # why the scheme has ended the run

    @classmethod
    def fresh(cls, initial: Tensor, net: Network) -> "State":
        servers = len(net.servers)
        models = initial.repeat(servers + net.kept, 1)
        for shelf in net.shelves:
            if shelf.start == "zero":
                models[net.shelf(shelf.name).tolist()] = 0
        return cls(
            models=models,
            taken=np.zeros(len(net.samples), dtype=np.int64),
            clocks=Clocks.fresh(servers),
        )

    @property
    def servers(self) -> Tensor:
        """(D, P) the servers' models."""
        return self.models[: len(self.clocks.led)]

    @property
    def number(self) -> int:
        """Rounds of all lanes so far."""
        return self.clocks.number

    @property
    def iterations(self) -> int:
        """Local iterations per server: exact when synchronous, a mean when not."""
        total = sum(each.steps * len(each.lane) for each in self.lanes)
        return int(total / sum(len(each.lane) for each in self.lanes))


LISTED = 200  # clients whose seconds a round's event lists, at most


class Simulation:
    """An endless iterator of finished rounds, in time order. `state` may be saved between two.

    Synchronous schemes have one lane of all servers, asynchronous ones a lane per server; the
    loop is the same. A lane trains when its round ends, from models fixed when it began.
    """

    def __init__(
        self,
        decisions: Decisions,
        engine: Engine,
        state: State | None = None,
        packing: Packing | None = None,  # None: models are sent as they are
        stays: Tensor | None = None,  # (S,) what stays with each client, at first
    ) -> None:
        self.decisions, self.engine, self._stays = decisions, engine, stays
        self._packing = packing
        self._news: list[str] = []
        self._only_lane: tuple[int, Decided] | None = None
        if state is None:
            state = State.fresh(engine.initial(), decisions.net)
            state.lanes = [LaneState(n, lane) for n, lane in enumerate(decisions.lanes)]
            if packing is not None and packing.across is not None:
                state.public = state.servers.clone()  # everyone knows the first model
            self.state = state
            self._seen = decisions.whole
            for each in state.lanes:
                self._begin(each)
        self.state = state
        latest = max(state.lanes, key=lambda each: each.began)
        self._seen = decisions.state(latest.began, latest.since)

    @property
    def net(self) -> Network:
        """The network as the scheme uses it, in the epoch of the last finished round."""
        if not self.decisions.epochs:
            return self.decisions.net
        return self.decisions.at(max(each.k for each in self.state.lanes) - 1).net

    @property
    def seed(self) -> int:
        return self.decisions.seed

    def __iter__(self) -> Iterator[Round]:
        return self

    def __next__(self) -> Round:
        """Finish the round that ends first; the lower lane wins a tie."""
        with one_thread():
            return self._finish(min(self.state.lanes, key=lambda each: (each.ends, each.number)))

    def model(self) -> Tensor:
        """(P,) what the run returns if it ends now: `Network.returned`."""
        rows, weights = self.net.returned
        return _sum(rows, weights, self.state.models)

    def models(self) -> Callable[[int], Tensor]:
        """The model of each client if the run ends now: all have the same, or each its own.

        Where models are personal, it is what travels (T,) and what stays (S,), one after the other.
        """
        own = next((each for each in self.net.shelves if each.returned), None)
        if own is not None and own.per == "client":
            rows = self.net.shelf(own.name)
            return lambda client: self.state.models[int(rows[client])]
        model, stays = self.model(), self._stays
        if stays is None:
            return lambda client: model
        return lambda client: torch.cat([model, self.state.own.get(client, stays)])

    def distances(self) -> Floats:
        """(D,) how far each server's model is from their mean."""
        servers = self.state.servers
        middle = mean(self.net.mass.tolist(), servers)
        return floats((servers - middle).double().norm(dim=1).numpy())

    def spread(self) -> float:
        """How far the servers' models are from their mean: a weighted root mean square."""
        return float(np.sqrt(self.net.mass @ self.distances() ** 2))

    def news(self) -> list[str]:
        """What has happened to servers since this was last called."""
        news, self._news = self._news, []
        return news

    def _begin(self, each: LaneState) -> None:
        each.began, each.since = self.state.number, self.state.seconds
        decided = self._decided(each)
        if self.decisions.outages is not None:
            self._news += outages.changes(self._seen, decided.state, self.state.number)
            self._seen = decided.state
        each.ends = self.state.seconds + decided.bill.seconds
        if len(self.state.lanes) > 1:  # others will change the servers' models in the meantime
            work = decided.work
            taken = [part.sources for part in (work.down, work.shift) if part is not None]
            each.sources = np.unique(np.concatenate(taken)).tolist()
            each.base = self.state.models[each.sources]

    def _renew(self, k: int) -> None:
        """Where an epoch begins with round `k`: servers join, and shelves begin again."""
        before, now = self.decisions.at(k - 1).net, self.decisions.at(k).net
        if before is now:
            return
        models = self.state.models
        for server, source in membership.heirs(before, now).items():
            models[server] = models[source]
            self._news.append(f"server {server} joins with the model of server {source}")
        self._news += [
            f"server {server} leaves after round {k}"
            for server in now.out
            if server not in before.out
        ]
        for row, server_then in now.first_rows():
            models[row] = 0 if server_then is None else models[server_then]

    def _decided(self, each: LaneState) -> Decided:
        """What the lane does in this round, and what it costs.

        Decisions are pure, so they may be asked for again when the round ends. How models are
        weighted may have changed by then; how long the round takes has not. With one lane, nothing
        can have changed.
        """
        alone = len(self.state.lanes) == 1
        known = self._only_lane
        if alone and known is not None and known[0] == each.k:
            return known[1]
        decided = self.decisions.at(each.k).round(
            each.number,
            each.k,
            self.state.clocks,
            began=each.began,
            seconds=each.since,
            memory=each.memory,
            measured=each.measured,
        )
        if alone:
            self._only_lane = each.k, decided
        return decided

    def _finish(self, each: LaneState) -> Round:
        state = self.state
        work, done, mix, bill, clients, network = self._decided(each)
        ended = self._up(work, mix, done, each)
        spread = self.spread() if ended else 0.0
        mixed_with = self._exchanges(mix)
        each.measured = self._measured(work, done, each, ended, spread)
        state.clocks = outages.after(state.clocks, each.lane, network.there, mixed_with)
        state.seconds = each.ends
        state.bytes += bill.bytes
        state.joules += bill.joules
        state.taken = state.taken + done
        each.steps += length(self.decisions.at(each.k).net, work, done)
        each.memory = mix.memory
        state.over = state.over or mix.over
        each.k += 1
        self._renew(each.k)
        self._begin(each)
        return Round(
            number=state.number,
            lane=each.lane,
            iterations=state.iterations,
            seconds=state.seconds,
            bytes=state.bytes,
            joules=state.joules,
            clients=clients,
            phases={"compute": bill.compute, "upload": bill.upload, "mix": bill.mix},
            mixed=mixed_with,
            crew=self._crew(each, work, bill),
            energy=dict(bill.energy),
            figures=dict(mix.figures),
        )

    def _exchanges(self, mix: Mix) -> tuple[int, ...]:
        """Mix the servers, stage by stage; return those that took part in an exchange."""
        met: set[int] = set()
        hop = 0  # of all stages: every message has an address of its own
        for stage in mix.stages:
            rows = torch.from_numpy(np.array(stage.rows))
            for _ in range(stage.hops):
                self.state.models[rows] = self._across(stage, hop)
                hop += 1
            if stage.crossings:
                met.update(stage.rows[stage.rows >= 0].tolist())
        return tuple(sorted(met))

    def _across(self, mixing: Mixing, hop: int) -> Tensor:
        """(R, P) one exchange between servers, compressed if the experiment says so."""
        packing = self._packing
        sent = mixing.via == "server-server" and mixing.crossings > 0
        if packing is None or packing.across is None or not sent:
            return mixed(mixing, self.state.models)
        state = self.state
        assert state.public is not None
        return packing.exchange(state.servers, state.public, mixing, state.number, hop)

    def _crew(self, each: LaneState, work: Work, bill: Bill) -> Crew | None:
        """How long each client computed and sent; None if unchanged, or too many to list."""
        if len(work.down.rows) > LISTED:
            return None
        columns = (work.down.rows.tolist(), bill.busy.tolist(), bill.sending.tolist())
        crew = tuple(zip(*columns, strict=True))
        if each.crew == crew:
            return None
        each.crew = crew
        return crew

    def _up(self, work: Work, mix: Mix, done: Ints, each: LaneState) -> dict[int, Tensor]:
        """Clients train, one block after another, and fold into their servers' sums.

        Their models are returned if the round is measured.
        """
        state = self.state
        sums = Sums(len(mix.up.rows), state.models)
        takers = _takers(mix)
        came: dict[int, Tensor] = {}  # models that a rule needs side by side
        for source in sorted(
            row for row in takers if row < 0
        ):  # rows that are already where they go
            for index, weight in takers[source]:
                sums.add(index, weight, state.models[source])
        # Late clients have trained in vain, which need not be computed.
        tasks = [task for task in self._tasks(work, done, each) if task.client in takers]
        ended: dict[int, Tensor] = {}
        for task, trained in zip(tasks, self.engine.train(tasks), strict=True):
            if self._stays is not None:
                state.own[task.client] = trained[len(task.start) :].clone()
                trained = trained[: len(task.start)]
            row = self._arrived(task, trained, mix, each.k)
            if mix.up.rule is not None:
                came[task.client] = row.clone()
            else:
                for index, weight in takers.get(task.client, ()):
                    sums.add(index, weight, row)
            if work.measure:
                ended[task.client] = trained.clone()
        rows = torch.from_numpy(np.array(mix.up.rows))
        if mix.up.rule is not None:
            state.models[rows] = self._ruled(mix, came)
        elif mix.payload == "model":
            state.models[rows] = sums.rows()
        else:
            state.models[rows] += sums.rows()
        return ended

    def _measured(
        self, work: Work, done: Ints, each: LaneState, ended: Mapping[int, Tensor], spread: float
    ) -> Estimates | None:
        """What clients measure between the models they trained and those they get in return."""
        if not ended:  # nobody was asked, or all were late
            return None
        asked = Estimator(probing(self.engine))
        each.base = None  # servers' models as they are now
        compared = {} if work.compare is None else {i: (of, w) for i, of, w in work.compare}
        for task in self._tasks(work, done, each):
            if task.client in ended:
                weight, step = float(self.net.samples[task.client]), task.first + task.steps
                also = _sum(*compared[task.client], self.state.models) if compared else None
                asked.add(task.client, weight, task.start, ended[task.client], step, also)
        return replace(asked.estimates(), spread=spread)

    def _ruled(self, mix: Mix, came: dict[int, Tensor]) -> Tensor:
        """(R, P) what a rule makes of what arrived; for updates, the server's own row is zero."""
        fresh, models = [], self.state.models
        shelves = {int(n): models[n] for n in np.unique(mix.up.sources) if n < 0}
        for n, dst in enumerate(mix.up.rows.tolist()):
            own = models[dst]
            if mix.payload == "model":
                fresh.append(combined(mix.up, n, own, came | shelves))
            else:
                fresh.append(own + combined(mix.up, n, torch.zeros_like(own), came | shelves))
        return torch.stack(fresh)

    def _arrived(self, task: Task, trained: Tensor, mix: Mix, k: int) -> Tensor:
        """(P,) a client's model, or its update, as it reaches the server."""
        if self._packing is None or not self._packing.up:
            return trained if mix.payload == "model" else trained - task.start
        update = self._packing.upload(self.state.owed, task, trained, k)
        return task.start + update if mix.payload == "model" else update

    def _tasks(self, work: Work, done: Ints, each: LaneState) -> list[Task]:
        models: Mapping[int, Tensor] | Tensor = self.state.models
        if each.base is not None:
            models = dict(zip(each.sources, each.base, strict=True))
        rates = np.ones(len(work.down.rows)) if work.rates is None else work.rates
        shifts = {} if work.shift is None else {i: (of, w) for i, of, w in work.shift}
        tasks: list[Task] = []
        for rate, (client, sources, weights) in zip(rates.tolist(), work.down, strict=True):
            if work.down.rule is not None:
                start = combined(work.down, len(tasks), models[int(sources[0])], models)
            elif len(sources) == 1 and weights[0] == 1:
                start = models[int(sources[0])]
            else:
                terms = zip(weights.tolist(), sources.tolist(), strict=True)
                start = weighted((weight, models[source]) for weight, source in terms)
            first = int(self.state.taken[client])
            shift = None
            if client in shifts:
                row = _sum(*shifts[client], models).numpy()
                shift = torch.from_numpy(bounded(row, start.numpy(), work.clip))
            own, steps = self.state.own.get(client, self._stays), int(done[client])
            tasks.append(Task(client, start, steps, first, rate, shift, work.pull, own))
        return tasks


def _sum(sources: Ints, weights: Floats, models: Mapping[int, Tensor] | Tensor) -> Tensor:
    """(P,) the weighted sum of these rows."""
    terms = zip(weights.tolist(), sources.tolist(), strict=True)
    return weighted((weight, models[source]) for weight, source in terms)


def _takers(mix: Mix) -> dict[int, list[tuple[int, float]]]:
    """For each client, the sums that its model goes into, and with which weights."""
    takers: dict[int, list[tuple[int, float]]] = {}
    for index, (_, sources, weights) in enumerate(mix.up):
        for source, weight in zip(sources.tolist(), weights.tolist(), strict=True):
            takers.setdefault(source, []).append((index, weight))
    return takers
