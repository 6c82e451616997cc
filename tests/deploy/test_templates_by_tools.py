"""What `deploy init` writes, read by the programs it is written for, where they are installed."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from sdfeel.deploy.init import init
from sdfeel.experiment.loading import load
from sdfeel.live.metrics import COUNTERS, GAUGES, metrics, process_metrics
from tests.waiting import finished


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("init") / "federation"
    settings = ["network.clients=5", "network.servers=2", "training.engine=loop"]
    init(load(None, settings), directory, ["a.example", "b.example:9000"])
    return directory


def told(*command: str) -> tuple[int, str]:
    """The exit code and all output of a program; skipped without it."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = finished(command)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("unit", ["sdfeel-edge@.service", "sdfeel-client@.service"])
def test_systemd_finds_no_fault_but_the_missing_program(unit: str, made: Path) -> None:
    program = "/opt/sdfeel/venv/bin/sdfeel"
    _, said = told("systemd-analyze", "verify", str(made / "systemd" / unit))
    # Only what systemd says about our unit counts: a machine's own units have faults of their own.
    faults = [line for line in said.splitlines() if "sdfeel-" in line]
    assert [line for line in faults if f"{program} is not executable" not in line] == []


def test_systemd_would_find_a_fault(made: Path, tmp_path: Path) -> None:
    text = (made / "systemd" / "sdfeel-edge@.service").read_text()
    broken = tmp_path / "sdfeel-broken@.service"
    broken.write_text(re.sub(r"(?m)^ExecStart=.*$", "ExecStart=sdfeel edge", text))
    code, said = told("systemd-analyze", "verify", str(broken))
    assert code != 0
    assert "sdfeel-broken" in said


@pytest.mark.parametrize("unit", ["sdfeel-edge@.service", "sdfeel-client@.service"])
def test_a_unit_is_hardly_exposed(unit: str, made: Path) -> None:
    path = str(made / "systemd" / unit)
    code, said = told("systemd-analyze", "security", "--offline=true", "--threshold=30", path)
    if "unrecognized option" in said:
        pytest.skip("this systemd cannot judge a unit that is not installed")
    assert code == 0, said.splitlines()[-1]


def test_compose_accepts_the_file(made: Path) -> None:
    code, said = told("docker-compose", "-f", str(made / "compose.yaml"), "config", "-q")
    assert code == 0, said


def test_podman_compose_knows_all_nodes(made: Path) -> None:
    code, said = told("podman-compose", "-f", str(made / "compose.yaml"), "config")
    assert code == 0, said
    assert said.count("nodes/client-") >= 5


def test_helm_renders_the_manifests_that_are_there_without_it(made: Path) -> None:
    code, said = told("helm", "lint", "--strict", str(made / "helm"))
    assert code == 0, said
    code, rendered = told("helm", "template", "federation", str(made / "helm"))
    assert code == 0, rendered
    assert objects(rendered) == objects((made / "kubernetes.yaml").read_text())
    few = ["--set", "clients={client-0}", "--set", "image=registry.example/sdfeel:2"]
    _, less = told("helm", "template", "federation", str(made / "helm"), *few)
    assert less.count("kind: Job") == 1
    assert less.count("image: registry.example/sdfeel:2") == 3


def objects(text: str) -> list[list[str]]:
    """The documents of a YAML file as lines, in an order of their own."""
    parts = [part.splitlines() for part in re.split(r"(?m)^---$", text)]
    bare = [[line for line in part if line.strip() and line[0] != "#"] for part in parts]
    return sorted(part for part in bare if part)


def test_the_setup_gives_a_cluster_all_that_the_manifests_refer_to(
    made: Path, tmp_path: Path
) -> None:
    """Without a cluster: what is applied is written to a file instead."""
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not installed")
    given = tmp_path / "given.yaml"
    shim = tmp_path / "kubectl"
    shim.write_text(
        f'#!/bin/sh\nif [ "$1" = apply ]; then echo ---; cat; exit; fi\nexec {kubectl} "$@"\n'
    )
    shim.chmod(0o755)
    with given.open("w") as file:
        place = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        finished([made / "kubernetes-setup.sh"], cwd=made, stdout=file, env=place, check=True)
    have = set(re.findall(r"(?m)^  name: (\S+)$", given.read_text()))
    text = (made / "kubernetes.yaml").read_text()
    wanted = set(re.findall(r"configMap: \{name: ([^}]+)\}|secretName: ([^,]+),", text))
    assert {name for pair in wanted for name in pair if name} == have


