"""The one place that asks a scheme for its decisions, and that puts together what it may know.

The simulator, the deployment, the planner, the figures, the theory and the checks all ask here, so
that all of them get the same answer. Nobody else makes a `View` or calls a scheme.

The answer comes with its messages. Every row has a holder, which computes it from rows that it
holds or is sent. So each entry of a mixing between two holders is a message, and every message is
billed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from sdfeel.core import outages
from sdfeel.core.arrays import Ints, ints
from sdfeel.core.cost import Bill, Cost
from sdfeel.core.mixing import Mixing, selected
from sdfeel.core.network import Network
from sdfeel.core.outages import NetworkState, Outages
from sdfeel.core.scheme import Estimates, Lane, Local, Memory, Mix, Scheme, Setting, View, Work
from sdfeel.core.staleness import Clocks
from sdfeel.core.stragglers import RoundPlan, StragglerPolicy


class Decided(NamedTuple):
    """A round as it will be carried out, and its price."""

    work: Work
    done: Ints  # (C,) steps that reach a server
    mix: Mix
    bill: Bill
    clients: int  # that take part
    state: NetworkState  # which parts of the network are up while it lasts


@dataclass(frozen=True, eq=False)
class Decisions:
    """A scheme on a network, at given prices and under given circumstances."""

    scheme: Scheme
    net: Network  # as the scheme uses it
    cost: Cost
    lanes: tuple[Lane, ...]
    seed: int = 0
    local: Local = field(default_factory=Local)
    late: StragglerPolicy = field(default_factory=StragglerPolicy)
    outages: Outages | None = None  # None: all links and servers are always up
    epochs: tuple[tuple[int, "Decisions"], ...] = ()  # by first round, where the network changes
    whole: NetworkState = field(init=False)  # everything is up

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", NetworkState(self.net))

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
        return cls(
            scheme, own, cost, lanes, seed, local or Local(), late or StragglerPolicy(), outages
        )

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
    ) -> View:
        """What the scheme may know in round `k` of its lane `number`."""
        prices = self.cost if cost is None else cost
        return View(
            net=self.net if net is None else net,
            lane=self.lanes[number],
            k=k,
            clocks=Clocks.fresh(len(self.net.servers)) if clocks is None else clocks,
            step_seconds=prices.step_seconds,
            seed=self.seed,
            lane_number=number,
            began=began,
            seconds=seconds,
            link_times=prices.link_times,
            local=self.local,
            memory={} if memory is None else memory,
            measured=measured,
            patience=inf if self.late.seconds is None else self.late.seconds,
        )

    def at(self, k: int) -> "Decisions":
        """The decisions in force in round `k`: those of its epoch."""
        begun = [decisions for begins, decisions in self.epochs if begins <= k]
        return begun[-1] if begun else self

    def first_views(self) -> Iterator[View]:
        """What each lane sees when its first round begins."""
        return map(self.view, range(len(self.lanes)))

    def work(self, view: View) -> Work:
        """How the round starts, and how many rows are broadcast for it."""
        asked = self.scheme.work(view)
        if asked.broadcasts is not None:
            return asked
        sources = [part.sources for part in (asked.down, asked.shift) if part is not None]
        rows = np.unique(np.concatenate(sources))
        # A server's broadcast reaches all its clients at once.
        return replace(asked, broadcasts=int((view.net.holder(rows) >= 0).sum()))

    def mix(self, view: View, done: Ints) -> Mix:
        """How the round ends when clients took `done` steps, with the messages that it takes."""
        return self._billed(view.net, _by_members(view.net, self.scheme.mix(view, done)))

    def plan(self, view: View, cost: Cost | None = None) -> RoundPlan:
        """The whole round, including what is done about late clients."""
        prices = self.cost if cost is None else cost
        return self.late.settle(view, prices, self.work(view), lambda done: self.mix(view, done))

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
        """Round `k` of lane `number`, which begins after `began` rounds of all, at `seconds`."""
        lane, memory = self.lanes[number], {} if memory is None else memory
        cost, state = self.cost.at(lane, k, seconds), self.state(began, seconds)
        away = not state.there[list(lane)].any()
        net = self.net if away else state.net
        view = self.view(
            number,
            k,
            clocks,
            began=began,
            seconds=seconds,
            memory=memory,
            measured=measured,
            net=net,
            cost=cost,
        )
        work, done, spent, mix, lost = self.plan(view, cost)
        if away:
            work, mix, bill = outages.idle(cost, work, mix, spent, memory)
            return Decided(work, np.zeros_like(done), mix, bill, 0, state)
        if self.outages is not None:
            left = (state.across(stage) for stage in mix.stages)
            mix = self._billed(net, replace(mix, across=tuple(filter(None, left)) or None))
        bill = cost.bill(work, mix, spent)
        return Decided(work, done, mix, bill, len(work.down.rows) - lost, state)

    def check_deadline(self) -> None:
        """Refuse a deadline that nobody can meet."""
        self.late.check((self._undisturbed(view) for view in self.first_views()), self.cost)

    def expected_rounds(self, iterations: int) -> int:
        """Rounds of all lanes until `iterations` are done, if rounds go on as they begin."""
        total = 0
        for view in self.first_views():
            work = self.work(view)
            total += ceil(iterations / max(length(self.net, work, self.cost.done(work)), 1))
        return total

    def _billed(self, net: Network, mix: Mix) -> Mix:
        """The same with its messages, where rows may have holders other than their numbers say."""
        if not net.shelves:
            return mix
        stages = tuple(_exchanged(net, stage) for stage in mix.stages)
        return replace(mix, up=_uploaded(net, mix.up), across=stages or None)

    def _undisturbed(self, view: View) -> RoundPlan:
        """The round if it waits for everyone."""
        work = self.work(view)
        done = self.cost.done(work)
        return RoundPlan(work, done, done, self.mix(view, done))


def _by_members(net: Network, mix: Mix) -> Mix:
    """The same without what servers that are out would do."""
    if not net.out or not mix.stages:
        return mix
    stages = [selected(each, ~np.isin(net.holder(each.rows), net.out)) for each in mix.stages]
    return replace(mix, across=tuple(each for each in stages if len(each.rows)) or None)


def _uploaded(net: Network, up: Mixing) -> Mixing:
    """A client sends its model to a server once, however many of its rows it goes into."""
    to = net.holder(np.repeat(up.rows, np.diff(up.starts)))
    crosses = (up.sources >= 0) & (to >= 0)
    return replace(up, sent=_once(up.sources[crosses], to[crosses]))


def _exchanged(net: Network, stage: Mixing) -> Mixing:
    """A row that a server needs and does not hold is a message, once, whatever it is for.

    Whatever a client needs of it comes with the next broadcast, or came with the last one.
    """
    if stage.relay is not None:
        return stage
    to, of = net.holder(np.repeat(stage.rows, np.diff(stage.starts))), net.holder(stage.sources)
    crosses = (to != of) & (to >= 0)
    return replace(stage, sent=_once(stage.sources[crosses], to[crosses]))


def _once(rows: Ints, to: Ints) -> Ints:
    """(M, 2) messages (row, to whom)."""
    return ints(np.unique(np.stack([rows, to], axis=1), axis=0))


def length(net: Network, work: Work, done: Ints) -> float:
    """Local iterations that a round counts for.

    If the scheme draws each client's steps, these are its time slots; otherwise they are the steps
    of the clients that took part, weighted by their data, and exact where all took the same number.
    """
    if work.each is not None:
        return float(work.steps)
    who = done.nonzero()[0]
    if not who.size or done[who].min() == done[who].max():
        return float(done.max())
    return float(np.average(done[who], weights=net.samples[who]))


@dataclass(frozen=True)
class Needs:
    """If none of these is true, every server can do its part with what it knows by itself."""

    shared_lanes: bool  # several rounds at a time at one of several servers
    global_clock: bool  # every round of every server must be known to all
    kept_out_of_step: bool  # rows or stages beside the models of servers that do not wait
    measures: bool  # what all clients report about their losses is needed in one place
    remembers: bool  # a server's next round depends on what others' clients did
    client_rows: bool  # rows of clients that others read, or that need more than one server
    blended_starts: bool  # clients that start from several servers' models
    several_starts: bool  # updates of such clients

    @classmethod
    def of(cls, decisions: Decisions) -> "Needs":
        """What the first rounds of the first lane ask for."""
        net, lanes = decisions.net, decisions.lanes
        view = decisions.view(0)
        work = decisions.work(view)
        done = decisions.cost.done(work)
        mix = decisions.mix(view, done)
        alone = len(net.servers) == 1
        apart = len(lanes) > 1 and not alone
        blended = _several(net, work.down)
        return cls(
            shared_lanes=apart and sorted(lanes) != [(d,) for d in net.servers],
            global_clock=apart and _watches(decisions, view, mix),
            kept_out_of_step=apart and (len(mix.stages) > 1 or bool(net.shelves)),
            measures=work.measure or decisions.work(replace(view, k=1)).measure,
            remembers=not alone and _listens(decisions, view, done, mix),
            client_rows=_read_by_others(decisions, work, mix),
            blended_starts=blended,
            several_starts=mix.payload == "update" and blended,
        )


def _several(net: Network, down: Mixing) -> bool:
    """Does some client start from rows of several holders?"""
    return any(len(set(net.holder(sources).tolist())) > 1 for _, sources, _ in down)


def _read_by_others(decisions: Decisions, work: Work, mix: Mix) -> bool:
    """Are rows that clients hold more than their own affair, between them and one server?"""
    net = decisions.net
    if all(shelf.held != "client" for shelf in net.shelves):
        return False
    if any(shelf.returned and shelf.held == "client" for shelf in net.shelves):
        return True  # whoever asks for the run's result reads them
    owners = np.repeat(mix.up.rows, np.diff(mix.up.starts))
    to, of = net.holder(owners), net.holder(np.minimum(mix.up.sources, -1))
    given = (mix.up.sources < 0) & (of < 0) & (to != of)  # from a client to somebody else
    apart = len(decisions.lanes) > 1 or any(len(reach) > 1 for reach in net.reach)
    across = any(_beyond_a_broadcast(net, mix, n) for n in range(len(mix.stages)))
    starts = bool((net.holder(work.down.sources) < 0).any()) or work.down.rule is not None
    return apart or across or starts or bool(given.any())


def _beyond_a_broadcast(net: Network, mix: Mix, n: int) -> bool:
    """Does a stage tell clients what the next model that they are sent does not?

    What it may: rows that a client makes at the very end, of its own and of its server's model.
    """
    stage = mix.stages[n]
    owners = np.repeat(stage.rows, np.diff(stage.starts))
    to, of = net.holder(owners), net.holder(stage.sources)
    home = net.home[np.where(to < 0, -1 - to, 0)]
    good = np.where(to < 0, (of == to) | (stage.sources == home), of >= 0)
    last = n + 1 == len(mix.stages) and stage.hops == 1 and stage.rule is None
    return not good.all() or (bool((to < 0).any()) and not last)


def _watches(decisions: Decisions, view: View, mix: Mix) -> bool:
    """Does the round end differently if others did more than this lane can have heard of?"""
    done = decisions.cost.done(decisions.work(view))
    clocks = view.clocks
    busy = replace(clocks, number=clocks.number + 3, led=clocks.led + _others(view, clocks))
    busy = replace(busy, touched=busy.led)
    return not _same(mix, decisions.mix(replace(view, clocks=busy), done))


def _others(view: View, clocks: Clocks) -> Ints:
    """Rounds that servers of other lanes have finished in the meantime, different for each."""
    more = np.arange(1, len(clocks.led) + 1)
    more[list(view.lane)] = 0
    return ints(more)


def _same(one: Mix, other: Mix) -> bool:
    pairs = zip((one.up, *one.stages), (other.up, *other.stages), strict=True)
    return all(
        np.array_equal(a.sources, b.sources) and np.array_equal(a.weights, b.weights)
        for a, b in pairs
    )


def _listens(decisions: Decisions, view: View, done: Ints, mix: Mix) -> bool:
    """Does a server do otherwise in the next round when others' clients did nothing in this one?"""
    if not mix.memory:
        return False
    own = view.net.home == view.lane[0]
    alone = decisions.mix(view, ints(np.where(own, done, 0)))
    both = [
        _part(decisions, replace(view, k=view.k + 1, memory=each.memory)) for each in (mix, alone)
    ]
    return both[0] != both[1]


def _part(decisions: Decisions, view: View) -> tuple[object, ...]:
    """What the lane's first server does in a round: who gets work, and what it takes."""
    me, work = view.lane[0], decisions.work(view)
    done = decisions.cost.done(work)
    mix = decisions.mix(view, done)
    clients = {i: int(done[i]) for i, sources, _ in work.down if me in view.net.holder(sources)}
    taken = [each.row(me) if me in each.rows else None for each in (mix.up, *mix.stages)]
    return clients, _rates(work, clients), taken, work.steps, work.measure


def _rates(work: Work, clients: dict[int, int]) -> list[float]:
    if work.rates is None:
        return []
    return [
        rate
        for client, rate in zip(work.down.rows.tolist(), work.rates.tolist(), strict=True)
        if client in clients
    ]
