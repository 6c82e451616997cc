"""Which experiments can be deployed, and why the others cannot."""

from sdfeel.core.errors import InputError
from sdfeel.core.scheme_needs import Needs
from sdfeel.experiment.build import Prepared

REASONS = {  # why servers that share nothing cannot do it, by what a scheme needs
    "global_clock": (
        "how old models are is counted by every round of every server, which no server knows: set "
        "scheme.staleness=hearsay"
    ),
    "shared_lanes": (
        "some of its servers wait for one another and others do not, or several of its lanes share "
        "one of several servers"
    ),
    "kept_out_of_step": (
        "it keeps models in addition to the servers' own, or mixes in stages, and its servers do "
        "not wait for one another, so that no moment is the same for all of these"
    ),
    "client_rows": (
        "what its clients keep is also read by others, or by clients of several servers, and only "
        "a client's own server knows when it counts"
    ),
    "measures": (
        "it measures how every client's gradient differs from the mean of all, and how far apart "
        "all servers' models are: clients would have to send their gradients along with their "
        "models, to every server"
    ),
    "remembers": "what a server does depends on what the clients of other servers did before",
    "several_starts": (
        "updates of clients that start from several servers are known to none of them"
    ),
}


def check_deployable(ready: Prepared) -> None:
    """InputError, in one sentence, if the experiment needs what no real server can know."""
    reason = undeployable(ready)
    if reason is not None:
        name = ready.experiment.scheme.name
        raise InputError(f"{name} cannot be deployed: {reason}; simulate it with `sdfeel run`")


def undeployable(ready: Prepared) -> str | None:
    """Why a deployment of this experiment would not be the same; None if it would."""
    modelled = only_modelled(ready)
    if modelled is not None:
        return modelled
    needs, packing = Needs.of(ready.decisions), ready.packing
    if packing is not None and packing.across is not None and len(ready.decisions.lanes) > 1:
        return (
            "servers that do not wait for one another would miss compressed messages: set "
            "compression.backhaul=none"
        )
    if packing is not None and packing.up and needs.blended_starts:
        return (
            "updates of clients that start from several servers' models can be added to none of "
            "these: set compression.uplink=none and privacy.protects=nothing"
        )
    if ready.attack is not None and ready.attack.colludes:
        return (
            f"attack.kind={ready.attack.kind} is made of what a cluster's honest clients send, and "
            f"no client sees that: choose sign-flip, scaling, label-flip or backdoor"
        )
    if ready.personal is not None and needs.blended_starts:
        return (
            "what stays with clients of several servers counts only when all of these used a "
            "result, which none of them knows: set personal.method=none"
        )
    return next((REASONS[name] for name in REASONS if getattr(needs, name)), None)


def only_modelled(ready: Prepared) -> str | None:
    """What the experiment wants modelled, but real networks do, or do not do, on their own."""
    if ready.decisions.late.policy not in ("wait", "drop"):
        return (
            f"latency.late={ready.decisions.late.policy} depends on the chances and bandwidths of "
            f"modelled channels: set latency.late=drop, which a deployment does by the real clock"
        )
    if ready.decisions.outages is not None:
        return (
            "links and servers that come and go are modelled: leave out network.changes, "
            "network.link_chance and network.server_up_seconds"
        )
    if ready.experiment.training.engine == "batched":
        return (
            "training.engine=batched trains several clients at once, but each real client trains "
            "alone: set training.engine=auto"
        )
    if ready.experiment.training.average:
        return "no server sees every round's mean of all models: set training.average=0"
    if ready.cost.channel is not None:
        return (
            "changing channels are modelled: set radio.fading=off and radio.rates=equal, and leave "
            "out radio.trace"
        )
    return None
