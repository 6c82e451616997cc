"""A mixing among those who are there, and one that a server computes for all."""

from dataclasses import replace

import numpy as np

from sdfeel.core.arrays import Bools, Ints, floats, ints
from sdfeel.core.mixing import Mixing, Relay, of_rows
from sdfeel.core.network import Network

NOBODY = np.zeros(0, dtype=np.int64)


def nothing(like: Mixing) -> Mixing:
    """A mixing in which nobody takes part."""
    return Mixing(NOBODY, ints([0]), NOBODY, floats([]), like.via)


def restricted(
    mixing: Mixing, sources: Bools, rows: Bools | None = None, whole: bool = True
) -> Mixing:
    """The same mixing among those present; each row keeps its total.

    `sources` (and `rows`, by default all) say who is present, by number; shelves always are. A row
    that loses all its sources is left out, so its destination keeps what it has. Without `whole`,
    those present count no more than they did.

    >>> from sdfeel.core.mixing import of_rows
    >>> restricted(of_rows({0: {0: 0.5, 1: 0.25, 2: 0.25}, 1: {2: 1.0}}),
    ...            np.array([True, True, False])).dense(3).round(3)
    array([[0.667, 0.333, 0.   ]])
    """
    owners = np.repeat(np.arange(len(mixing.rows)), np.diff(mixing.starts))
    there = _present(mixing.sources, sources)
    if rows is not None:
        there &= _present(mixing.rows, rows)[owners]
    if there.all():
        return mixing
    count = len(mixing.rows)
    before = np.bincount(owners, mixing.weights, minlength=count)
    after = np.bincount(owners[there], mixing.weights[there], minlength=count)
    left = np.bincount(owners[there], minlength=count)
    kept = left > 0
    scale = np.divide(before, after, out=np.ones(count), where=(after != 0) & whole)
    relay = mixing.relay
    if relay is not None:
        left_over = kept.sum() / count
        busy = None if relay.busy is None else relay.busy * left_over
        relay = replace(relay, crossings=round(relay.crossings * left_over), busy=busy)
    return replace(
        mixing,
        rows=mixing.rows[kept],
        starts=ints(np.concatenate([[0], np.cumsum(left[kept])])),
        sources=mixing.sources[there],
        weights=floats((mixing.weights * scale[owners])[there]),
        relay=relay,
        votes=None if mixing.votes is None else floats((mixing.votes * scale[owners])[there]),
        sent=None,
    )


def selected(mixing: Mixing, rows: Bools) -> Mixing:
    """These rows of a mixing, unchanged.

    >>> selected(of_rows({0: {0: 0.5, 1: 0.5}, 1: {1: 1.0}}), np.array([False, True])).dense(2)
    array([[0., 1.]])
    """
    counts = np.diff(mixing.starts)
    inside = np.repeat(rows, counts)
    return replace(
        mixing,
        rows=mixing.rows[rows],
        starts=ints(np.concatenate([[0], np.cumsum(counts[rows])])),
        sources=mixing.sources[inside],
        weights=floats(mixing.weights[inside]),
        votes=None if mixing.votes is None else mixing.votes[inside],
        sent=None,
    )


def _present(numbers: Ints, there: Bools) -> Bools:
    """Which of these are present; shelves always are."""
    return (numbers < 0) | there[np.maximum(numbers, 0)]


def in_steps(stage: Mixing, net: Network, cloud: int | None, hubs: bool) -> tuple[Mixing, ...]:
    """The stage as it is, or, if one place computes it for all, up to that place and down again.

    Where there is no cloud of its own, one of the servers plays it: the others send it their
    models, and it sends back the mean. The outcome has the same bits; what differs is who sends
    what to whom. All the time is charged on the way up, as if the cloud stood apart.
    """
    place = _gathered_at(stage, net, cloud, hubs)
    if place is None or stage.relay is None:
        return (stage,)
    others = [d for d in stage.rows.tolist() if d != place]
    up = len(others) if stage.via == "server-cloud" else stage.relay.crossings // 2
    there = replace(stage.relay, crossings=up)
    back = Relay(legs=0, crossings=up, busy=0.0)
    down = of_rows({d: {place: 1.0} for d in others}, stage.via)
    return (
        replace(selected(stage, stage.rows == place), relay=there),
        replace(down, relay=back),
    )


def _gathered_at(stage: Mixing, net: Network, cloud: int | None, hubs: bool) -> int | None:
    """The server that computes a mean for all; None if this is not such a mean."""
    if stage.relay is None or stage.rule is not None or stage.hops != 1 or len(stage.rows) < 2:
        return None
    if (cloud is None) if stage.via == "server-cloud" else not hubs:
        return None
    alike = len(set(np.diff(stage.starts).tolist())) == 1
    rows = [(s.tolist(), w.tolist()) for _, s, w in stage] if alike else []
    if not alike or any(row != rows[0] for row in rows):
        return None
    if stage.via == "server-cloud":
        known = cloud if cloud in net.present else int(net.present.min())
        there_and_back = stage.relay.crossings == 2 * len(stage.rows)
        return known if known in stage.rows and there_and_back else None
    return stage.relay.at
