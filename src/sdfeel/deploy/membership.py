"""Signed versions of a deployment's network: clients join, leave and move while it runs.

In a simulation, a trace tells where clients are. Servers on different hosts have no common clock,
only common rounds, so a trace can be deployed if it counts rounds: its moves are written as epochs,
which give the same run to the bit. Any other trace is refused, with the reason.
"""

import json
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.membership import Epoch, schedule
from sdfeel.core.network import Network
from sdfeel.core.run_files import EPOCHS, EXPERIMENT, NETWORK, NODE, NODES, write_atomic
from sdfeel.core.whereabouts import Whereabouts
from sdfeel.deploy.addresses import host_and_port, known_as, listening, written
from sdfeel.deploy.files import NodeFile, digest_of, parse_network, read_node, write_node
from sdfeel.experiment.build import Prepared, build_scheme, prepare
from sdfeel.experiment.build_network import build_mixing, check_changeable, on_another, with_peers
from sdfeel.experiment.build_training import local_step
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.live.epochs import SignedNetwork, signed
from sdfeel.live.trust.identity import issue

AUTHORITY, OPERATOR = "authority", "operator-0"


def change(
    directory: Path, begins: int, words: Sequence[str], addresses: Sequence[str] = ()
) -> SignedNetwork:
    """Sign the next version of the network, in force from round `begins` (from 0) on.

    A node with a new number gets a certificate and a node file. `addresses` tells where new edge
    servers are, such as `edge-3=host:7400`.
    """
    given, epoch = dict(map(_address, addresses)), Epoch.parse(begins, words)
    experiment = load(directory / EXPERIMENT)
    net, _, _, _ = parse_network(_newest(directory))
    epoch.applied(net)  # raises InputError if it is impossible
    _check_counts(epoch, net)
    made = _signed(experiment, directory, epoch, given)
    _write_new(directory, made)
    return made


def _write_new(directory: Path, made: SignedNetwork) -> None:
    addresses = {f"edge-{d}": address for d, address in made.addresses.items()}
    for name, address in addresses.items():
        home = directory / NODES / name
        if home.exists():
            continue
        host, port = host_and_port(address)
        assert port is not None  # `_address` has looked
        issue(directory / AUTHORITY, name.replace("-", "/"), (host,), home / "identity")
        others = {each: where for each, where in addresses.items() if each != name}
        first = read_node(directory / NODES / "edge-0" / NODE)
        node = NodeFile(listen=listening(host, port), peers=others, policy=first.policy)
        write_node(home, "edge", node)
    operator = directory / NODES / OPERATOR
    if read_node(operator / NODE).peers != addresses:
        write_node(operator, "operator", NodeFile(peers=addresses))
    for client, servers in enumerate(made.members):
        home = directory / NODES / f"client-{client}"
        if servers and not home.exists():
            issue(directory / AUTHORITY, f"client/{client}", (), home / "identity")
            own = {f"edge-{d}": addresses[f"edge-{d}"] for d in servers}
            write_node(home, "client", NodeFile(peers=own, data="data.npz"))


def write_schedule(experiment: Experiment, directory: Path) -> None:
    """Sign the experiment's own epochs as versions, unless that has been done already."""
    if any((directory / EPOCHS).glob("*.json")):
        return
    for epoch in schedule(experiment.network.epochs):
        if epoch.begins:  # otherwise it is the first network
            _signed(experiment, directory, epoch)


def versions(directory: Path) -> list[SignedNetwork]:
    """The versions signed so far, in order. The operator's own files are trusted."""
    paths = sorted((directory / EPOCHS).glob("*.json"))
    return [SignedNetwork.read(path.read_bytes(), None) for path in paths]


def _newest(directory: Path) -> str:
    """The network of the last version, as text."""
    before = versions(directory)
    return before[-1].network if before else (directory / NETWORK).read_text(encoding="utf-8")


def _check_counts(epoch: Epoch, net: Network) -> None:
    """Refuse a new client without a number of examples: its servers would refuse it."""
    told = {client for client, _ in epoch.counts}
    for client, server in epoch.moves:
        # A client number that was skipped so far stands in the network with one example.
        known = client < len(net.reach) and (net.reach[client] or net.samples[client] > 1)
        if server is not None and client not in told and not known:
            raise InputError(
                f"client-{client} is new: say how many examples it has, such as client-{client}=120"
            )


def _signed(
    experiment: Experiment, directory: Path, epoch: Epoch, more: Mapping[str, str] | None = None
) -> SignedNetwork:
    check_changeable(experiment)
    before, text = versions(directory), _newest(directory)
    if before and epoch.begins <= before[-1].begins:
        raise InputError(
            f"the previous version begins with round {before[-1].begins + 1}: choose a later round"
        )
    last = experiment.training.iterations
    if epoch.begins >= last:  # nothing could be changed after it
        raise InputError(
            f"round {epoch.begins + 1} never comes: a run of {last:,} iterations has at most as "
            f"many rounds; choose an earlier one"
        )
    digest = digest_of(directory / EXPERIMENT, directory / NETWORK)
    net, cost, _, _ = parse_network(text)
    net = with_peers(experiment, net)
    changed = build_mixing(experiment, epoch.applied(net))
    scheme, _ = build_scheme(experiment)
    now = Decisions.of(scheme, net, cost, experiment.seed, local_step(experiment))
    _, then, _, _ = parse_network(_text(text, changed))
    # Do not sign a version that the servers could not adopt.
    adapted = on_another(now, net, changed, then).net
    number = before[-1].number + 1 if before else 1
    peers = {**read_node(directory / NODES / OPERATOR / NODE).peers, **(more or {})}
    for d in adapted.present.tolist():
        if f"edge-{d}" not in peers:
            raise InputError(
                f"edge-{d} is new, and its address is unknown: add --address edge-{d}=host:port"
            )
    _check_addresses(peers, more or {}, adapted)
    body = signed(
        directory / AUTHORITY,
        number=number,
        begins=epoch.begins,
        federation=digest,
        after=before[-1].digest if before else digest,
        network=_text(text, changed),
        members=[list(servers) for servers in adapted.reach],
        addresses={name.removeprefix("edge-"): address for name, address in peers.items()},
    )
    write_atomic(directory / EPOCHS / f"{number:04d}.json", body)
    return SignedNetwork.read(body, None)