def test_the_manifests_keep_to_the_schemas_of_kubernetes(made: Path, tmp_path: Path) -> None:
    code, said = told("kubernetes-validate", "--strict", str(made / "kubernetes.yaml"))
    assert code == 0, said
    broken = tmp_path / "broken.yaml"
    text = (made / "kubernetes.yaml").read_text()
    broken.write_text(text.replace("serviceName:", "servicename:"))
    assert told("kubernetes-validate", "--strict", str(broken))[0] != 0


def test_prometheus_accepts_rules_and_scraping(made: Path) -> None:
    folder = made / "monitoring"
    code, said = told("promtool", "check", "rules", str(folder / "prometheus-rules.yaml"))
    assert code == 0, said
    assert "8 rules found" in said
    code, said = told("promtool", "check", "config", str(folder / "prometheus.yaml"))
    assert code == 0, said
    assert '"a.example:7500", "b.example:9100"' in (folder / "prometheus.yaml").read_text()


def test_promtool_finds_no_fault_in_the_metrics(tmp_path: Path) -> None:
    told("promtool", "--version")
    status = {name: 12345678 for name in (*COUNTERS, *GAUGES)}
    node = {"name": "edge-0", "role": "edge", "version": "1", "offences": {"client-1": 2}}
    more = {"lag": 1.5, "certificate_expires": 1.8e9, "audit": {"lines": 3}}
    text = metrics({**status, **node, **more})
    for name in COUNTERS:
        assert f"# HELP sdfeel_{name}_total " in text
    for name in GAUGES:
        assert f"# HELP sdfeel_{name} " in text
    done = finished(["promtool", "check", "metrics"], input=text + process_metrics())
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("series", "alert"),
    [
        ('up{job="sdfeel", instance="a"} 0+0x100', "SdfeelNodeDown"),
        ('sdfeel_healthy{node="edge-0"} 0+0x100', "SdfeelNodeUnhealthy"),
        ('sdfeel_denied_total{node="edge-0"} 0+1x100', "SdfeelCallsDenied"),
        (
            'sdfeel_certificate_expiry_timestamp_seconds{node="edge-0"} 86400+0x100',
            "SdfeelCertificateExpires",
        ),
        ('sdfeel_offences_total{node="e", offender="c"} 0+1x100', "SdfeelOffence"),
        ('sdfeel_healthy{node="edge-0"} 1+0x100', ""),
    ],
)
def test_an_alert_is_raised_when_it_should_be(
    series: str, alert: str, made: Path, tmp_path: Path
) -> None:
    name, _, values = series.partition("} ")
    labels = [pair.split("=") for pair in name.partition("{")[2].split(", ")]
    rules = made / "monitoring" / "prometheus-rules.yaml"
    known = yaml_names(rules.read_text())
    lines = [f"rule_files: [{rules}]", "evaluation_interval: 1m", "tests:", "  - interval: 1m"]
    lines += ["    input_series:", f"      - series: '{name}}}'", f"        values: '{values}'"]
    lines += ["    alert_rule_test:"]
    for each in known:
        lines += ["      - eval_time: 30m", f"        alertname: {each}", "        exp_alerts: []"]
    trial = tmp_path / "trial.yaml"
    trial.write_text("\n".join(lines) + "\n")
    _, said = told("promtool", "test", "rules", str(trial))
    raised = {each for each in known if f"alertname: {each}" in said}
    assert raised == ({alert} if alert else set()), (labels, said)


def yaml_names(text: str) -> list[str]:
    return re.findall(r"alert: (\w+)", text)


def test_the_dashboard_shows_only_metrics_that_there_are(made: Path) -> None:
    board = json.loads((made / "monitoring" / "grafana-dashboard.json").read_text())
    known = {f"sdfeel_{name}_total" for name in (*COUNTERS, "offences")}
    known |= {f"sdfeel_{name}" for name in GAUGES}
    rules = (made / "monitoring" / "prometheus-rules.yaml").read_text()
    asked = " ".join(target["expr"] for panel in board["panels"] for target in panel["targets"])
    used = set(re.findall(r"sdfeel_\w+", f"{asked} {rules}"))
    assert used <= known
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in board["panels"]]
    assert len(set(places)) == len(places)
