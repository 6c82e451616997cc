"""From an experiment to its network: server graph, clusters, mixing weights, changes, epochs."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from sdfeel.core import graphs, membership
from sdfeel.core.arrays import Ints, floats
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError, unknown
from sdfeel.core.gossip_weights import GOSSIP_RULES, laplacian_weights, weights_of
from sdfeel.core.named import errors_naming, imported, is_path, recorded_name
from sdfeel.core.network import Network, clustered, meeting_by, square
from sdfeel.core.outages import Outages
from sdfeel.core.peers import NAMES, named
from sdfeel.core.scheme import innermost
from sdfeel.core.seeds import rng
from sdfeel.core.sparse import Sparse
from sdfeel.data.clusters import assign
from sdfeel.data.clusters import sizes as cluster_sizes
from sdfeel.data.federated import Federated
from sdfeel.data.partition import holdings
from sdfeel.experiment.key_rules import Case
from sdfeel.experiment.read_whereabouts import used_whereabouts
from sdfeel.experiment.real_networks import (
    TOPOHUB,
    ServerGraph,
    known_links,
    read_places,
    read_server_graph,
    topohub,
)
from sdfeel.experiment.schema import Experiment, NetworkSection
from sdfeel.experiment.user_files import read_matrix, text_of
from sdfeel.schemes import name_of


def build_network(experiment: Experiment, data: Federated) -> Network:
    real = server_graph(experiment)
    links, home = build_links(experiment, real), build_home(experiment, data)
    net = clustered(data.samples, home, links)
    if real is not None or experiment.network.places is not None:
        net = replace(net, places=build_places(experiment, real))
    if experiment.network.overlap and len(net.servers) > 1:
        net = overlapping(net, experiment.network.overlap)
    return build_mixing(experiment, net)


def with_epochs(
    experiment: Experiment,
    decisions: Decisions,
    net: Network,
) -> tuple[Decisions, Network]:
    """The decisions, which know those of later epochs, and the network of the first epoch."""
    check_changeable(experiment)
    epochs, first = [], net
    for epoch in membership.schedule(experiment.network.epochs):
        clients, servers = len(net.samples), len(net.linked)
        then = epoch.applied(net)
        if epoch.counts or len(then.samples) > clients or len(then.linked) > servers:
            raise InputError(
                f"network.epochs: a simulation has the {clients} clients of its data, each with "
                f"its examples, and {servers} servers; others are for deployments: raise "
                f"network.clients or network.servers, and let them join later"
            )
        then = build_mixing(experiment, then)
        found = on_another(decisions, net, then)
        net = then
        if epoch.begins == 0:
            decisions, first = found, net
        else:
            epochs.append((epoch.begins, found))
    return replace(decisions, epochs=tuple(epochs)), first


def check_changeable(experiment: Experiment) -> None:
    """InputError if the messages of an experiment cannot cope with a network that changes."""
    codecs = experiment.compression.uplink, experiment.compression.backhaul
    if codecs != ("none", "none"):
        raise InputError(
            "network.epochs needs models that are sent uncompressed: leave out "
            "compression.uplink and compression.backhaul"
        )
    if experiment.privacy.secure_aggregation:
        raise InputError(
            "privacy.secure_aggregation lets clients weight their updates themselves, by their "
            "share of a cluster's data, but network.epochs changes clusters: leave one of them out"
        )


def on_another(
    decisions: Decisions, before: Network, net: Network, cost: Cost | None = None
) -> Decisions:
    """The same scheme on the network that follows `before`; InputError if it cannot change so."""
    own, view = decisions, decisions.view(0)
    name = name_of(innermost(own.scheme))
    if len(own.lanes) > 1:
        raise InputError(f"network.epochs needs a common round, but {name} has none: leave it out")
    work = own.work(view)
    if work.measure or own.mix(view, own.cost.done(work)).memory:
        raise InputError(
            f"network.epochs: {name} remembers what clients did or measured in earlier rounds, "
            f"which would have to move with them: leave network.epochs out"
        )
    if any(shelf.returned for shelf in own.net.shelves):
        raise InputError(
            f"network.epochs: a run of {name} returns models that it keeps aside, and these begin "
            f"anew with every epoch: leave network.epochs out"
        )
    if own.outages is not None or own.late.policy != "wait":
        raise InputError(
            "network.epochs needs servers and links that are always up, and rounds that wait for "
            "all: leave out network.changes, network.link_chance, network.server_up_seconds, "
            "network.whereabouts and latency.late"
        )
    membership.heirs(before, net)  # InputError unless a server stays
    prices = (cost or own.cost).in_cells(net.home)
    found = Decisions.of(own.scheme, net, prices, own.seed, own.local, own.late)
    sizes = [(len(each.samples), len(each.linked)) for each in (own.net, found.net)]
    if own.net.shelves and sizes[0] != sizes[1]:
        raise InputError(
            f"network.epochs: {name} keeps rows for {sizes[0][0]} clients and {sizes[0][1]} "
            f"servers: reserve numbers for others when the files are made, and let them join later"
        )
    return replace(found, cloud=own.cloud, hubs=own.hubs)


def build_cloud(cloud: int, net: Network, changing: Outages | None) -> int:
    """The server that plays the cloud."""
    if cloud not in net.servers:
        raise InputError(
            f"network.cloud is {cloud}, but the servers have numbers 0 to {len(net.servers) - 1}: "
            f"choose one of them"
        )
    if changing is not None:
        raise InputError(
            "network.cloud needs a server that is always up: leave it out, or leave out "
            "network.changes, network.link_chance and network.server_up_seconds"
        )
    return cloud


def build_changing(case: Case) -> tuple[Outages | None, tuple[str, ...]]:
    """How servers, links and the cloud come and go, as far as the scheme notices (None: not at
    all), and notes about it for the user."""
    section = case.experiment.network
    backhaul = case.experiment.compression.backhaul
    if case.net.peers is not None and backhaul != "none" and {"backhaul", "mixing"} <= case.used:
        raise InputError(
            f"compression.backhaul is {backhaul}, for which servers must hear every message of "
            f"their neighbours, but network.mixing is {case.net.peers.name}, in which they meet "
            f"few of them: set compression.backhaul to none"
        )
    if (section.server_up_seconds is None) != (section.server_down_seconds is None):
        raise InputError(
            "network.server_up_seconds and network.server_down_seconds go together: set both"
        )
    kinds = "absent_cloud", "changing_servers", "changing_links"  # a change names 0, 1 or 2 servers
    changes = tuple(change for change in case.schedule if kinds[len(change.who)] in case.used)
    link_chance, up_seconds = section.link_chance, section.server_up_seconds
    if link_chance < 1 and "changing_links" not in case.used:
        link_chance = 1.0
    if up_seconds is not None and "changing_servers" not in case.used:
        up_seconds = None
    clients = None if case.clients is None else used_whereabouts(case, case.clients)
    if not changes and link_chance == 1 and up_seconds is None and clients is None:
        return None, ()
    if case.net.peers is not None and "mixing" in case.used:
        raise InputError(
            f"network.mixing is {case.net.peers.name}, which plans its exchanges ahead, but "
            f"{_what_changes(section)} lets the server graph change: name a rule that fits any "
            f"graph ({', '.join(GOSSIP_RULES)})"
        )
    rule = callable(section.mixing) or recorded_name(section.mixing) in GOSSIP_RULES
    if not rule and "mixing" in case.used:
        raise InputError(
            f"network.mixing is the matrix in {recorded_name(section.mixing)}, but the server "
            f"graph changes: name a rule that fits any graph ({', '.join(GOSSIP_RULES)})"
        )
    outages = Outages(
        changes,
        link_chance,
        up_seconds,
        section.server_down_seconds or 1.0,
        case.experiment.seed,
        central=case.tolerates.central,
        clients=clients,
    )
    return outages, _warned(outages, case)


def _what_changes(section: NetworkSection) -> str:
    """The key by which links or servers come and go."""
    if section.changes is not None:
        return "network.changes"
    if section.whereabouts is not None:
        return "network.whereabouts"
    return "network.link_chance" if section.link_chance < 1 else "network.server_up_seconds"


def _warned(outages: Outages, case: Case) -> tuple[str, ...]:
    """A warning if the schedule leaves the network cut apart at its end."""
    name = case.experiment.network.changes
    if case.tolerates.central:
        lost = outages.schedule and not outages.schedule[-1].up
        return (f"at the end of {name} the cloud is down, so nobody will train any more",) * bool(
            lost
        )
    apart = outages.cut_off(case.net)
    if len(apart) < 2:
        return ()
    groups = " and ".join(str(part) for part in apart)
    return (
        f"at the end of {name}, servers {groups} are cut off from one another, so their "
        f"models will not agree",
    )


def build_home(experiment: Experiment, data: Federated) -> Ints:
    """(C,) each client's server."""
    section = experiment.network
    draws = rng(experiment.seed, "clusters")
    given = section.assignment
    if not isinstance(given, str) or is_path(given):
        found = imported(given) if isinstance(given, str) else given
        with errors_naming("network.assignment", "each client's server"):
            found = found(section.clients, section.servers, draws) if callable(found) else found
            return np.asarray(found, dtype=np.int64)
    return assign(
        section.clients,
        section.servers,
        draws,
        assignment=section.assignment,
        gamma=section.imbalance,
        holdings=who_holds_what(data) if section.assignment == "by_label" else None,
    )


