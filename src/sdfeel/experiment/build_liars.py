"""From an experiment to the clients and servers that lie, and to the rules against them."""

import numpy as np

from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.network import Network
from sdfeel.core.rules import Rule
from sdfeel.engine.attacks import Attack, drawn_liars
from sdfeel.experiment.key_rules import Case
from sdfeel.experiment.schema import Experiment
from sdfeel.schemes import tolerance
from sdfeel.schemes.robust_rules import (
    CLUSTER_RULE,
    SERVER_RULE,
    Expected,
    rule_named,
    with_nearest,
)
from sdfeel.schemes.sampling import Sampling

KINDS_FOR_SERVERS = ("sign-flip", "scaling")


def with_liars(experiment: Experiment, net: Network) -> Experiment:
    """The same experiment with liars drawn by name, where it only says how many there are."""
    asked = experiment.attack
    if asked.kind == "none" or asked.who or not asked.clients + asked.servers:
        return experiment
    together = asked.placement == "together"
    who = drawn_liars(
        asked.clients, asked.servers, net.home, together, experiment.seed, net.present.tolist()
    )
    return experiment.model_copy(update={"attack": asked.model_copy(update={"who": list(who)})})


def attack_of(experiment: Experiment) -> Attack | None:
    """Who lies and how, once the liars have names; None if nobody lies."""
    asked = experiment.attack
    return Attack.of(asked.kind, asked.strength, asked.who, asked.target)


def build_attack(experiment: Experiment, net: Network) -> Attack | None:
    """Who lies and how in this network; InputError where the attack does not fit."""
    attack = attack_of(experiment)
    if attack is None:
        return None
    clients, servers = set(net.clients.tolist()), set(net.present)
    for role, named, there in (
        ("client", attack.clients, clients),
        ("edge", attack.servers, servers),
    ):
        if strangers := sorted(named - there):
            raise InputError(
                f"attack.who names {role}-{strangers[0]}, which is not in the network: it has "
                f"{len(clients)} clients and {len(servers)} edge servers, counted from 0"
            )
    if attack.servers and attack.kind not in KINDS_FOR_SERVERS:
        raise InputError(
            f"attack.kind = {attack.kind} is a client's lie, but attack.servers makes edge servers "
            f"lie: choose {' or '.join(KINDS_FOR_SERVERS)}, or set attack.servers to 0"
        )
    personal = experiment.personal.method
    if attack.kind == "backdoor" and personal != "none":
        raise InputError(
            f"attack.kind = backdoor is measured on one model that all share, but personal.method "
            f"is {personal}: set one of them to none"
        )
    return attack


def check_attack(experiment: Experiment, attack: Attack, decisions: Decisions) -> None:
    """Refuse lying edge servers that would have nobody to lie to."""
    if not attack.servers:
        return
    codec = experiment.compression.backhaul
    reason = None
    if len(decisions.net.servers) == 1:
        reason = "leaves only one, which exchanges models with nobody: set attack.servers to 0"
    elif not {"server-server", "server-cloud"} & set(tolerance(decisions.scheme).links):
        reason = "has servers that never exchange models: set attack.servers to 0"
    elif len(decisions.lanes) > 1:
        reason = (
            "lets servers exchange models without waiting for one another, so that a round has no "
            "model of its own to lie about: choose a synchronous scheme"
        )
    if reason is not None:
        label = experiment.scheme.label
        raise InputError(f"attack.servers makes edge servers lie, but {label} {reason}")
    if codec != "none":
        raise InputError(
            f"attack.servers makes edge servers lie about whole models, but compression.backhaul "
            f"= {codec} sends differences between models: set attack.servers to 0, or "
            f"compression.backhaul to none"
        )


def rule_notes(case: Case) -> tuple[str, ...]:
    """A sentence if a rule has nothing to compare, because every server draws only one client."""
    asked, own = Sampling(**vars(case.experiment.sampling)), case.own
    most = max(asked.among(int(size)) for size in np.bincount(own.home[own.clients]))
    if asked.everybody or most > 1:
        return ()
    return (f"robust.cluster has no effect where every server draws one client ({asked.key})",)


def build_rules(experiment: Experiment) -> tuple[Rule | None, Rule | None]:
    """The rules by which servers combine what clients send them, and what other servers do."""
    asked = experiment.robust
    expected = Expected(asked.liars, asked.server_liars, asked.radius, asked.steps)
    cluster = rule_named(CLUSTER_RULE, asked.cluster, expected)
    if asked.before != "none":
        cluster = with_nearest(cluster, asked.liars)
    return cluster, rule_named(SERVER_RULE, asked.servers, expected)
