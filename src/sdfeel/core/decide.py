"""The one place that asks a scheme for its decisions, and that puts together what it may know.

The simulator, the deployment, the planner, the figures, the theory and the checks all ask here, so
that all of them get the same answer. Nobody else makes a `View` or calls a scheme.

The answer comes with its messages. Every row has a holder, which computes it from rows that it
holds or is sent. So each entry of a mixing between two holders is a message, and every message is
billed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf
from typing import NamedTuple, TypedDict, Unpack

import numpy as np

from sdfeel.core import outages
from sdfeel.core.arrays import Ints, ints
from sdfeel.core.cost import Bill, Cost
from sdfeel.core.errors import InputError
from sdfeel.core.masked_sums import PAIR, clients_in_sums, without_small_sums
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network
from sdfeel.core.outages import NetworkState, Outages
from sdfeel.core.partial_mixing import in_steps, restricted, selected
from sdfeel.core.repeated_rounds import same_end, same_start, sent_as
from sdfeel.core.scheme import (
    Estimates,
    Lane,
    Local,
    Memory,
    Mix,
    Scheme,
    Setting,
    View,
    Work,
    innermost,
    repeats,
)
from sdfeel.core.staleness import Clocks, Unheard
from sdfeel.core.stragglers import WAITING, RoundPlan, StragglerPolicy, without_uploads


class Decided(NamedTuple):
    """A round as it will be carried out, and its price."""

    work: Work
    done: Ints  # (C,) steps that reach a server
    mix: Mix
    bill: Bill
    clients: int  # that take part
    state: NetworkState  # which parts of the network are up while it lasts


class Begun(NamedTuple):
    """A round in progress. How it ends may still change with the clocks; the rest is settled."""

    work: Work
    steps: Ints  # (R,) of each of `work.down.rows`
    mix: Mix  # its end if no other lane ended first, or an earlier end with the same messages
    bill: Bill
    clients: int
    state: NetworkState
    length: float  # local iterations that it counts for
    asked: Mix | None = None  # the scheme's own answer, to compare the next with; None: not kept

    @classmethod
    def of(cls, decided: Decided, net: Network) -> "Begun":
        """The decided round, with steps only of the clients that take part."""
        work, done, mix, bill, clients, state = decided
        steps, counts_for = ints(done[work.down.rows]), length(net, work, done)
        return cls(work, steps, mix, bill, clients, state, counts_for)

    def done(self, clients: int) -> Ints:
        """(C,) steps that reach a server."""
        done = np.zeros(clients, dtype=np.int64)
        done[self.work.down.rows] = self.steps
        return done


class Known(TypedDict):
    """What a lane knows when its round begins, besides the clocks."""

    began: int  # rounds that all lanes had finished
    seconds: float
    memory: Memory
    measured: Estimates | None


@dataclass(frozen=True, eq=False)
class Decisions:
    """A scheme on a network, at given prices and under given circumstances."""

    scheme: Scheme
    net: Network  # as the scheme uses it
    cost: Cost
    lanes: tuple[Lane, ...]
    seed: int = 0
    local: Local = field(default_factory=Local)
    late: StragglerPolicy = WAITING
    outages: Outages | None = None  # None: all links and servers are always up
    epochs: tuple[tuple[int, "Decisions"], ...] = ()  # by first round, where the network changes
    cloud: int | None = None  # the server that plays the cloud; None: the cloud stands apart
    hubs: bool = False  # does a server that averages for all collect their models (as deployed)?
    least: int = 0  # clients that a sum under masks needs; 0: no masks, servers see every message
    _lengths: dict[int, float] = field(default_factory=dict, init=False)  # by lane
    # By lane, its last round whose messages were priced when it ended: others may end like it.
    _priced: dict[int, Begun] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        scheme: Scheme,
        net: Network,
        cost: Cost,
        seed: int = 0,
        local: Local | None = None,
        late: StragglerPolicy | None = None,
        outages: Outages | None = None,
    ) -> "Decisions":
        """Decisions for a network that the scheme has not yet adapted."""
        own = scheme.adapt(net)
        lanes = scheme.lanes(Setting(own, cost.step_seconds, cost.link_times))
        return cls(scheme, own, cost, lanes, seed, local or Local(), late or WAITING, outages)

    def priced(self, cost: Cost) -> "Decisions":
        """The same at other prices."""
        scheme, setting = self.scheme, Setting(self.net, cost.step_seconds, cost.link_times)
        return replace(self, cost=cost, lanes=scheme.lanes(setting))

    def view(
        self,
        number: int,
        k: int = 0,
        clocks: Clocks | None = None,
        *,
        began: int = 0,
        seconds: float = 0.0,
        memory: Memory | None = None,
        measured: Estimates | None = None,
        net: Network | None = None,
        cost: Cost | None = None,
        cloud: bool = True,
    ) -> View:
        """What the scheme may know in round `k` of its lane `number`."""
        prices, steady = self.cost if cost is None else cost, self.local.schedule is None
        return self._usual.changed(
            net=self.net if net is None else net,
            lane=self.lanes[number],
            k=k,
            clocks=self._usual.clocks if clocks is None else clocks,
            lane_number=number,
            began=began,
            seconds=seconds,
            memory={} if memory is None else memory,
            measured=measured,
            step_seconds=prices.step_seconds,
            link_times=prices.link_times,
            local=self.local if steady else self.local.at(k, self._length(number)),
            cloud=cloud,
        )

    @cached_property
    def _usual(self) -> View:
        """What is the same in the views of all lanes and rounds."""
        patience = inf if self.late.seconds is None else self.late.seconds
        seconds, clocks = self.cost.step_seconds, Clocks.fresh(len(self.net.servers))
        return View(self.net, (), 0, clocks, seconds, self.seed, patience=patience)

    @cached_property
    def whole(self) -> NetworkState:
        """The network while everything is up."""
        return NetworkState(self.net)

    def _length(self, number: int) -> float:
        """Iterations of this lane's first round, which schedules take for the length of all."""
        if number not in self._lengths:
            steady = replace(self, local=replace(self.local, schedule=None))
            view = steady.view(number)
            work = steady.work(view)
            self._lengths[number] = length(self.net, work, self.cost.done(work))
        return self._lengths[number]

    def at(self, k: int) -> "Decisions":
        """The decisions in force in round `k`: those of its epoch."""
        if not self.epochs:
            return self
        begun = [decisions for begins, decisions in self.epochs if begins <= k]
        return begun[-1] if begun else self

    def first_views(self) -> Iterator[View]:
        """What each lane sees when its first round begins."""
        return map(self.view, range(len(self.lanes)))

    def work(self, view: View, like: Work | None = None) -> Work:
        """How the round starts, its messages counted; `like` itself if it is the same."""
        asked = self.scheme.work(view)
        if self.least:
            asked = without_small_sums(view.net, asked, self.least)
        if like is not None and view.local.factor == 1 and same_start(asked, like):
            return like
        away = asked.down.rows[view.net.home[asked.down.rows] < 0]
        if len(away):
            name = type(innermost(self.scheme)).__name__
            raise InputError(
                f"{name} gives work to client {away[0]}, which reaches no server in this round: "
                f"choose among view.net.clients"
            )
        if view.local.factor != 1:
            usual = np.ones(len(asked.down.rows)) if asked.rates is None else asked.rates
            asked = replace(asked, rates=usual * view.local.factor)
        copies, broadcasts = _copies(view.net, asked), asked.broadcasts
        if broadcasts is None:  # a server's broadcast reaches all its clients at once
            broadcasts = int((view.net.holder(asked.taken) >= 0).sum())
        return asked.counted(copies, broadcasts)

    def mix(self, view: View, done: Ints) -> Mix:
        """How the round ends when clients took `done` steps, with the messages that it takes."""
        return self._billed(view.net, self._mixed(view, done, self.scheme.mix(view, done)))

    def _mixed(self, view: View, done: Ints, asked: Mix) -> Mix:
        """The scheme's answer for the servers that are in; in steps where one plays the cloud."""
        mix = _by_members(view.net, asked)
        if self.least:  # some clients were not asked, whatever the scheme says
            mix = replace(mix, up=restricted(mix.up, done > 0))
        planned = mix.stages
        if not any([stage.relay is not None for stage in planned]):
            return mix
        places = self.cloud, self.hubs
        stages = tuple(step for stage in planned for step in in_steps(stage, view.net, *places))
        return replace(mix, across=stages)

    def plan(self, view: View, cost: Cost | None = None) -> RoundPlan:
        """The whole round, including what is done about late clients."""
        prices = self.cost if cost is None else cost
        plan = self.late.settle(view, prices, self.work(view), lambda done: self.mix(view, done))
        return self._without_broken_sums(view, plan) if self.least and plan.lost else plan

    def _without_broken_sums(self, view: View, plan: RoundPlan) -> RoundPlan:
        """The same plan without the sums for which too many clients were late."""
        came = clients_in_sums(view.net, plan.work.down.rows, plan.done > 0)
        done = np.where(came, plan.done, 0)
        in_vain = int((plan.done > 0).sum() - came.sum())
        if not in_vain:
            return plan
        mix = self.mix(view, done) if came.any() else without_uploads(self.mix(view, done))
        return RoundPlan(plan.work, done, plan.spent, mix, plan.lost + in_vain)

    @property
    def with_masked_sums(self) -> "Decisions":
        """The same where servers see only sums under masks, none smaller than in first rounds."""
        return replace(self, least=max(PAIR, smallest_sum(replace(self, least=0))))

    def state(self, number: int, seconds: float) -> NetworkState:
        """What is up for a round that begins when `number` rounds of all lanes are over."""
        if self.outages is None:
            return self.whole
        # Where servers do not wait for one another, a client may still train for its own server
        # when that is away already: it cannot begin another round elsewhere.
        return self.outages.at(self.net, number, seconds, moving=len(self.lanes) == 1)

    def round(
        self,
        number: int,
        k: int,
        clocks: Clocks | None = None,
        *,
        began: int = 0,
        seconds: float = 0.0,
        memory: Memory | None = None,
        measured: Estimates | None = None,
    ) -> Decided:
        """Round `k` of lane `number`, begun at `seconds`, after `began` rounds of all lanes."""
        lane, memory = self.lanes[number], {} if memory is None else memory
        cost, state = self.cost.at(lane, k, seconds), self.state(began, seconds)
        away = not state.there[list(lane)].any()
        net = self.net if away else state.net
        if self.outages is not None and self.outages.moves and len(net.linked) > 1:
            cost = cost.in_cells(net.home)
        known: Known = {
            "began": began,
            "seconds": seconds,
            "memory": memory,
            "measured": measured,
        }
        view = self.view(number, k, clocks, **known, net=net, cost=cost, cloud=state.cloud)
        work, done, spent, mix, lost = self.plan(view, cost)
        if self.least and self.outages is not None and not away and not len(work.down.rows):
            away = True  # too few are there for any sum
            view = self.view(number, k, clocks, **known, net=self.net, cost=cost)
            work, done, spent, mix, lost = self.plan(view, cost)
        if away:
            work, mix, bill = outages.idle(cost, work, mix, spent, memory)
            return Decided(work, np.zeros_like(done), mix, bill, 0, state)
        if self.outages is not None:
            left = (state.across(stage) for stage in mix.stages)
            mix = self._billed(net, replace(mix, across=tuple(filter(None, left)) or None))
        bill = cost.bill(work, mix, spent)
        return Decided(work, done, mix, bill, len(work.down.rows) - lost, state)

    @property
    def _undisturbed(self) -> bool:
        """Is everything always up, and does every round wait for everybody?"""
        return self.outages is None and self.late.seconds is None

    @cached_property
    def _asks_only_at_end(self) -> bool:
        """May `begun` leave it to `ended` how the round ends? (One lane never calls `ended`.)"""
        return len(self.lanes) > 1 and repeats(self.scheme)

    def begun(
        self,
        before: Begun | None,
        number: int,
        k: int,
        clocks: Clocks,
        **known: Unpack[Known],
    ) -> Begun:
        """The round that begins now; its price is that of `before`, the lane's last round, if they
        are alike. How much each model counts is settled only when the round has `ended`."""
        cost = self.cost.at(self.lanes[number], k, known["seconds"])
        if before is not None and self._undisturbed and cost is self.cost and cost.as_before(k):
            view = self.view(number, k, clocks, **known)
            if self.work(view, before.work) is before.work:
                return before if self._asks_only_at_end else self._as_before(view, cost, before)
        return Begun.of(self.round(number, k, clocks, **known), self.net)

    def ended(
        self,
        begun: Begun,
        number: int,
        k: int,
        clocks: Clocks,
        **known: Unpack[Known],
    ) -> Begun:
        """The round that began, as it ends by the clocks of now: they may weight models
        differently, but who works, for how long and at what price stays as it was."""
        if not self._undisturbed:
            return Begun.of(self.round(number, k, clocks, **known), self.net)
        cost = self.cost.at(self.lanes[number], k, known["seconds"])
        return self._as_before(self.view(number, k, clocks, **known, cost=cost), cost, begun)

    def _as_before(self, view: View, cost: Cost, before: Begun) -> Begun:
        """A round with the same work as `before`; with the same messages, it has the same price."""
        work, steps, _, _, clients, state, counts_for, _ = before
        done = before.done(len(self.net.samples))
        asked = self.scheme.mix(view, done)
        if before.asked is not None and same_end(asked, before.asked):
            return before
        mix = self._mixed(view, done, asked)
        for like in (before, self._priced.get(view.lane_number)):
            if like is not None and like.steps is steps:  # the work is the same, and so are prices
                same = sent_as(mix, like.mix)
                if same is not None:
                    return Begun(work, steps, same, like.bill, clients, state, counts_for, asked)
        mix = self._billed(view.net, mix)
        bill = cost.bill(work, mix, done)
        ended = Begun(work, steps, mix, bill, clients, state, counts_for, asked)
        if cost is self.cost:
            self._priced[view.lane_number] = ended
        return ended

    def check_deadline(self) -> None:
        """Refuse a deadline that nobody can meet."""
        self.late.check((self._waiting_for_all(view) for view in self.first_views()), self.cost)

    def expected_rounds(self, iterations: int) -> int:
        """Rounds of all lanes until `iterations` are done, if all are like the first ones."""
        return sum(ceil(iterations / each) for each in self.first_lengths)

    @cached_property
    def first_lengths(self) -> list[float]:
        """The iterations of each lane's first round, at least 1."""
        works = [self.work(view) for view in self.first_views()]
        return [max(length(self.net, work, self.cost.done(work)), 1) for work in works]

    def _billed(self, net: Network, mix: Mix) -> Mix:
        """The same with its messages listed, since numbers of shelves' rows hide their holders."""
        if not net.shelves:
            return mix
        stages = tuple(_exchanged(net, stage) for stage in mix.stages)
        return replace(mix, up=_uploaded(net, mix.up), across=stages or None)

    def _waiting_for_all(self, view: View) -> RoundPlan:
        """The round if it waits for everyone."""
        work = self.work(view)
        done = self.cost.done(work)
        return RoundPlan(work, done, done, self.mix(view, done))