def overlapping(net: Network, count: int) -> Network:
    """The last `count` clients of every cell reach the next cell's server, too."""
    reach = list(net.reach)
    for d in net.servers:
        mine = np.flatnonzero(net.home == d)
        if count > len(mine):
            raise InputError(
                f"network.overlap is {count}, but cell {d} has only {len(mine)} clients: lower it"
            )
        for client in mine[len(mine) - count :]:
            reach[client] = (d, (d + 1) % len(net.servers))
    return replace(net, reach=tuple(reach), weights=None)


def equal_network(experiment: Experiment) -> Network:
    """The experiment's servers, with clients that have equally much data: for showing the graph."""
    section = experiment.network
    real = server_graph(experiment)
    links = build_links(experiment, real)
    sizes = cluster_sizes(section.clients, section.servers, section.imbalance)
    home = np.repeat(np.arange(section.servers), sizes)
    net = clustered(np.ones(section.clients), home, links)
    return build_mixing(experiment, replace(net, places=build_places(experiment, real)))


def who_holds_what(data: Federated) -> Ints:
    """(C, K) examples of each class at each client."""
    if not data.classes:
        return np.array([[len(part)] for part in data.parts])
    return holdings(data.train.y.numpy(), data.parts, data.classes)


def build_links(experiment: Experiment, real: ServerGraph | None) -> Sparse:
    """(D, D) which servers are linked; `real` is the graph of a file or real network, if any."""
    section = experiment.network
    draws = rng(experiment.seed, "graph")
    if real is None and (not isinstance(section.graph, str) or is_path(section.graph)):
        found = imported(section.graph) if isinstance(section.graph, str) else section.graph
        with errors_naming("network.graph", "the links between servers"):
            links = known_links(found, section.servers, draws)
        if len(links) != section.servers:
            raise InputError(
                f"network.graph joins {len(links)} servers, but network.servers is "
                f"{section.servers}: make them equal"
            )
        return square(links)
    if real is not None:
        return Sparse.of(real.links)
    return graphs.linked(section.graph, section.servers, draws, section.radius, section.probability)


