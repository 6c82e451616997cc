"""Which experiments can be deployed, and why the others cannot."""

from sdfeel.core.errors import InputError
from sdfeel.core.scheme_needs import Needs
from sdfeel.experiment.build import Prepared

REASONS = {  # why servers that share nothing cannot run a scheme, by what it needs
    "global_clock": (
        "it counts the age of a model in the rounds of all servers, which no server knows: set "
        "scheme.staleness=hearsay"
    ),
    "shared_lanes": (
        "some of its servers wait for one another and others do not, or several of its lanes share "
        "one of several servers"
    ),
    "kept_out_of_step": (
        "it keeps other models besides the servers' own, or mixes in stages, but its servers do "
        "not wait for one another, so there is no moment at which all of these belong together"
    ),
    "client_rows": (
        "its clients' rows are also read by other nodes, or belong to clients of several servers, "
        "but only a client's own server knows from when on they count"
    ),
    "measures": (
        "it measures how every client's gradient differs from the mean of all, and how far apart "
        "all servers' models are: clients would have to send their gradients with their models, to "
        "every server"
    ),
    "remembers": "what a server does depends on what the clients of other servers did before",
    "several_starts": (
        "if a client starts from several servers' models, none of these servers can tell its update"
    ),
}


def check_deployable(ready: Prepared) -> None:
    """Raise InputError if the experiment needs what no real server can know."""
    reason = undeployable(ready)
    if reason is not None:
        name = ready.experiment.scheme.name
        raise InputError(f"{name} cannot be deployed: {reason}; simulate it with `sdfeel run`")


def undeployable(ready: Prepared) -> str | None:
    """Why a deployment would not be the same run as the simulation; None if it would."""
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
            "the update of a client that starts from several servers' models cannot be added to "
            "any one of them: set compression.uplink=none and privacy.protects=nothing"
        )
    if ready.attack is not None and ready.attack.colludes:
        return (
            f"attack.kind={ready.attack.kind} uses what a cluster's honest clients send, which no "
            f"client sees: choose sign-flip, scaling, label-flip or backdoor"
        )
    if ready.personal is not None and needs.blended_starts:
        return (
            "the personal part of a client of several servers counts only once all of them have "
            "used its result, which none of them knows: set personal.method=none"
        )
    return next((REASONS[name] for name in REASONS if getattr(needs, name)), None)


def only_modelled(ready: Prepared) -> str | None:
    """Why a deployment is impossible, if the experiment models what real networks do themselves."""
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