def uses_hearsay(decisions: Decisions) -> bool:
    """Do servers need to know what each of them has heard of the others (`Clocks.heard`)?"""
    view = decisions.view(0, clocks=Clocks.fresh(len(decisions.net.servers), hearsay=False))
    try:
        decisions.mix(view, decisions.cost.done(decisions.work(view)))
    except Unheard:
        return True
    return False


def _by_members(net: Network, mix: Mix) -> Mix:
    """The same without the rows of servers that are out."""
    if not net.out or not mix.stages:
        return mix
    stages = [selected(each, ~np.isin(net.holder(each.rows), net.out)) for each in mix.stages]
    return replace(mix, across=tuple(each for each in stages if len(each.rows)) or None)


def _copies(net: Network, work: Work) -> int:
    """Models that go down if every client is sent its own: one from each server whose model is part
    of its start, and each row of a server's shelf that its shift needs."""
    holders = net.holder(work.down.sources)
    if len(holders) == len(work.down.rows):  # one for each
        count = int((holders >= 0).sum())
    else:
        clients = np.repeat(np.arange(len(work.down.rows)), np.diff(work.down.starts))
        count = len(_distinct(clients[holders >= 0], holders[holders >= 0]))
    if work.shift is not None:
        along = net.holder(work.shift.sources) >= 0
        count += int((along & (work.shift.sources < 0)).sum())
    return count