def server_graph(experiment: Experiment) -> ServerGraph | None:
    """The graph of a file or of a real network, if network.graph names one."""
    section = experiment.network
    if not isinstance(section.graph, str):
        return None
    known = section.graph in (*graphs.TOPOLOGIES, *graphs.ALIASES)
    file = Path(section.graph)
    if section.graph.startswith(TOPOHUB):
        found = topohub(section.graph)
    elif not known and not is_path(section.graph) and (file.suffix or file.is_file()):
        found = read_server_graph(file)
    else:
        return None
    if found.servers != section.servers:
        raise InputError(
            f"the graph in {section.graph} joins {found.servers} servers, but network.servers is "
            f"{section.servers}: make them equal"
        )
    return found


def with_servers(experiment: Experiment) -> Experiment:
    """The same experiment with as many servers as a real network has, if nobody said how many."""
    section, graph = experiment.network, experiment.network.graph
    named = isinstance(graph, str) and graph.startswith(TOPOHUB)
    if not named or "servers" in section.model_fields_set:
        return experiment
    real = section.model_copy(update={"servers": topohub(graph).servers})
    return experiment.model_copy(update={"network": real})


def build_places(
    experiment: Experiment, real: ServerGraph | None
) -> tuple[tuple[float, float], ...] | None:
    """Longitude and latitude of each server, if they are known."""
    section = experiment.network
    if section.places is not None:
        return read_places(text_of(section.places), section.places, section.servers)
    return None if real is None else real.places


def build_mixing(experiment: Experiment, net: Network) -> Network:
    """The network in which servers weight one another as the experiment says."""
    given = experiment.network.mixing
    if isinstance(given, str) and given in GOSSIP_RULES:
        rule = GOSSIP_RULES[given]
        weights = None if rule is laplacian_weights else weights_of(rule, net.linked, net.mass)
        return net if weights is net.weights else replace(net, weights=weights)
    found = imported(given) if is_path(given) else given
    if not isinstance(found, str):
        with errors_naming("network.mixing", "a matrix of weights"):
            if callable(found):
                return replace(net, weights=weights_of(found, net.linked, net.mass))
            return replace(net, weights=floats(np.asarray(found)))  # type: ignore[arg-type]  # of any shape
    if (met := meeting_by(net, found, experiment.seed)) is not None:
        return met
    if Path(found).suffix or Path(found).is_file():
        return replace(net, weights=read_matrix(Path(found)))  # type: ignore[arg-type]  # of any shape
    raise unknown("mixing rule", found, [*GOSSIP_RULES, *NAMES, "a file .csv, .json or .npy"])


def with_peers(experiment: Experiment, net: Network) -> Network:
    """The network in which servers meet as the experiment says."""
    given = experiment.network.mixing
    return replace(net, peers=named(given, experiment.seed) if isinstance(given, str) else None)
