"""Federations of real processes: the simulator's bits, status, chaos, and clear refusals."""

import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from sdfeel.core.errors import RunError
from sdfeel.core.events import Finished, Round
from sdfeel.deploy import local
from sdfeel.deploy.local import LocalDeployment, NodeTrial, Processes
from sdfeel.deploy.node_directories import PORTS, on_loopback
from sdfeel.deploy.replay import replay
from sdfeel.experiment.loading import load
from sdfeel.run.drive import fingerprint
from sdfeel.run.session import start
from tests.cli.command import Child, Outcome, call
from tests.live import stage
from tests.waiting import until

SMALL = {
    "training.iterations": "15",
    "network.clients": "4",
    "network.servers": "2",
    "data.classes_per_client": "5",
    "model.name": "logistic",
    "training.engine": "loop",
}


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than these runs, and is tested elsewhere."""
    monkeypatch.setattr("sdfeel.report.drawing.save", lambda *given: None)


def chosen(**sections: str) -> list[str]:
    given = SMALL | {key.replace("_", ".", 1): value for key, value in sections.items()}
    return [word for key, value in given.items() for word in ("--set", f"{key}={value}")]


def pairs(values: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def told(outcome: Outcome) -> Any:
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def slowly(settings: dict[str, str]) -> Any:
    """Settings that `make test-slow` tries."""
    return pytest.param(settings, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "settings",
    [
        {"scheme_name": "sd-feel", "scheme_alpha": "2"},
        slowly({"scheme_name": "hierfavg", "scheme_tau2": "2"}),
        slowly({"scheme_name": "fedavg", "scheme_participants": "3"}),
        slowly({"scheme_name": "fedmes", "network_overlap": "1"}),
        slowly({"scheme_name": "sd-feel", "training_engine": "auto", "model_name": "mlp"}),
    ],
    ids=["sd-feel", "hierfavg", "fedavg", "fedmes", "the fastest engine"],
)
def test_real_processes_reach_the_simulators_model(
    settings: dict[str, str], tmp_path: Path
) -> None:
    options = chosen(**settings)
    simulated = told(call("run", *options, "--out", tmp_path / "simulated", "--json"))
    deployed = told(call("deploy", "local", *options, "--out", tmp_path / "real", "--json"))
    assert deployed["model_sha256"] == simulated["model_sha256"]
    assert deployed["accuracy"] == simulated["accuracy"]
    for name in ("experiment.toml", "events.jsonl", "metrics.csv", "model.safetensors"):
        assert (tmp_path / "real" / name).is_file()
    model = "model.safetensors"
    assert (tmp_path / "real" / model).read_bytes() == (tmp_path / "simulated" / model).read_bytes()


@pytest.mark.slow
def test_an_asynchronous_deployment_can_be_repeated_in_the_simulator(tmp_path: Path) -> None:
    options = chosen(scheme_name="async-sd-feel", scheme_staleness="hearsay", devices_spread="3")
    deployed = told(call("deploy", "local", *options, "--out", tmp_path / "real", "--json"))
    assert fingerprint(replay(tmp_path / "real")) == deployed["model_sha256"]


@pytest.mark.slow
def test_a_deployment_that_was_stopped_continues_where_it_was(tmp_path: Path) -> None:
    settings = [*pairs(SMALL | {"training.iterations": "60"}), "evaluation.every=4"]
    experiment = load(None, settings)
    first = LocalDeployment(experiment, tmp_path / "real")
    first.processes.trial = NodeTrial(pause=0.05)
    for event in first:
        if isinstance(event, Round) and event.number >= 3:
            first.stop()
    assert not first.finished
    stopped = told(call("deploy", "status", tmp_path / "real", "--json"))["nodes"]
    assert {node["state"] for node in stopped} <= {"ended", "finished"}
    second = LocalDeployment(experiment, tmp_path / "real")
    events = list(second)
    assert isinstance(events[-1], Finished)
    numbers = [event.number for event in events if isinstance(event, Round)]
    assert numbers == list(range(1, 13))  # servers keep the records of all their rounds
    simulated = list(start(experiment, tmp_path / "simulated"))[-1]
    assert isinstance(simulated, Finished)
    assert events[-1].model_sha256 == simulated.model_sha256
    log = (tmp_path / "real" / "nodes" / "edge-0" / "log.txt").read_text()
    began = [int(found) for found in re.findall(r"listening on port \d+, round (\d+)", log)]
    assert began[0] == 1
    assert began[1] > 3  # nothing was done twice
    nodes = told(call("deploy", "status", tmp_path / "real", "--json"))["nodes"]
    assert [node["name"] for node in nodes] == [
        *(f"edge-{d}" for d in range(2)),
        *(f"client-{n}" for n in range(4)),
    ]
    assert {node["state"] for node in nodes} == {"finished"}
    assert {node["round"] for node in nodes} == {12}
    assert "finished" in call("deploy", "status", tmp_path / "real").out


@pytest.mark.slow
def test_nodes_do_not_outlive_a_launcher_that_was_killed(tmp_path: Path) -> None:
    out = tmp_path / "real"
    child = Child(tmp_path, "deploy", "local", *chosen(training_iterations="9000000"), "--out", out)
    names = ["edge-0", "edge-1", *(f"client-{n}" for n in range(4))]

    def say(words: str) -> bool:
        logs = [out / "nodes" / name / "log.txt" for name in names]
        return all(log.is_file() and words in log.read_text() for log in logs)

    child.until(lambda: say("round 2:"))
    child.send(signal.SIGKILL)
    child.end()
    until(
        lambda: say("stopped; it continues from here when it is started again"),
        "a node goes on without its launcher",
    )


@pytest.mark.slow
def test_kills_change_nothing_unless_clients_forget(tmp_path: Path) -> None:
    options = chosen(training_iterations="60")
    chaos = call("deploy", "chaos", *options, "--kills", "5", "--out", tmp_path / "a", "--json")
    found = told(chaos)
    assert sum(found["runs"][1]["kills"].values()) == 5
    assert found["runs"][0]["model_sha256"] == found["runs"][1]["model_sha256"]
    control = call(
        *("deploy", "chaos", *options, "--kills", "6", "--break"),
        *("--out", tmp_path / "b", "--json"),
    )
    found = told(control)
    assert found["runs"][1]["kills"]["client"] > 0
    assert found["runs"][0]["model_sha256"] != found["runs"][1]["model_sha256"]


def test_a_node_that_cannot_run_ends_the_deployment_with_its_own_words(tmp_path: Path) -> None:
    deployment = LocalDeployment(load(None, pairs(SMALL)), tmp_path / "real")
    (tmp_path / "real" / "nodes" / "client-2" / "data.npz").write_bytes(b"no archive")
    with pytest.raises(RunError, match=r"client-2 cannot run: .*is not a client's data"):
        list(deployment)
    assert deployment.processes.pids() == {}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"scheme_name": "async-sd-feel"}, "set scheme.staleness=hearsay"),
        ({"scheme_name": "adaptive"}, "measures how every client's gradient differs"),
        (
            {"scheme_name": "fedmes", "network_overlap": "2", "compression_uplink": "top-k"},
            "set compression.uplink=none",
        ),
        (
            {
                **{"scheme_name": "async-sd-feel", "scheme_staleness": "hearsay"},
                "compression_backhaul": "uniform",
            },
            "set compression.backhaul=none",
        ),
        (
            {"latency_late": "drop-unbiased", "latency_deadline_seconds": "9"},
            "set latency.late=drop",
        ),
        ({"network_link_chance": "0.9"}, "leave out network.changes"),
        ({"radio_fading": "rayleigh"}, "set radio.fading=off"),
    ],
)
def test_what_cannot_be_deployed_says_why(
    settings: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    outcome = call("deploy", "local", *chosen(**settings), "--out", tmp_path / "real")
    assert outcome.code == 1
    assert sentence in outcome.sentence
    assert "Traceback" not in outcome.err


def test_a_wrong_node_file_is_reported_in_a_sentence(tmp_path: Path) -> None:
    missing = call("edge", tmp_path / "node.toml")
    assert missing.code == 1
    assert "cannot read the node file" in missing.sentence
    (tmp_path / "node.toml").write_text('listne = "127.0.0.1:0"\n')
    assert "listne" in call("client", tmp_path / "node.toml").sentence
    assert "is not a deployment" in call("deploy", "status", tmp_path / "nothing").sentence


def test_a_local_deployment_takes_ports_that_the_system_does_not_give_away() -> None:
    ports = [int(each.listen.rpartition(":")[2]) for each in on_loopback(200).values()]
    assert len(set(ports)) == 200
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 <= port < lowest for port in ports)
    with socket.create_server(("127.0.0.1", ports[0])):
        assert ports[0] not in {
            int(each.listen.rpartition(":")[2]) for each in on_loopback(len(PORTS) - 500).values()
        }


class Silent:
    """A node's process that is never really started."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Processes, "start", lambda *_: None)
        self.deployment = LocalDeployment(stage.experiment(3), directory)


def test_what_goes_wrong_beside_a_deployment_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = Silent(tmp_path / "run", monkeypatch).deployment
    deployment.every_tick(lambda: [][0])
    with pytest.raises(RunError, match=r"cannot supervise: .*IndexError"):
        list(deployment)


def test_a_deployment_in_which_nothing_happens_says_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = Silent(tmp_path / "run", monkeypatch).deployment
    monkeypatch.setattr(local, "PATIENCE", 0.2)
    with pytest.raises(RunError, match=r"nothing has happened for .* edge-0 .*never started"):
        list(deployment)
