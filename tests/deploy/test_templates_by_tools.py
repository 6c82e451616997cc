"""What `deploy init` writes, read by the programs it is written for, where they are installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sdfeel.deploy.init import init
from sdfeel.experiment.schema import load


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("unit", ["sdfeel-edge@.service", "sdfeel-client@.service"])
def test_systemd_finds_no_fault_but_the_missing_program(unit: str, made: Path) -> None:
    program = "/opt/sdfeel/venv/bin/sdfeel"
    _, said = told("systemd-analyze", "verify", str(made / "systemd" / unit))
    # Only what systemd says of our unit counts: a machine's own units have faults of their own.
    faults = [line for line in said.splitlines() if "sdfeel-" in line]
    assert [line for line in faults if f"{program} is not executable" not in line] == []


def test_systemd_would_find_a_fault(made: Path, tmp_path: Path) -> None:
    text = (made / "systemd" / "sdfeel-edge@.service").read_text()
    broken = tmp_path / "sdfeel-broken@.service"
    broken.write_text(re.sub(r"(?m)^ExecStart=.*$", "ExecStart=sdfeel edge", text))
    code, said = told("systemd-analyze", "verify", str(broken))
    assert code != 0
    assert "sdfeel-broken" in said


def test_compose_accepts_the_file(made: Path) -> None:
    code, said = told("docker-compose", "-f", str(made / "compose.yaml"), "config", "-q")
    assert code == 0, said


def test_the_manifests_keep_to_the_schemas_of_kubernetes(made: Path, tmp_path: Path) -> None:
    code, said = told("kubernetes-validate", "--strict", str(made / "kubernetes.yaml"))
    assert code == 0, said
    broken = tmp_path / "broken.yaml"
    text = (made / "kubernetes.yaml").read_text()
    broken.write_text(text.replace("serviceName:", "servicename:"))
    assert told("kubernetes-validate", "--strict", str(broken))[0] != 0
