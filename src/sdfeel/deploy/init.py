"""Files for a deployment on given hosts: nodes, certificates, units, compose file, manifests."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np

from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.network import Network
from sdfeel.deploy.addresses import TOP, host_and_port, known_as, listening, written
from sdfeel.deploy.device import read_devices
from sdfeel.deploy.files import PolicySection
from sdfeel.deploy.membership import replayed
from sdfeel.deploy.node_directories import EdgeAddress, make
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.build_network import build_mixing
from sdfeel.experiment.schema import Experiment
from sdfeel.run.store import create

PORT = 7400
PAGES = 100  # the port of an edge server's page for probes is this much above its own
CLIENT_PAGES = 8500  # the port of the first client's page


def init(
    experiment: Experiment,
    directory: Path,
    hosts: Sequence[str] = (),
    samples: Sequence[int] | None = None,
    with_data: bool = False,
    policy: PolicySection | None = None,
    devices: Sequence[str] = (),
) -> Network:
    """Write a deployment's files.

    Edge servers take turns on `hosts`; without any, each host has its server's name, such as
    edge-0. `devices` names the clients without torch, in the form of `deploy.device.read_devices`.
    """
    ready = replayed(prepare(experiment))
    if ready.attack is not None:
        raise InputError(
            f"attack.kind = {ready.attack.kind} is for trials, but these files are for a "
            f"real federation: leave it out, or try it with `sdfeel deploy chaos`"
        )
    if samples is not None:
        ready = with_samples(ready, samples)
    servers = len(ready.decisions.net.servers)
    kinds = read_devices(devices, len(ready.net.samples))
    where = edge_addresses(servers, hosts)
    create(directory)
    net = make(ready, directory, where, policy, with_data, kinds, CLIENT_PAGES)
    _write_monitoring(directory, where)
    for name in ("sdfeel-edge@.service", "sdfeel-client@.service"):
        _write(directory / "systemd" / name, template(name))
    for name in ("Dockerfile", "kubernetes-setup.sh"):
        _write(directory / name, template(name))
    (directory / "kubernetes-setup.sh").chmod(0o755)
    _write(directory / ".dockerignore", template("dockerignore"))  # keys do not belong in an image
    nets = [net, *(later.net for _, later in ready.decisions.epochs)]
    working = sorted({int(n) for each in nets for n in each.clients})
    nodes = [("edge", f"edge-{d}") for d in net.servers]
    nodes += [("client", f"client-{n}") for n in working]
    each = Template(template("compose-node.yaml"))
    services = "".join(each.substitute(role=role, name=name) for role, name in nodes)
    _write(directory / "compose.yaml", f"services:\n{services}")
    _write_chart(directory, nodes)
    return net


def _write_monitoring(directory: Path, where: Mapping[int, EdgeAddress]) -> None:
    """What Prometheus and Grafana need."""
    for name in ("prometheus-rules.yaml", "grafana-dashboard.json"):
        _write(directory / "monitoring" / name, template(name))
    pages = [
        f"{each.address.rpartition(':')[0]}:{each.health.rpartition(':')[2]}"
        for each in where.values()
    ]
    targets = ", ".join(f'"{page}"' for page in pages)
    _write(
        directory / "monitoring" / "prometheus.yaml",
        "# Nodes serve their pages on loopback only: `health` in a node.toml says where.\n"
        "rule_files: [prometheus-rules.yaml]\nscrape_configs:\n  - job_name: sdfeel\n"
        f"    static_configs:\n      - targets: [{targets}]\n",
    )


def _write_chart(directory: Path, nodes: Sequence[tuple[str, str]]) -> None:
    """A Helm chart, and the same as plain manifests for use without Helm."""
    edges, clients = ([name for kind, name in nodes if kind == role] for role in ("edge", "client"))
    given = Template(template("helm-values.yaml")).substitute(
        port=PORT, edges=", ".join(edges), clients=", ".join(clients)
    )
    chart = "apiVersion: v2\nname: sdfeel\ndescription: A federation of sdfeel\nversion: 1.0.0\n"
    _write(directory / "helm" / "Chart.yaml", chart)
    _write(directory / "helm" / "values.yaml", given)
    pairs = (line.split(": ", 1) for line in given.splitlines())
    values = {f"{{{{ $.Values.{key} }}}}": value for key, value in pairs}
    rendered = ""
    for role, names in (("edge", edges), ("client", clients)):
        text = template(f"helm-{role}.yaml")
        _write(directory / "helm" / "templates" / f"{role}s.yaml", text)
        each = "".join(line for line in text.splitlines(keepends=True) if "{{-" not in line)
        for blank, value in values.items():
            each = each.replace(blank, value)
        rendered += "".join(each.replace("{{ . }}", name) for name in names)
    _write(directory / "kubernetes.yaml", rendered)


def with_samples(ready: Prepared, samples: Sequence[int]) -> Prepared:
    """The same experiment for clients with this many examples of their own."""
    clients = len(ready.net.samples)
    if len(samples) != clients:
        raise InputError(
            f"got {len(samples)} sample counts for {clients} clients: give one for each, in order"
        )
    net = Network(np.array(samples, dtype=float), ready.net.reach, ready.net.linked)
    own, made = ready.decisions, build_mixing(ready.experiment, net)
    decisions = Decisions.of(own.scheme, made, own.cost, own.seed, own.local, own.late, own.outages)
    return replace(ready, net=made, decisions=replace(decisions, least=own.least))


def edge_addresses(servers: int, hosts: Sequence[str]) -> dict[int, EdgeAddress]:
    """Where each edge server runs; several on one host get ports of their own.

    A port that was given is kept, and no other server on that host gets it.

    >>> [each.address for each in edge_addresses(3, ["a", "b:9000"]).values()]
    ['a:7400', 'b:9000', 'a:7401']
    >>> [each.address for each in edge_addresses(4, ["a", "a:7400", "a", "b"]).values()]
    ['a:7401', 'a:7400', 'a:7402', 'b:7400']
    >>> sixes = edge_addresses(3, ["fd00::5", "[fd00::6]:9000", "[::1]"])
    >>> [each.address for each in sixes.values()]
    ['[fd00::5]:7400', '[fd00::6]:9000', '[::1]:7400']
    """
    if len(hosts) > servers:
        raise InputError(
            f"--hosts has {len(hosts)} entries, but the number of edge servers is {servers}: "
            f"name at most one host for each"
        )
    given = [host_and_port(each) for each in hosts or [f"edge-{d}" for d in range(servers)]]
    asked = [(known_as(host), port) for host, port in given if port is not None]
    twice = next((each for n, each in enumerate(asked) if each in asked[:n]), None)
    if twice is not None:
        raise InputError(
            f"--hosts gives two edge servers the same host and port, {written(*twice)}: give each "
            f"a port of its own, or write only the host, which then gets ports from {PORT} on"
        )
    taken = set(asked)

    def free(host: str, port: int) -> int:
        """The first port from this one on that no server has."""
        while (known_as(host), port) in taken:
            port += 1
        if port >= TOP:
            raise InputError(f"no port is left for an edge server on {host}: give it a lower one")
        taken.add((known_as(host), port))
        return port

    ports = []
    for d in range(servers):
        host, port = given[d % len(given)]
        ports.append(port if port is not None and d < len(given) else free(host, port or PORT))
    found: dict[int, EdgeAddress] = {}
    for d, port in enumerate(ports):
        host, _ = given[d % len(given)]
        page = f"127.0.0.1:{free(host, port + PAGES) if port + PAGES < TOP else 0}"
        found[d] = EdgeAddress(listening(host, port), written(host, port), (host,), page)
    return found


def template(name: str) -> str:
    return resources.files("sdfeel.deploy").joinpath("templates", name).read_text("utf-8")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