def _uploaded(net: Network, up: Mixing) -> Mixing:
    """A client sends its model to a server once, however many of its rows it goes into."""
    to = net.holder(np.repeat(up.rows, np.diff(up.starts)))
    crosses = (up.sources >= 0) & (to >= 0)
    return replace(up, sent=_distinct(up.sources[crosses], to[crosses]))


def _exchanged(net: Network, stage: Mixing) -> Mixing:
    """A row that a server needs and does not hold is one message, whatever it is needed for.

    What clients need costs no message: it comes with the next broadcast, or came with the last.
    """
    if stage.relay is not None:
        return stage
    to, of = net.holder(np.repeat(stage.rows, np.diff(stage.starts))), net.holder(stage.sources)
    crosses = (to != of) & (to >= 0)
    return replace(stage, sent=_distinct(stage.sources[crosses], to[crosses]))


def _distinct(rows: Ints, to: Ints) -> Ints:
    """(M, 2) messages (row, to whom)."""
    found = np.stack([rows, to], axis=1)
    if len(found) < 2:
        return ints(found)
    found = found[np.lexsort((to, rows))]
    return ints(found[np.append(True, (found[1:] != found[:-1]).any(axis=1))])


def smallest_sum(decisions: Decisions) -> int:
    """Clients in the smallest sum that a server makes, in each lane's first round."""
    found = []
    for view in decisions.first_views():
        done = decisions.cost.done(decisions.work(view))
        up = decisions.mix(view, done).up
        counts = [int((sources >= 0).sum()) for _, sources, _ in up]
        found += [count for count in counts if count]
    return min(found, default=1)


def mean_iterations(total: float, servers: int) -> int:
    """The mean of the servers' local iterations, rounded down, by which any run ends.

    Where servers do not wait for one another, fast ones do more than slow ones.
    """
    return int(total / servers)


def length(net: Network, work: Work, done: Ints) -> float:
    """Local iterations that a round counts for.

    If the scheme draws each client's steps, these are its time slots; otherwise they are the steps
    of the clients that took part, weighted by their data, and exact where all took the same number.
    """
    if work.each is not None:
        return float(work.steps)
    if len(work.down.rows) == 1:
        return float(done[work.down.rows[0]])
    who = done.nonzero()[0]
    if not who.size or done[who].min() == done[who].max():
        return float(done.max())
    weights = net.samples[who]
    return float((done[who] * weights).sum() / weights.sum())
