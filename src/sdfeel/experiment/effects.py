"""Which keys of an experiment have an effect, and which of them its scheme refuses.

A note before the first round names whatever is set and changes nothing. Options that a scheme may
refuse are judged by what it declares (`core.tolerance`); for the other keys, `KEYS` in key_rules.py
says what they need in order to have an effect. A key in neither place always has an effect.
"""

from collections.abc import Iterator

from sdfeel.core import tolerance
from sdfeel.core.errors import InputError
from sdfeel.core.named import is_path, recorded_name
from sdfeel.core.scheme import conditions, defaults
from sdfeel.core.tolerance import IGNORED
from sdfeel.experiment.key_rules import CLASHES, KEYS, Case
from sdfeel.schemes import SCHEMES, find


def options_set(case: Case) -> Iterator[tuple[str, str]]:
    """The options of `core.tolerance` that are set, each with the key that sets it."""
    network, latency = case.experiment.network, case.experiment.latency
    given = case.experiment.given
    changed = {len(change.who) for change in case.schedule}  # 2: a link, 1: a server, 0: the cloud
    if case.several:
        for key, option in (("graph", "graph"), ("mixing", "mixing")):
            if f"network.{key}" in given and not case.consensus:
                yield option, f"network.{key}"
        if case.net.peers is not None:
            yield "peers", f"network.mixing = {case.net.peers.name}"
        if network.link_chance < 1:
            yield "changing_links", "network.link_chance"
        if 2 in changed:
            yield "changing_links", "network.changes (links)"
    if network.server_up_seconds is not None:
        yield "changing_servers", "network.server_up_seconds"
    if 1 in changed:
        yield "changing_servers", "network.changes (servers)"
    if 0 in changed:
        yield "absent_cloud", "network.changes (the cloud)"
    if network.cloud is not None and case.several:
        yield "cloud_server", "network.cloud"
    if case.clients is not None and case.clients.moves and case.several:
        yield "moving_clients", "network.whereabouts (moves)"
    if case.clients is not None and case.clients.absences:
        yield "absent_clients", "network.whereabouts (absences)"
    for key in sorted({"sampling.clients", "sampling.share"} & given):
        yield "sampling", key
    failing = network.server_up_seconds is not None or 1 in changed
    # Clients in several cells continue with another server while their own is away, if all wait
    # for one another.
    moves = failing and "changing_servers" in case.used and not case.lanes
    if network.overlap and case.several and not moves:
        yield "overlap", "network.overlap"
    late = latency.late if isinstance(latency.late, str) else "drop"
    if late != "wait":
        late = "drop" if is_path(late) else late
        yield late.replace("-", "_"), f"latency.late = {recorded_name(latency.late)}"
    if case.experiment.personal.method != "none":
        yield "personal", f"personal.method = {case.experiment.personal.method}"
    if case.experiment.personal.method == "fedrep":
        yield "fedrep", "personal.method = fedrep"
    if case.experiment.privacy.protects != "nothing":
        yield "private", f"privacy.protects = {case.experiment.privacy.protects}"
    servers, cloud = case.links
    if servers:
        yield "server_rates", "radio.links (between servers)"
    if cloud:
        yield "cloud_rates", "radio.links (to the cloud)"
    if case.experiment.server.optimizer != "none":
        yield "server_optimizer", f"server.optimizer = {case.experiment.server.optimizer}"
    if (rule := recorded_name(case.experiment.robust.cluster)) != "none":
        yield "cluster_rule", f"robust.cluster = {rule}"
    if (rule := recorded_name(case.experiment.robust.servers)) != "none" and case.several:
        yield "server_rule", f"robust.servers = {rule}"
    for option in ("uplink", "backhaul"):
        codec = getattr(case.experiment.compression, option)
        # The gossip at the end uses an option even where the scheme itself ignores it.
        used = case.consensus and case.tolerates.verdict(option) == IGNORED
        if codec != "none" and (option == "uplink" or (case.several and not used)):
            yield option, f"compression.{option} = {codec}"


def check(case: Case) -> None:
    """InputError for what the scheme refuses, and for what cannot go together."""
    experiment, peers = case.experiment, case.net.peers
    if options := tuple(options_set(case)):
        others = {name: kind.tolerates for name, kind in SCHEMES.items()}
        tolerance.check(experiment.scheme.label, case.tolerates, options, others)
    for needs, sentence in CLASHES:
        if all(need.holds(case) for need in needs):
            raise InputError(
                sentence.format(
                    cluster=recorded_name(experiment.robust.cluster),
                    servers=recorded_name(experiment.robust.servers),
                    mixing="" if peers is None else peers.name,
                    codec=experiment.compression.backhaul,
                    method=experiment.personal.method,
                )
            )


def notes(case: Case) -> tuple[str, ...]:
    """What is set and has no effect, in sentences."""
    options = tuple(options_set(case))
    vain: dict[str, list[str]] = {"": tolerance.ignored(case.tolerates, options) if options else []}
    given = case.experiment.given
    for key in (key for key in KEYS if key in given):
        missing = next((need for need in KEYS[key] if not need.holds(case)), None)
        if missing is not None:
            vain.setdefault(missing.otherwise, []).append(key)
    if case.experiment.scheme.options:
        for key, words in _vain_options(case):
            vain.setdefault(words, []).append(key)
    told = []
    for words, keys in vain.items():
        some = ", ".join(keys)
        if keys and not words:
            told.append(f"{case.experiment.scheme.label} does not use {some}")
        elif keys:
            told.append(f"{some} {'has' if len(keys) == 1 else 'have'} no effect {words}")
    return tuple(told)


def _vain_options(case: Case) -> Iterator[tuple[str, str]]:
    """The scheme's own options that are set and have no effect, with the words for it."""
    kind = find(case.experiment.scheme.name)
    usual = defaults(kind)
    chosen = case.experiment.scheme.options
    for option, need in conditions(kind):
        section, _, key = need.key.partition(".")
        if section == "scheme":
            other = chosen.get(key, usual[key])
            counts = (None if other == "none" else other) in need.values
        elif need.key == tolerance.SERVERS:
            counts = case.several
        else:
            counts = need.key in case.experiment.given
        if not counts and chosen.get(option, usual[option]) not in (usual[option], None):
            yield f"scheme.{option}", need.otherwise