def _address(word: str) -> tuple[str, str]:
    """A server's name and address from `edge-3=host:7400`; the port is required."""
    name, _, text = word.partition("=")
    host, port = host_and_port(text) if text else ("", None)
    if port is None:
        raise InputError(
            f"'{word}' does not say where a server is: write edge-3=host:port, or "
            f"edge-3=[address]:port for IPv6"
        )
    return name, written(host, port)


def _check_addresses(peers: Mapping[str, str], more: Mapping[str, str], net: Network) -> None:
    """Refuse addresses of servers that do not exist, and the same address for two servers."""
    there = {f"edge-{d}" for d in net.present.tolist()}
    owners: dict[tuple[str, int | None], str] = {}
    for name in sorted(peers.keys() & there):
        host, port = host_and_port(peers[name])
        other = owners.setdefault((known_as(host), port), name)
        if other != name:
            raise InputError(f"{other} and {name} cannot both be at {peers[name]}: give another")
    for name in more.keys() - there:
        raise InputError(f"--address names {name}, which is not in the network from then on")


def _text(before: str, net: Network) -> str:
    """The network file with another network; new clients are as fast as the average client."""
    values: dict[str, Any] = json.loads(before)
    values |= {
        "samples": net.samples.tolist(),
        "reach": [list(servers) for servers in net.reach],
        "links": net.links.tolist(),
        "mixing": net.mixing.tolist(),
        "out": list(net.out),
    }
    for key in ("step_seconds", "radio", "snr"):
        known = values["cost"][key]
        if known is not None:
            known += [sum(known) / len(known)] * (len(net.samples) - len(known))
    return json.dumps(values, indent=1) + "\n"


MOST = 1000  # versions of a network: each is signed, sent and kept


def replayed(ready: Prepared) -> Prepared:
    """The same experiment with its trace of moves, if it has one, written as epochs."""
    trace = None if ready.decisions.outages is None else ready.decisions.outages.clients
    if trace is None:
        return ready
    experiment = ready.experiment
    section, name = experiment.network, str(experiment.network.whereabouts)
    if trace.unit != "round":
        raise InputError(
            f"{name} says in seconds where clients are, but deployed servers have no common clock: "
            f"give the file a column `round` in place of `seconds`, or leave out "
            f"network.whereabouts and let `sdfeel deploy change` move real clients"
        )
    lines = _epochs(trace, ready.net, ready.rounds, name)
    if lines and ready.decisions.net.shelves:
        raise InputError(
            f"{name} would be deployed as epochs, and what is kept besides the servers' models "
            f"({ready.decisions.net.shelves[0].name}) would start afresh with each epoch: "
            f"leave out server.optimizer, or network.whereabouts"
        )
    if section.epochs:
        raise InputError(
            f"network.epochs and {name} both say which server a client has: leave one of them out"
        )
    moved = {"whereabouts": None, "whereabouts_period": None, "epochs": lines}
    again = experiment.model_copy(update={"network": section.model_copy(update=moved)})
    return _prepared(again, name)


def _prepared(experiment: Experiment, name: str) -> Prepared:
    try:
        return prepare(experiment)
    except InputError as error:
        raise InputError(f"{name} would be deployed as epochs, but {error}") from None


def _epochs(trace: Whereabouts, net: Network, rounds: int, name: str) -> list[str]:
    """The moves of a trace, in the form of `network.epochs`."""
    events = sorted({ceil(when) for when in trace.when if ceil(when) < rounds})
    found, before = [], net.home
    for k in range(rounds) if trace.period else events:
        now = trace.at(net, k, 0.0)
        _check(net, now, k, name)
        moved = np.flatnonzero(now.home != before).tolist()
        if moved:
            words = ", ".join(f"client-{n}=edge-{now.home[n]}" for n in moved)
            found.append(f"{k + 1}: {words}")
        before = now.home
    if len(found) > MOST:
        raise InputError(
            f"{name} moves clients in {len(found)} rounds, but a deployment signs a version of its "
            f"network for each, and {MOST} at most: let clients move less often"
        )
    return found


def _check(net: Network, now: Network, k: int, name: str) -> None:
    """Refuse moves that only a simulation can make."""
    away = np.flatnonzero((net.home >= 0) & (now.home < 0))
    if len(away):
        raise InputError(
            f"{name} lets client {away[0]} be away in round {k + 1}, but deployed clients are away "
            f'when they are silent: leave absences out, and set dead_client = "drop" in the policy'
        )
    empty = np.flatnonzero((net.mass > 0) & (now.mass == 0))
    if len(empty):
        raise InputError(
            f"{name} leaves edge-{empty[0]} without clients in round {k + 1}, and deployed servers "
            f"do not rest: leave a client there"
        )
