"""What a scheme needs from its executor, found out by asking it."""

from dataclasses import dataclass, replace

import numpy as np

from sdfeel.core.arrays import Ints, ints
from sdfeel.core.decide import Decisions
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network
from sdfeel.core.scheme import Mix, View, Work
from sdfeel.core.staleness import Clocks


@dataclass(frozen=True)
class Needs:
    """If none of these is true, every server can do its part with what it knows itself."""

    shared_lanes: bool  # several rounds at a time at one of several servers
    global_clock: bool  # every round of every server must be known to all
    kept_out_of_step: bool  # rows or stages in addition to the models, of servers that do not wait
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
        blended = _starts_from_several(net, work.down)
        return cls(
            shared_lanes=apart and sorted(lanes) != [(d,) for d in net.servers],
            global_clock=apart and _needs_global_clock(decisions, view, mix),
            kept_out_of_step=apart and (len(mix.stages) > 1 or bool(net.shelves)),
            measures=work.measure or decisions.work(replace(view, k=1)).measure,
            remembers=not alone and _remembers_others(decisions, view, done, mix),
            client_rows=_read_by_others(decisions, work, mix),
            blended_starts=blended,
            several_starts=mix.payload == "update" and blended,
        )


def _starts_from_several(net: Network, down: Mixing) -> bool:
    """Does some client start from rows of several holders?"""
    return any(len(set(net.holder(sources).tolist())) > 1 for _, sources, _ in down)


def _read_by_others(decisions: Decisions, work: Work, mix: Mix) -> bool:
    """Do rows that clients hold concern anyone but the client and one server?"""
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

    It may end with rows that a client makes itself, from its own and its server's model.
    """
    stage = mix.stages[n]
    owners = np.repeat(stage.rows, np.diff(stage.starts))
    to, of = net.holder(owners), net.holder(stage.sources)
    home = net.home[np.where(to < 0, -1 - to, 0)]
    good = np.where(to < 0, (of == to) | (stage.sources == home), of >= 0)
    last = n + 1 == len(mix.stages) and stage.hops == 1 and stage.rule is None
    return not good.all() or (bool((to < 0).any()) and not last)


def _needs_global_clock(decisions: Decisions, view: View, mix: Mix) -> bool:
    """Does the round end differently if others did more than this lane can have heard of?"""
    done = decisions.cost.done(decisions.work(view))
    clocks = view.clocks
    more = _progress_of_others(view, clocks)
    number = clocks.number + 3 + int(more.sum())  # at least theirs: no model is from the future
    busy = replace(clocks, number=number, led=clocks.led + more)
    busy = replace(busy, touched=busy.led)
    return not _same_mix(mix, decisions.mix(replace(view, clocks=busy), done))


def _progress_of_others(view: View, clocks: Clocks) -> Ints:
    """Rounds that servers of other lanes have finished in the meantime, different for each."""
    more = np.arange(1, len(clocks.led) + 1)
    more[list(view.lane)] = 0
    return ints(more)


def _same_mix(one: Mix, other: Mix) -> bool:
    pairs = zip((one.up, *one.stages), (other.up, *other.stages), strict=True)
    return all(
        np.array_equal(a.sources, b.sources) and np.array_equal(a.weights, b.weights)
        for a, b in pairs
    )


def _remembers_others(decisions: Decisions, view: View, done: Ints, mix: Mix) -> bool:
    """Does a server act differently in the next round if others' clients did nothing now?"""
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
