"""Writes everything that the nodes of a deployment need, into one directory for each."""

import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sdfeel.core.errors import RunError
from sdfeel.core.network import Network
from sdfeel.core.run_files import (
    ALLOW,
    EPOCHS,
    EXPERIMENT,
    NETWORK,
    NODES,
    TRUST,
    replacing,
    write_atomic,
)
from sdfeel.core.stragglers import StragglerPolicy
from sdfeel.deploy.deployable import check_deployable
from sdfeel.deploy.device import build_devices
from sdfeel.deploy.files import NodeFile, PolicySection, network_text, write_node
from sdfeel.deploy.membership import AUTHORITY, write_schedule
from sdfeel.experiment.build import Prepared
from sdfeel.experiment.schema import Experiment
from sdfeel.live.edge.policy import check_policy
from sdfeel.live.failover import refuges_of
from sdfeel.live.trust.identity import create_authority, issue

ANY_PORT = "127.0.0.1:0"
PORTS = range(20_000, 32_000)  # below the ports that systems hand out to any program


@dataclass(frozen=True)
class EdgeAddress:
    """Where an edge server listens, and how others reach it."""

    listen: str
    address: str
    hosts: tuple[str, ...]  # the names and addresses in its certificate
    health: str = ANY_PORT  # host:port of its page for probes and metrics


def make(
    ready: Prepared,
    directory: Path,
    addresses: Mapping[int, EdgeAddress],
    policy: PolicySection | None = None,
    with_data: bool = True,
    devices: Mapping[int, str] | None = None,  # kinds of devices without torch, by client
    client_pages: int | None = None,  # the port of the first client's page for probes
) -> Network:
    """Write certificates, node files and (for a trial on one machine) each client's data.

    Returns the network as the scheme uses it. Files that exist already must be of the same
    experiment.
    """
    net = ready.decisions.net
    check_deployable(ready)
    policy = by_the_real_clock(ready.decisions.late, policy)
    if policy is not None:
        packing = ready.packing
        compressed = packing is not None and packing.across is not None
        check_policy(policy.policy(), ready.decisions, compressed)
    built = build_devices(ready, devices or {})
    libraries = {client: each.bundle.library for client, each in built.items()}
    shared = {
        EXPERIMENT: deployed(ready).text().encode(),
        NETWORK: network_text(ready, libraries).encode(),
    }
    for name, content in shared.items():
        path = directory / name
        if path.exists() and path.read_bytes() != content:
            raise RunError(f"{directory} was made for another experiment: choose another directory")
        write_atomic(path, content)
    authority = directory / AUTHORITY
    if not (authority / ALLOW).exists():
        create_authority(authority)
    peers = {f"edge-{d}": each.address for d, each in addresses.items()}
    for d in net.servers:
        node = NodeFile(
            listen=addresses[d].listen,
            health=addresses[d].health,
            peers={name: address for name, address in peers.items() if name != f"edge-{d}"},
            policy=policy or PolicySection(),
        )
        _node(directory, "edge", d, node, addresses[d].hosts)
    moving = policy is not None and policy.dead_edge == "drop"
    lazily = ready.data.train.reads_anew  # each node reads its data by the experiment's own code
    where = "." if lazily else "data.npz"
    for client, reach in enumerate(net.reach):
        ways = [*reach, *(refuges_of(net, client) if moving and reach else [])]
        own = {f"edge-{d}": addresses[d].address for d in ways}
        page = ANY_PORT if client_pages is None else f"127.0.0.1:{client_pages + client}"
        _node(directory, "client", client, NodeFile(peers=own, data=where, health=page), ())
        if with_data and not lazily:
            _write_data(directory / NODES / f"client-{client}" / "data.npz", ready, client)
        if client in built:
            built[client].write(directory)
    _node(directory, "operator", 0, NodeFile(peers=peers), ())
    (directory / EPOCHS).mkdir(exist_ok=True)
    write_schedule(ready.experiment, directory)
    # The nodes' copy of the list, away from the authority's key.
    write_atomic(directory / TRUST / ALLOW, (authority / ALLOW).read_bytes())
    return net


def deployed(ready: Prepared) -> Experiment:
    """The experiment as nodes read it: with an engine that every client can use."""
    if ready.experiment.training.engine != "ray":
        return ready.experiment
    engine = "native" if ready.engine.bits.startswith("native") else "loop"
    training = ready.experiment.training.model_copy(update={"engine": engine})
    return ready.experiment.model_copy(update={"training": training})


def by_the_real_clock(late: StragglerPolicy, policy: PolicySection | None) -> PolicySection | None:
    """The policy, with the experiment's deadline for late clients, unless it has its own."""
    if late.policy != "drop" or (policy is not None and policy.dead_client == "drop"):
        return policy
    own = {"dead_client": "drop", "client_deadline": late.seconds}
    return (policy or PolicySection()).model_copy(update=own)


def _node(directory: Path, role: str, number: int, node: NodeFile, hosts: tuple[str, ...]) -> None:
    home = directory / NODES / f"{role}-{number}"
    if not (home / "identity").exists():
        issue(directory / AUTHORITY, f"{role}/{number}", hosts, home / "identity")
    write_node(home, role, node)


def _write_data(path: Path, ready: Prepared, client: int) -> None:
    """The client's part of the experiment's data, as its own file."""
    if path.exists():
        return
    rows = torch.from_numpy(np.array(ready.data.parts[client]))
    train = ready.data.train
    with replacing(path, private=True) as file:
        np.savez(file, x=train.x[rows].numpy(), y=train.y[rows].numpy())


def on_loopback(servers: int) -> dict[int, EdgeAddress]:
    """Free ports of this machine.

    They are none that the system itself hands out to programs: between now and the servers' start,
    other programs would get some of those.
    """
    sockets: list[socket.socket] = []
    try:
        for port in random.Random().sample(PORTS, len(PORTS)):
            if len(sockets) == servers:
                break
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", port))
                sockets.append(one)
            except OSError:  # it is in use
                one.close()
        ports = [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
    if len(ports) < servers:
        raise RunError(
            f"{servers} servers need a port each, but this machine has only {len(ports)} free "
            f"ports from {PORTS[0]} to {PORTS[-1]}"
        )
    return {
        d: EdgeAddress(f"127.0.0.1:{port}", f"127.0.0.1:{port}", ("127.0.0.1", "localhost"))
        for d, port in enumerate(ports)
    }
