"""Which link or device to improve first, and what that would gain.

One link or device at a time is made twice as fast, and the round is priced again: what does not lie
on the critical path gains nothing. Where many are equally slow, improving one of them gains nothing
either, so all of a kind are tried together, too.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sdfeel.core.arrays import floats
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.link_times import Link
from sdfeel.core.network import Network
from sdfeel.planning.ranking import pace
from sdfeel.planning.result import Improvement, Site

SLOWEST = 5  # clients that are tried one by one
LEAST = 0.005  # gains below this are not worth a line
SHOWN = 6


def improvements(decisions: Decisions, rounds: int, site: Site) -> tuple[Improvement, ...]:
    """What gains most, best first; the scheme repeats itself after this many rounds."""

    def seconds(cost: Cost) -> float:
        return pace(decisions.priced(cost), rounds).seconds

    usual, found = seconds(decisions.cost), []
    for trial, cost in _trials(decisions, site):
        gain = 1 - seconds(cost) / usual
        if gain >= LEAST:
            found.append(replace(trial, gain=gain))
    found.sort(key=lambda each: -each.gain)
    return tuple(found[:SHOWN])


def _trials(decisions: Decisions, site: Site) -> Iterator[tuple[Improvement, Cost]]:
    """Every change, with the prices that it leads to."""
    cost, net = decisions.cost, decisions.net
    vias = _vias(decisions)
    yield Improvement("all devices", 0.0), replace(cost, step_seconds=cost.step_seconds / 2)
    for via, words in KINDS.items():
        if via in vias:
            faster = {**cost.rates, via: 2 * cost.rates[via]}
            yield Improvement(words, 0.0), replace(cost, rates=faster)
            if cost.delay(via) or (via == "server-server" and _far(cost)):
                yield Improvement(f"the delay of {words}", 0.0), _nearer(cost, via)
    yield from _of_clients(decisions)
    if "server-server" in vias:
        yield from _of_links(cost, net, site)
    if "server-cloud" in vias:
        for d in net.present.tolist():
            rates = (
                np.ones(len(net.linked)) if cost.cloud_rates is None else cost.cloud_rates.copy()
            )
            rates[d] *= 2
            what = f"the link from {site.name(d)} to the cloud"
            yield Improvement(what, 0.0, (d,)), replace(cost, cloud_rates=floats(rates))


KINDS: dict[Link, str] = {
    "client-server": "all links from clients to servers",
    "client-cloud": "all links from clients to the cloud",
    "server-server": "all links between servers",
    "server-cloud": "all links from servers to the cloud",
}


def _far(cost: Cost) -> bool:
    return cost.overheads.server_delays is not None


def _nearer(cost: Cost, via: Link) -> Cost:
    """The same prices with half the delay on one kind of link."""
    own = cost.overheads
    delays = {**own.delays, via: cost.delay(via) / 2}
    if via == "server-server" and own.server_delays is not None:
        own = replace(own, server_delays=floats(own.server_delays / 2))
    if via == "server-cloud" and own.cloud_delays is not None:
        own = replace(own, cloud_delays=floats(own.cloud_delays / 2))
    return replace(cost, overheads=replace(own, delays=delays))


def _vias(decisions: Decisions) -> set[Link]:
    """The links that models travel on in the first rounds of all lanes."""
    found: set[Link] = set()
    for number in range(len(decisions.lanes)):
        for k in range(10):
            view = decisions.view(number, k)
            mix = decisions.mix(view, decisions.cost.done(decisions.work(view)))
            found |= {mix.up.via} | {stage.via for stage in mix.stages if stage.crossings}
    return found


def _of_clients(decisions: Decisions) -> Iterator[tuple[Improvement, Cost]]:
    """The clients that take longest, each with a faster device and with a faster link."""
    cost, net = decisions.cost, decisions.net
    view = decisions.view(0)
    work = decisions.work(view)
    done = cost.done(work)
    took = done * cost.step_seconds + cost.uploads(decisions.mix(view, done).up, work)
    for client in np.argsort(-took, kind="stable")[:SLOWEST].tolist():
        home = (int(net.home[client]),)
        steps = cost.step_seconds.copy()
        steps[client] /= 2
        yield (
            Improvement(f"the device of client {client}", 0.0, home, client),
            replace(cost, step_seconds=floats(steps)),
        )
        if cost.channel is None:
            rates = np.ones(len(steps)) if cost.client_rates is None else cost.client_rates.copy()
            rates[client] *= 2
            yield (
                Improvement(f"the link of client {client}", 0.0, home, client),
                replace(cost, client_rates=floats(rates)),
            )


def _of_links(cost: Cost, net: Network, site: Site) -> Iterator[tuple[Improvement, Cost]]:
    """Each link between servers: faster, and with half the delay."""
    usual = net.links if cost.server_rates is None else cost.server_rates
    delays = cost.overheads.server_delays
    for a, b in net.edges:
        words = f"the link between {site.name(a)} and {site.name(b)}"
        rates = usual.copy()
        rates[a, b] *= 2
        rates[b, a] *= 2
        yield Improvement(words, 0.0, (a, b)), replace(cost, server_rates=floats(rates))
        if delays is not None and delays[a, b]:
            nearer = delays.copy()
            nearer[a, b] = nearer[b, a] = delays[a, b] / 2
            own = replace(cost.overheads, server_delays=floats(nearer))
            yield Improvement(f"the delay of {words}", 0.0, (a, b)), replace(cost, overheads=own)
