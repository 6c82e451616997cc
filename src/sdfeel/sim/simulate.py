"""Carries out a scheme by weighted sums on a virtual clock."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from sdfeel.core import membership, outages
from sdfeel.core.arrays import Floats, Ints, floats, ints
from sdfeel.core.cost import Bill
from sdfeel.core.decide import Begun, Decisions, Known, uses_hearsay
from sdfeel.core.events import Crew, Round
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network
from sdfeel.core.scheme import Estimates, Mix, Work
from sdfeel.core.whereabouts import handovers, woken
from sdfeel.engine.attacks import Attack
from sdfeel.engine.base import Engine, Task, one_thread
from sdfeel.engine.combine import Sums, combined, mean, mixed, summed, weighted
from sdfeel.engine.estimates import Estimator, probing
from sdfeel.engine.messages import Packing, senders
from sdfeel.engine.native.rows import rows_in_c
from sdfeel.engine.privacy import Budget
from sdfeel.engine.tasks import folding, plain
from sdfeel.sim.ahead import Ahead, in_order
from sdfeel.sim.ahead_sums import AheadSums
from sdfeel.sim.holds import take_turns
from sdfeel.sim.state import LaneState, State, uncollected
from sdfeel.sim.tasks import folded, takers_of, tasks_of

LISTED = 200  # clients whose seconds a round's event lists, at most


class Simulation:
    """An endless iterator of finished rounds, in time order. `state` may be saved between two.

    Synchronous schemes have one lane of all servers, asynchronous ones a lane per server; the
    loop is the same. A lane's result is needed when its round ends; since the models that it trains
    from are fixed when the round begins, it is trained whenever there is a free core (`Ahead`).
    """

    def __init__(
        self,
        decisions: Decisions,
        engine: Engine,
        state: State | None = None,
        packing: Packing | None = None,  # None: models are sent as they are
        stays: Tensor | None = None,  # (S,) what stays with each client, at first
        budget: Budget | None = None,  # None: nothing is promised about privacy
        average: float = 0.0,  # share of the running average of models that each round keeps
        attack: Attack | None = None,  # which servers lie; clients do in the engine
    ) -> None:
        self.decisions, self.engine, self._stays = decisions, engine, stays
        self.budget, self._average = budget, average
        self._liars = attack if attack is not None and attack.servers else None
        self._packing = packing
        self._news: list[str] = []
        self._ahead, self._folding = Ahead(engine), folding(engine)
        self._ahead_sums: AheadSums | None = None
        self._compiled = None if self._folding is None else rows_in_c()
        if self._folding is not None:
            self._ahead_sums = AheadSums(self._folding, getattr(engine, "workers", 1))
        if state is None:
            state = State.fresh(engine.initial(), decisions.net, uses_hearsay(decisions))
            state.lanes = [LaneState(n, lane) for n, lane in enumerate(decisions.lanes)]
            if packing is not None and packing.across is not None:
                state.public = state.servers.clone()  # everyone knows the first model
            self.state = state
            self._seen = decisions.whole
            with uncollected():  # all of it stays
                for each in state.lanes:
                    self._begin(each)
        self.state = state
        latest = max(state.lanes, key=lambda each: each.began)
        self._seen = decisions.state(latest.began, latest.since)
        self._last = decisions.state(*latest.was).net
        self._order()

    @property
    def net(self) -> Network:
        """The network as the scheme uses it, as it was in the last finished round."""
        if self.decisions.outages is not None and self.decisions.outages.moves:
            return self._last
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
            each = self._next_lane()
            done = self._finish(each)
            heapreplace(self._next, (each.order, each))
            if self._average:
                self._update_average()
            return done

    def finish(self, number: int, seconds: float) -> Round:
        """Finish a lane's round at `seconds`, even if it is not the next: to follow a record."""
        each = self.state.lanes[number]
        each.ends = seconds
        with one_thread():
            done = self._finish(each)
        self._order()
        return done

    def decide_by(self, decisions: Decisions) -> None:
        """Use these decisions for the rounds in progress and all later ones."""
        self.decisions = decisions
        for each in self.state.lanes:
            each.begun = each.tasks = None

    def _order(self) -> None:
        self._next = [(each.order, each) for each in self.state.lanes]
        heapify(self._next)

    def next_steps(self) -> int:
        """Local iterations that the clients of the next round take together."""
        return int(self._decided(self._next_lane()).steps.sum())

    def next_end(self) -> float:
        """The virtual moment at which the next round ends."""
        return self._next_lane().ends

    def _next_lane(self) -> LaneState:
        if self.decisions.cost.holds:
            take_turns(self._next, self.state.lanes, self._begun)
        return self._next[0][1]

    def _update_average(self) -> None:
        """Add the newest model to the running average, which spans few rounds at first."""
        newest, before, number = self._newest(), self.state.average, self.state.number
        kept = min(self._average, number / (9 + number))
        terms = [] if before is None else [(kept, before), (1 - kept, newest)]
        self.state.average = weighted(terms) if terms else newest

    def model(self) -> Tensor:
        """(P,) what the run returns if it ends now: `Network.returned`, or its average so far."""
        return self._newest() if self.state.average is None else self.state.average

    def _newest(self) -> Tensor:
        rows, weights = self.net.returned
        return summed(rows, weights, self.state.rows)

    def models(self) -> Callable[[int], Tensor]:
        """The model of each client if the run ends now: all have the same, or each its own.

        Where models are personal, it is what travels (T,) and what stays (S,), one after the other.
        """
        own = next((each for each in self.net.shelves if each.returned), None)
        if own is not None and own.per == "client":
            rows = self.net.shelf(own.name)
            return lambda client: self.state.rows[int(rows[client])]
        model, stays = self.model(), self._stays
        if stays is None:
            return lambda client: model
        return lambda client: torch.cat([model, self.state.own.get(client, stays)])

    def distances(self) -> Floats:
        """(D,) how far each server's model is from the mean of all."""
        servers = self.state.servers
        middle = mean(self.net.mass.tolist(), servers)
        return floats((servers - middle).double().norm(dim=1).numpy())

    def spread(self) -> float:
        """How far the servers' models are from their mean: the weighted root mean square."""
        return float(np.sqrt(self.net.mass @ self.distances() ** 2))

    def epsilons(self) -> dict[str, float]:
        """How much others may have learned so far: `privacy.Budget`."""
        if self.budget is None:
            return {}
        return self.budget.epsilons(self.state.spent, self.state.taken)

    def news(self) -> list[str]:
        """What has happened to servers since this was last called."""
        news, self._news = self._news, []
        return news

    def _begin(self, each: LaneState) -> None:
        each.was, each.began = (each.began, each.since), self.state.number
        each.since = self.state.seconds
        before = each.begun
        decided = self._begun(each, again=True)
        if self.decisions.outages is not None:
            self._news += outages.changes(self._seen, decided.state, self.state.number)
            self._fill_woken_servers(self._seen.net, decided.state.net)
            self._seen = decided.state
        each.ends, each.held = self.state.seconds + decided.bill.seconds, None
        if len(self.state.lanes) > 1:  # others will change the servers' models in the meantime
            work, each.tasks = decided.work, None
            if not each.sources or before is None or work is not before.work:
                each.sources = work.taken.tolist()
            each.base = self.state.rows.taken(each.sources)

    def _fill_woken_servers(self, before: Network, now: Network) -> None:
        """Servers to which the first clients have come continue as copies of servers with some."""
        models = self.state.rows
        for server, source in woken(before, now).items():
            shelves = [now.shelf(each.name) for each in now.shelves if each.per == "server"]
            for rows in (np.arange(len(now.linked)), *shelves):
                models.put([int(rows[server])], models.taken([int(rows[source])]))

    def _begin_epoch(self, k: int) -> None:
        """Where an epoch begins with round `k`: servers join, and shelves begin again."""
        before, now = self.decisions.at(k - 1).net, self.decisions.at(k).net
        if before is now:
            return
        models = self.state.rows
        for server, source in membership.heirs(before, now).items():
            models.put([server], models.taken([source]))
            self._news.append(f"server {server} joins with the model of server {source}")
        self._news += [
            f"server {server} leaves after round {k}"
            for server in now.out
            if server not in before.out
        ]
        models.begin(now)

    def _begun(self, each: LaneState, again: bool = False) -> Begun:
        """What the lane does in this round, and what it costs; `again`: it begins just now."""
        if each.begun is None or again:
            decisions, clocks = self.decisions.at(each.k), self.state.clocks
            before = None if self.decisions.epochs else each.begun
            known = self._known(each)
            each.begun = decisions.begun(before, each.number, each.k, clocks, **known)
        return each.begun

    def _decided(self, each: LaneState) -> Begun:
        """How the round ends. With one lane, nothing can have changed since it began."""
        begun, decisions = self._begun(each), self.decisions.at(each.k)
        if len(self.state.lanes) == 1:
            return begun
        clocks = self.state.clocks
        return decisions.ended(begun, each.number, each.k, clocks, **self._known(each))

    @staticmethod
    def _known(each: LaneState) -> Known:
        return {
            "began": each.began,
            "seconds": each.since,
            "memory": each.memory,
            "measured": each.measured,
        }

    def _finish(self, each: LaneState) -> Round:
        state = self.state
        decided = self._decided(each)
        work, _, mix, bill, clients, network, iterations, _ = decided
        held, self._last = each.held or 0.0, network.net
        began = (
            {} if self._liars is None else {d: state.rows[d].clone() for d in self._liars.servers}
        )
        ended = self._up(decided, each)
        spread = self.spread() if ended else 0.0
        mixed_with = self._exchanges(mix, began)
        each.measured = self._measured(decided, each, ended, spread)
        state.clocks = outages.after(state.clocks, each.lane, network.there, mixed_with)
        state.seconds = each.ends
        state.bytes += bill.bytes
        state.joules += bill.joules
        state.taken = state.taken.copy()  # somebody may have kept it
        state.taken[work.down.rows] = state.taken[work.down.rows] + decided.steps
        self._count_privacy(work, mix.up, each.k)
        state.took(each, iterations)
        each.memory = mix.memory
        state.over = state.over or mix.over
        each.k += 1
        self._begin_epoch(each.k)
        self._begin(each)
        figures = dict(mix.figures)
        if self.decisions.outages is not None and self.decisions.outages.moves:
            figures["handovers"] = handovers(network.net, self._seen.net)
        return Round(
            number=state.number,
            lane=each.lane,
            iterations=state.iterations,
            seconds=state.seconds,
            bytes=state.bytes,
            joules=state.joules,
            clients=clients,
            phases={"compute": bill.compute, "upload": bill.upload, "mix": bill.mix + held},
            mixed=mixed_with,
            crew=self._crew(each, work, bill),
            energy=dict(bill.energy),
            figures=figures,
        )

    def _count_privacy(self, work: Work, up: Mixing, k: int) -> None:
        """Count what a round reveals about clients, or about their examples."""
        if self.budget is None:
            return
        decisions, clients = self.decisions.at(k), len(self.state.taken)
        waited = decisions.late.seconds is None
        late = ints([] if waited else np.setdiff1d(work.down.rows, up.sources))
        if self.budget.protects == "clients":
            spent = self.budget.round(up, clients, late)
        elif len(late):
            spent = self.budget.in_vain(late, decisions.cost.done(work))
        else:
            return
        self.state.spent = spent + self.state.spent if self.state.spent.size else spent

    def _exchanges(self, mix: Mix, began: Mapping[int, Tensor]) -> tuple[int, ...]:
        """Mix the servers, stage by stage; return those that took part in an exchange.

        `began`: the models with which lying servers began the round, which their lies need.
        """
        met: set[int] = set()
        hop = 0  # counted over all stages: every message has an address of its own
        for stage in mix.stages:
            for _ in range(stage.hops):
                if not self._mixed_at_once(stage):
                    self.state.rows.put(stage.places[0], self._across(stage, hop, began))
                hop += 1
            if stage.crossings:
                met.update([d for d in stage.places[0] if d >= 0])
        return tuple(sorted(met))

    def _mixed_at_once(self, mixing: Mixing) -> bool:
        """Mix in place if all models travel unchanged (the same bits); False if they do not."""
        as_they_are = self._liars is None and self.state.public is None
        compiled = self._compiled if as_they_are else None
        return compiled is not None and self.state.rows.mix(mixing, compiled)

    def _across(self, mixing: Mixing, hop: int, began: Mapping[int, Tensor]) -> Tensor:
        """(R, P) one exchange between servers, compressed if the experiment says so."""
        packing = self._packing
        if self._liars is not None and mixing.crossings:
            return self._across_with_liars(mixing, self._liars, began)
        sent = mixing.via == "server-server" and mixing.crossings > 0
        state = self.state
        if packing is None or packing.across is None or state.public is None or not sent:
            return mixed(mixing, state.rows)
        state.rows.touch(*senders(mixing))
        return packing.exchange(state.servers, state.public, mixing, state.number, hop)

    def _across_with_liars(
        self, mixing: Mixing, liars: Attack, began: Mapping[int, Tensor]
    ) -> Tensor:
        """(R, P) one exchange in which some servers lie to others."""
        models = self.state.rows
        lies = {d: liars.lone_lie(models[d], start) for d, start in began.items()}
        holders, found = self.net.holder(mixing.rows).tolist(), []
        for n, (dst, sources, weights) in enumerate(mixing):
            seen = {s: models[s] if s == holders[n] else lies.get(s, models[s]) for s in sources}
            if mixing.rule is not None:
                found.append(combined(mixing, n, models[dst], seen))
            else:
                found.append(summed(sources, weights, seen))
        return torch.stack(found)

    def _crew(self, each: LaneState, work: Work, bill: Bill) -> Crew | None:
        """How long each client computed and sent; None if unchanged, or too many to list."""
        if bill is each.billed or len(work.down.rows) > LISTED:
            return None
        each.billed = bill
        columns = (work.down.rows.tolist(), bill.busy.tolist(), bill.sending.tolist())
        crew = tuple(zip(*columns, strict=True))
        if each.crew == crew:
            return None
        each.crew = crew
        return crew

    def _up(self, decided: Begun, each: LaneState) -> dict[int, Tensor]:
        """Clients train, one block after another, and are added to their servers' sums.

        Returns their models if the round is measured.
        """
        state, work, mix = self.state, decided.work, decided.mix
        found = self._folded(decided, each)
        if found is not None:
            place = state.rows.add if mix.payload == "update" else state.rows.put
            place(mix.up.places[0], found)
            return {}
        sums = Sums(len(mix.up.rows), state.servers)
        takers = takers_of(mix)
        came: dict[int, Tensor] = {}  # models that a rule needs side by side
        shelved = sorted(row for row in takers if row < 0)  # which their takers hold already
        for source in shelved:
            for index, weight in takers[source]:
                sums.add(index, weight, state.rows[source])
        # Late clients have trained in vain, which need not be computed.
        done = decided.done(len(state.taken))
        tasks = [task for task in self._tasks(work, done, each) if task.client in takers]
        ended: dict[int, Tensor] = {}
        secret = None if self._packing is None else self._packing.sums
        totals: dict[int, Tensor] = {}  # masked sums, of integers; servers see nothing else
        for task, trained in zip(tasks, self._trained(each, tasks), strict=True):
            if self._stays is not None:
                state.own[task.client] = trained[len(task.start) :].clone()
                trained = trained[: len(task.start)]
            if work.measure:
                ended[task.client] = trained.clone()
            if secret is not None:
                assert self._packing is not None
                sent = self._packing.upload(state.owed, task, trained, each.k)
                for index, weight in takers.get(task.client, ()):
                    totals[index] = totals[index] + sent if index in totals else sent
                    sums.add(index, weight if mix.payload == "model" else 0.0, task.start)
                continue
            row = self._arrived(task, trained, mix, each.k)
            if mix.up.rule is not None:
                came[task.client] = row.clone()
            else:
                for index, weight in takers.get(task.client, ()):
                    sums.add(index, weight, row)
        rows = mix.up.rows.tolist()
        if not rows:  # nobody came, or no server was there
            return ended
        if secret is not None:
            found = sums.rows()
            for index, total in totals.items():
                found[index] += secret.opened(mix.up, index, total).to(found.dtype)
            if mix.payload == "model":
                state.rows.put(rows, found)
            else:
                state.rows.add(rows, found)
            return ended
        if mix.up.rule is not None:
            state.rows.put(rows, self.state.rows.ruled(mix, came))
        elif mix.payload == "model":
            state.rows.put(rows, sums.rows())
        else:
            state.rows.add(rows, sums.rows())
        return ended

    def _folded(self, decided: Begun, each: LaneState) -> Tensor | Sequence[Tensor] | None:
        """(R, P) the sums for `mix.up.rows` if the engine can make them, with the same bits."""
        state, work, mix = self.state, decided.work, decided.mix
        sent = self._packing is None or not (self._packing.up or self._packing.sums)  # as they are
        if self._folding is None or self._ahead_sums is None or not sent or self._stays is not None:
            return None
        if len(state.lanes) > 1:
            return self._ahead_sums.sums(each, work, mix, state.taken, self._begun_in_order)
        if not plain(work, mix.up):
            return None
        return folded(self._folding, state, decided)

    def _begun_in_order(self) -> Iterator[tuple[LaneState, Begun]]:
        """The lanes, in the order in which their rounds end."""
        return ((each, self._begun(each)) for _, each in in_order(self._next))

    def _trained(self, each: LaneState, tasks: Sequence[Task]) -> Iterator[Tensor]:
        """The models of `tasks`; the lanes whose rounds end next are trained along with them."""
        if len(self.state.lanes) == 1:
            return self.engine.train(tasks)
        return self._ahead.train(each.number, tasks, self._next_tasks)

    def _next_tasks(self, count: int) -> Iterator[tuple[int, list[Task]]]:
        """The `count` lanes whose rounds end next, and what each of them trains."""
        for _, each in islice(in_order(self._next), count):
            begun = self._begun(each)
            who = set(begun.mix.up.sources.tolist())
            if each.tasks is None:
                done = begun.done(len(self.state.taken))
                each.tasks = self._tasks(begun.work, done, each)
            yield each.number, [task for task in each.tasks if task.client in who]

    def _measured(
        self, decided: Begun, each: LaneState, ended: Mapping[int, Tensor], spread: float
    ) -> Estimates | None:
        """What clients measure between the models they trained and those they get in return."""
        if not ended:  # nobody was asked, or all were late
            return None
        work, asked = decided.work, Estimator(probing(self.engine))
        each.base = None  # servers' models as they are now
        compared = {} if work.compare is None else {i: (of, w) for i, of, w in work.compare}
        done = decided.done(len(self.state.taken))
        for task in self._tasks(work, done, each):
            if task.client in ended:
                weight, step = float(self.net.samples[task.client]), task.first + task.steps
                also = summed(*compared[task.client], self.state.rows) if compared else None
                asked.add(task.client, weight, task.start, ended[task.client], step, also)
        return replace(asked.estimates(), spread=spread)

    def _arrived(self, task: Task, trained: Tensor, mix: Mix, k: int) -> Tensor:
        """(P,) a client's model, or its update, as it reaches the server."""
        if self._packing is None or not self._packing.up:
            return trained if mix.payload == "model" else trained - task.start
        update = self._packing.upload(self.state.owed, task, trained, k)
        return task.start + update if mix.payload == "model" else update

    def _tasks(self, work: Work, done: Ints, each: LaneState) -> list[Task]:
        return tasks_of(self.state, self._stays, work, done, each)
