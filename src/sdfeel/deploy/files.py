"""The files of a deployment: those that all nodes share, and each node's own.

    experiment.toml      the experiment with every choice filled in       the same for all nodes
    network.json         who holds how many examples, who reaches whom    the same for all nodes
    nodes/edge-0/        node.toml, identity/ (certificates), later status.json and state/
    nodes/client-0/      the same, and its own data

A node accepts only nodes with the same two shared files, byte for byte.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from sdfeel.core.cost import Cost, Overheads, Power
from sdfeel.core.errors import InputError, RunError, unknown
from sdfeel.core.network import Network
from sdfeel.core.run_files import (
    NEAR_ALLOW,
    NEAR_EXPERIMENT,
    NEAR_NETWORK,
    NODE,
    read_toml,
    write_atomic,
)
from sdfeel.core.sparse import Sparse
from sdfeel.experiment import toml
from sdfeel.experiment.build import Prepared
from sdfeel.experiment.loading import rule_of
from sdfeel.experiment.sections import Section
from sdfeel.live.edge.policy import Policy
from sdfeel.live.trust.names import addresses

LINKS = "server_rates", "cloud_rates"  # rates of single links, if these differ
Seconds = Annotated[float, Field(gt=0)]


class PolicySection(Section):
    """What an edge server does when others are slow, away or wrong."""

    dead_client: Literal["wait", "drop"] = "wait"
    """wait for a silent client, or drop it at the deadline and reweight the others"""
    client_deadline: Seconds = 60.0
    """seconds into a round until a silent client is dropped"""
    dead_edge: Literal["wait", "drop"] = "wait"
    """wait for a silent server, or continue without it"""
    edge_deadline: Seconds = 60.0
    """seconds until a silent server is dropped"""
    pace: Literal["experiment", "measured"] = "experiment"
    """steps before a deadline: by the experiment's devices, or by the client's real speed"""
    max_norm: Seconds | None = None
    """reject a client's model whose norm is larger"""
    max_server_norm: Seconds | None = None
    """reject another server's model whose norm is larger"""
    max_change: Seconds = 1000.0
    """reject a model that is further from the one it started from, or is to be mixed with, than
    this many times the initial model's norm (at least that of a model of ones)"""
    quarantine: Annotated[int, Field(ge=1)] = 20
    """rounds for which a node is left out that sent what no honest node sends; doubled each time"""
    keep_measured: Annotated[int, Field(ge=1)] = 40
    """models that are kept for a late operator"""
    keep_records: Annotated[int, Field(ge=1)] = 10_000
    """records of synchronous rounds that are kept for a late operator"""
    keep_models: Annotated[int, Field(ge=0)] = 0
    """synchronous rounds whose models are kept, so that `sdfeel deploy verify` can recompute parts
    of them without all clients' data"""

    def policy(self) -> Policy:
        return Policy(**self.model_dump())


class NodeFile(Section):
    """One node's own settings; its certificate tells which node it is."""

    experiment: str = NEAR_EXPERIMENT
    """the experiment, the same for all"""
    network: str = NEAR_NETWORK
    """the network, the same for all"""
    identity: str = "identity"
    """directory with key.pem, cert.pem and ca.pem"""
    allow: str = NEAR_ALLOW
    """edge servers: the list of certificates that may call"""
    listen: str = "0.0.0.0:7400"
    """edge servers: host:port to listen on"""
    health: str | None = "127.0.0.1:0"
    """host:port for /healthz and /metrics (port 0: any free one)"""
    data: str | None = None
    """clients: an .npz file with x and y, a directory with the experiment's data set, or
    `package.module:factory`"""
    trainer: str | None = None
    """clients: `package.module:factory` of a Flower NumPyClient that trains instead"""
    peers: dict[str, str] = Field(default_factory=dict)
    """addresses of the edge servers: edge-0 = "host:port" """
    policy: PolicySection = PolicySection()


