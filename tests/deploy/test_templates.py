"""What `deploy init` writes is complete and consistent."""

import json
import os
import re
import sys
import textwrap
import time
from pathlib import Path

import pytest

from sdfeel.core.errors import InputError, RunError
from sdfeel.core.run_files import NODE
from sdfeel.deploy.files import peers_of, read_network, read_node
from sdfeel.deploy.init import edge_addresses, init
from sdfeel.deploy.node import federation_of
from sdfeel.experiment.loading import load
from sdfeel.live.trust.identity import Identity
from tests.waiting import finished

SETTINGS = ["network.clients=5", "network.servers=2", "model.name=logistic"]
SETTINGS += ["training.engine=loop"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("init") / "federation"
    init(load(None, SETTINGS), directory, ["a.example", "b.example:9000"])
    return directory


def test_every_node_knows_who_it_is_and_where_the_others_are(made: Path) -> None:
    names = {path.name for path in (made / "nodes").iterdir()}
    assert names == {"edge-0", "edge-1", *(f"client-{n}" for n in range(5)), "operator-0"}
    for name in names:
        node = read_node(made / "nodes" / name / NODE)
        identity = Identity.load(Path(node.identity))
        assert f"{identity.role}-{identity.number}" == name
        where = {0: "a.example:7400", 1: "b.example:9000"}
        assert peers_of(node).items() <= where.items()
    assert read_node(made / "nodes" / "edge-1" / NODE).listen == "0.0.0.0:9000"


def test_all_nodes_have_the_same_digest_and_any_change_is_another(made: Path) -> None:
    nodes = [read_node(made / "nodes" / name / NODE) for name in ("edge-0", "client-3")]
    first, second = (federation_of(node)[0].digest for node in nodes)
    assert first == second
    text = (made / "network.json").read_text()
    try:
        (made / "network.json").write_text(text + " ")
        assert federation_of(nodes[0])[0].digest != first
    finally:
        (made / "network.json").write_text(text)


def test_no_data_and_no_key_of_the_authority_are_among_a_nodes_files(made: Path) -> None:
    for home in (made / "nodes").iterdir():
        files = {path.name for path in home.rglob("*") if path.is_file()}
        assert files == {"node.toml", "key.pem", "cert.pem", "ca.pem"}
        assert (home / "identity" / "key.pem").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["compose.yaml", "kubernetes.yaml"])
def test_descriptions_name_every_node_and_leave_no_placeholder(name: str, made: Path) -> None:
    text = (made / name).read_text()
    assert "$" not in text
    for node in ("edge-0", "edge-1", "client-0", "client-4"):
        assert f"nodes/{node}/node.toml" in text
    assert "\t" not in text


def test_liveness_probes_ask_for_life_not_for_progress(made: Path, tmp_path: Path) -> None:
    """A node that waits for others for hours says so every second, and is left alone."""
    text = (made / "kubernetes.yaml").read_text()
    assert text.count("livenessProbe") == 7
    assert "healthy" not in text
    script = textwrap.dedent(text.split("- |\n", 1)[1].split("            initialDelay", 1)[0])
    status = tmp_path / "status.json"
    status.write_text("{}")
    script = script.replace("/federation/nodes/edge-0/status.json", str(status))
    for age, verdict in ((5, 0), (3600, 1)):
        os.utime(status, (time.time() - age,) * 2)
        assert finished([sys.executable, "-c", script]).returncode == verdict


def test_containers_mount_directories_where_files_are_replaced(made: Path) -> None:
    compose, manifests = ((made / f).read_text() for f in ("compose.yaml", "kubernetes.yaml"))
    for text in (compose, manifests):
        assert "allow.txt" not in text
        assert "cert.pem" not in text
    assert compose.count("./trust:/federation/trust:ro") == 7
    assert manifests.count("mountPath: /federation/trust,") == 7
    for line in manifests.splitlines():
        assert "subPath" not in line or "experiment" in line or "network" in line or "node" in line


def test_every_node_has_a_limit_to_what_it_takes(made: Path) -> None:
    assert (made / "compose.yaml").read_text().count("mem_limit") == 7
    assert (made / "kubernetes.yaml").read_text().count("limits: {cpu: 1000m, memory: 2Gi}") == 7
    for role in ("edge", "client"):
        assert "MemoryMax=2G" in (made / "systemd" / f"sdfeel-{role}@.service").read_text()


def test_units_restart_a_killed_node_and_keep_the_rest_of_the_system_closed(made: Path) -> None:
    for role in ("edge", "client"):
        text = (made / "systemd" / f"sdfeel-{role}@.service").read_text()
        assert f"sdfeel {role} nodes/{role}-%i/node.toml" in text
        assert "Restart=on-failure" in text
        assert re.search(r"ProtectSystem=strict", text)


def test_clients_with_data_of_their_own_count_by_their_examples(tmp_path: Path) -> None:
    init(load(None, SETTINGS), tmp_path / "f", samples=[10, 20, 30, 40, 50])
    told = json.loads((tmp_path / "f" / "network.json").read_text())
    assert told["samples"] == [10, 20, 30, 40, 50]
    with pytest.raises(InputError, match="2 sample counts for 5 clients"):
        init(load(None, SETTINGS), tmp_path / "g", samples=[10, 20])


@pytest.mark.parametrize("host", [":7400", "a:b", "a:0", "a:70000", "a:b:1", "[fd00::zz]:1"])
def test_an_invalid_host_is_refused(host: str) -> None:
    with pytest.raises(InputError, match="is not a host: write name or name:port"):
        edge_addresses(1, [host])


@pytest.mark.parametrize("text", ["x = " + "9" * 5000, "x = " + "[" * 100_000, "x = \n", "\xff"])
def test_an_invalid_node_file_is_reported_in_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / NODE).write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match="is not valid TOML"):
        read_node(tmp_path / NODE)


def test_an_invalid_network_file_is_reported_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    for text in ("[" * 100_000, "9" * 5000, "{}", "null", '{"reach": 3}'):
        path.write_text(text)
        with pytest.raises(RunError, match="is not a network file"):
            read_network(path)
