"""Which experiments can be deployed, and why the others cannot."""

import numpy as np

from sdfeel.core.errors import InputError
from sdfeel.experiment.build import Prepared


def check_deployable(ready: Prepared) -> None:
    """InputError, in one sentence, if the experiment needs what no real server can know."""
    reason = undeployable(ready)
    if reason is not None:
        name = ready.experiment.scheme.name
        raise InputError(f"{name} cannot be deployed: {reason}; simulate it with `sdfeel run`")


def undeployable(ready: Prepared) -> str | None:
    """Why a deployment of this experiment would not be the same; None if it would."""
    scheme = ready.scheme
    net, lanes = ready.decisions.net, ready.decisions.lanes
    modelled = only_modelled(ready)
    if modelled is not None:
        return modelled
    if net.shelves:
        return "it keeps models beside the servers' own, which no server holds"
    if len(lanes) > 1 and sorted(lanes) != [(d,) for d in net.servers]:
        return "several of its lanes share a server, and a deployed server has one round at a time"
    counter = getattr(scheme, "staleness", "hearsay")
    if len(lanes) > 1 and counter != "hearsay":
        return (
            f"staleness by the '{counter}' counter needs to know every round of every server: set "
            f"scheme.staleness=hearsay"
        )
    view = ready.decisions.view(0)
    work = ready.decisions.work(view)
    mix = ready.decisions.mix(view, ready.cost.done(work))
    if len(mix.stages) > 1:
        return "its servers mix in several stages, and deployed ones exchange models in one"
    if work.measure:
        return "it measures the losses of all clients together in one place"
    if mix.memory and len(net.servers) > 1:
        return "it remembers from round to round what all servers did"
    several = np.diff(work.down.starts).max() > 1
    if mix.payload == "update" and several:
        return "updates of clients that start from several servers are known to none of them"
    return None


def only_modelled(ready: Prepared) -> str | None:
    """What the experiment asks of the simulator that real networks do, or not, by themselves."""
    if ready.packing is not None:
        return (
            "compressed messages exist only in the simulator so far: set compression.uplink=none "
            "and compression.backhaul=none"
        )
    if ready.decisions.late.policy != "wait":
        return (
            "who is late is decided by the virtual clock: set latency.late=wait, and dead_client "
            "under [policy] of the edge servers' node files"
        )
    if ready.decisions.outages is not None:
        return (
            "links and servers that come and go are modelled: leave out network.changes, "
            "network.link_chance and network.server_up_seconds"
        )
    if ready.cost.channel is not None:
        return "changing channels are modelled: set radio.fading=off, and leave out radio.trace"
    return None