def read_policy(words: Sequence[str]) -> PolicySection:
    """Edge servers' policy from words such as `dead_edge=drop`."""
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InputError(
                f"'{word}' is not a policy setting: write key=value, such as dead_edge=drop"
            )
        values[key.strip()] = value.strip()
    try:
        return PolicySection.model_validate(values, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise unknown("policy", key, list(PolicySection.model_fields)) from None
        raise InputError(f"{key} must be {rule_of(first)}, got '{first['input']}'") from None


def read_node(path: Path) -> NodeFile:
    """A node file with all its paths made absolute."""
    values = read_toml(path, "the node file")
    try:
        node = NodeFile.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{path}: {_mistake(error)}") from None
    base = path.parent.resolve()
    located = {
        key: str(base / getattr(node, key))
        for key in ("experiment", "network", "identity", "allow")
    }
    if node.data is not None and ":" not in node.data:
        located["data"] = str(base / node.data)
    return node.model_copy(update=located)


def _mistake(error: ValidationError) -> str:
    """The first mistake, as a sentence."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        policies = [f"policy.{key}" for key in PolicySection.model_fields]
        return str(unknown("key", where, [*NodeFile.model_fields, *policies]))
    return f"{where} must be {rule_of(first)}, got {first['input']!r}"


def write_node(directory: Path, role: str, node: NodeFile) -> None:
    """Write a node file with the keys that concern its role."""
    foreign = {
        "edge": {"data", "trainer"},
        "client": {"allow", "listen", "policy"},
        "operator": {"allow", "listen", "policy", "data", "trainer", "health"},
    }
    values = node.model_dump(exclude_none=True, exclude=foreign[role])
    write_atomic(directory / NODE, toml.document(values).encode())


def peers_of(node: NodeFile) -> dict[int, str]:
    """Addresses by server number."""
    return addresses(node.peers)


def network_text(ready: Prepared, libraries: Mapping[int, str] | None = None) -> str:
    """Everything about the network that a node cannot compute from the experiment alone."""
    net, cost = ready.net, ready.cost
    values = {
        "samples": net.samples.tolist(),
        "reach": [list(servers) for servers in net.reach],
        "links": net.links.tolist(),
        "mixing": net.mixing.tolist(),
        "shape": list(ready.data.shape),
        "classes": ready.data.outputs,
        "cost": {
            "step_seconds": cost.step_seconds.tolist(),
            "model_bits": cost.model_bits,
            "rates": dict(cost.rates),
            "downlink": cost.downlink,
            **({"calls": True} if cost.calls else {}),
            **({"holds": True} if cost.holds else {}),
            "cell_edge_rate": cost.cell_edge_rate,
            "power": asdict(cost.power),
            "radio": None if cost.client_rates is None else cost.client_rates.tolist(),
            "snr": None if cost.snr is None else cost.snr.tolist(),
            **({"packed": dict(cost.packed)} if cost.packed else {}),
            **{key: each.tolist() for key in LINKS if (each := getattr(cost, key)) is not None},
            **({"overheads": overheads} if (overheads := cost.overheads.record()) else {}),
        },
    }
    if net.out:  # servers that join later
        values["out"] = list(net.out)
    if libraries:  # of devices: hashes by client
        values["libraries"] = {str(client): each for client, each in libraries.items()}
    return json.dumps(values, indent=1) + "\n"


def read_libraries(path: Path) -> dict[int, str]:
    """The hashes of devices' libraries by client, from a file that `read_network` has checked."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return {int(client): str(each) for client, each in values.get("libraries", {}).items()}


def read_network(path: Path) -> tuple[Network, Cost, tuple[int, ...], int]:
    """The network before the scheme adapts it, the costs, an input's shape, the classes."""
    try:
        return parse_network(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None


def parse_network(
    text: str, name: str = "the signed network"
) -> tuple[Network, Cost, tuple[int, ...], int]:
    """The same from the content of a network file."""
    try:
        values: dict[str, Any] = json.loads(text)
        reach = tuple(tuple(servers) for servers in values["reach"])
        net = Network(
            np.array(values["samples"]),
            reach,
            Sparse.of(values["links"]),
            Sparse.of(values["mixing"]),
            out=tuple(int(d) for d in values.get("out", ())),
        )
        return net, _cost(values["cost"]), tuple(values["shape"]), values["classes"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise RunError(f"{name} is not a network file: copy it from where it was made") from None


def _cost(values: dict[str, Any]) -> Cost:
    radio, snr = (
        None if values[key] is None else np.array(values[key]) for key in ("radio", "snr")
    )
    across, up = (None if key not in values else np.array(values[key]) for key in LINKS)
    return Cost(
        step_seconds=np.array(values["step_seconds"]),
        model_bits=values["model_bits"],
        rates=values["rates"],
        downlink=values["downlink"],
        calls=values.get("calls", False),
        holds=values.get("holds", False),
        cell_edge_rate=values["cell_edge_rate"],
        power=Power(**values["power"]),
        packed=values.get("packed", {}),
        client_rates=radio,
        snr=snr,
        server_rates=across,
        cloud_rates=up,
        overheads=Overheads.of(values.get("overheads", {})),
    )


def digest_of(experiment: Path, network: Path) -> str:
    """A hash of both shared files: two nodes with the same one run the same experiment."""
    found = hashlib.sha256()
    for path in (experiment, network):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror}") from None
        found.update(hashlib.sha256(content).digest())
    return found.hexdigest()
