"""What a scheme needs from its executor: read off its decisions, not declared a second time."""

from dataclasses import dataclass, replace

import numpy as np

from sdfeel.core.arrays import Ints, ints
from sdfeel.core.decide import Decisions
from sdfeel.core.scheme import Mix, View
from sdfeel.core.staleness import Clocks


@dataclass(frozen=True)
class Needs:
    """If none of these is true, every server can do its part with what it knows by itself."""

    shared_lanes: bool  # several rounds run at one server at the same time
    global_clock: bool  # every round of every server must be known to all
    measures: bool  # what all clients report about their losses is needed in one place
    remembers: bool  # keeps numbers that depend on what all servers did
    client_rows: bool  # rows that clients keep from round to round
    server_rows: bool  # rows that servers keep beside their models
    stages: bool  # more than one exchange between servers at the end of a round
    several_starts: bool  # updates of clients that start from several servers' models
    side_by_side: bool  # needs every client's message by itself: sums are not enough

    @classmethod
    def of(cls, decisions: Decisions) -> "Needs":
        """What the first round of the first lane asks for."""
        net, lanes = decisions.net, decisions.lanes
        view = decisions.view(0)
        work = decisions.work(view)
        done = decisions.cost.done(work)
        mix = decisions.mix(view, done)
        alone = len(net.servers) == 1
        held = {(shelf.per, shelf.held) for shelf in net.shelves}
        several = bool((np.diff(work.down.starts) > 1).any()) and work.down.rule is None
        return cls(
            shared_lanes=len(lanes) > 1 and sorted(lanes) != [(d,) for d in net.servers],
            global_clock=len(lanes) > 1 and not alone and _watches(decisions, view, mix),
            measures=work.measure,
            remembers=bool(mix.memory) and not alone,
            client_rows=("client", "client") in held,
            server_rows=bool(held - {("client", "client")}),
            stages=len(mix.stages) > 1,
            several_starts=mix.payload == "update" and several,
            side_by_side=mix.up.rule is not None,
        )


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
