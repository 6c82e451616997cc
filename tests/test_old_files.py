"""What earlier versions wrote stays readable: runs, experiments, deployments and messages.

The samples in `tests/samples/<version>` were written by that version and are never rewritten.
"""

import asyncio
import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from sdfeel.core.events import Finished, Round
from sdfeel.core.scheme import Scheme
from sdfeel.deploy.files import digest_of, peers_of, read_node
from sdfeel.deploy.node import federation_of
from sdfeel.deploy.status import audited
from sdfeel.deploy.verify import verify
from sdfeel.engine.arithmetic import arithmetic
from sdfeel.experiment.loading import load
from sdfeel.live.edge.server import Edge
from sdfeel.live.protocol import Who
from sdfeel.live.store import Store
from sdfeel.live.transport.envelope import VERSION, opened
from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.limits import Limits
from sdfeel.live.transport.tensors import Schema, unpack
from sdfeel.live.trust.allow_list import entries
from sdfeel.live.trust.identity import described
from sdfeel.run import store
from sdfeel.run.provenance import machine
from sdfeel.run.session import resume
from sdfeel.schemes import AsyncSDFeel, SDFeel
from tests.cli.command import call
from tests.live import timeless
from tests.live.village import SIZE, Village, network

SAMPLES = Path(__file__).parent / "samples"
VERSIONS = sorted(path.parent.name for path in SAMPLES.glob("*/expected.json"))
TALKED = sorted(path.parent.name for path in SAMPLES.glob("*/messages.json"))
SIGNED = sorted(path.parent.name for path in SAMPLES.glob("*/signed.zip"))
CLIENTS, EDGES = ("work", "start", "result", "here"), ("model", "lock", "apply")
OPERATORS = ("status", "rounds", "measured", "current", "stop")
KINDS = {*CLIENTS, *EDGES, *OPERATORS}
HEARSAY = AsyncSDFeel(theta_min=2, staleness="hearsay")
EARLIER_CPU = "AMD EPYC"  # wrote the samples that do not say how torch rounded
RUNS = [(version, each.name) for version in VERSIONS for each in (SAMPLES / version).glob("st*/*")]


def expected(version: str) -> Any:
    return json.loads((SAMPLES / version / "expected.json").read_text())


def same_arithmetic(version: str) -> bool:
    """Are bits those of the machine that wrote the samples?"""
    made = expected(version)
    if "arithmetic" in made:
        return bool(made["arithmetic"] == arithmetic())
    about = machine()
    here = (str(torch.__version__), about["instruction set"], about["CPU"])
    return here == (made["torch"], made["instructions"], EARLIER_CPU)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def deployment(version: str, tmp_path: Path) -> Path:
    shutil.unpack_archive(SAMPLES / version / "deployment.zip", tmp_path / "deployment")
    return tmp_path / "deployment"


@pytest.fixture
def servers(version: str, tmp_path: Path) -> Path:
    shutil.unpack_archive(SAMPLES / version / "servers.zip", tmp_path / "servers")
    return tmp_path / "servers"


@pytest.mark.parametrize(("version", "name"), RUNS)
def test_a_stopped_run_resumes_to_the_result_of_its_own_version(
    version: str, name: str, tmp_path: Path
) -> None:
    """A run that is not in `stopped` of expected.json, because its rule was corrected, only
    ends."""
    directory = tmp_path / name
    shutil.copytree(SAMPLES / version / "stopped" / name, directory)
    done = sum(isinstance(event, Round) for event in store.read_events(directory))
    *events, last = resume(directory)
    assert isinstance(last, Finished)
    assert last.number == done + sum(isinstance(event, Round) for event in events)
    wanted = expected(version)["stopped"].get(name)
    if wanted is None:
        return
    counted = ("number", "iterations", "bytes", "reason")
    assert {key: getattr(last, key) for key in counted} == {key: wanted[key] for key in counted}
    assert last.seconds == pytest.approx(wanted["seconds"], rel=1e-12)
    assert last.joules == pytest.approx(wanted["joules"], rel=1e-12)
    if same_arithmetic(version):
        assert last.model_sha256 == wanted["model_sha256"]
    else:
        model = safetensors.torch.load_file(directory / "model.safetensors")
        theirs = SAMPLES / version / "finals" / f"{name}.safetensors"
        bound = 0.05 if "compressed" in name else 1e-4  # rounding magnifies differences
        assert _apart(model, safetensors.torch.load_file(theirs)) < bound


def test_a_finished_run_can_be_shown(version: str, tmp_path: Path) -> None:
    directory = tmp_path / "finished"
    shutil.copytree(SAMPLES / version / "finished", directory)
    (*_, last) = store.read_events(directory)
    assert isinstance(last, Finished)
    shown = call("show", directory, "--json")
    assert shown.code == 0, shown.err
    told = json.loads(shown.out)
    assert (told["state"], told["scheme"]) == ("finished", "hierfavg")
    assert told["model_sha256"] == last.model_sha256
    assert (told["rounds"], told["bytes"]) == (last.number, last.bytes)
    assert (directory / "report.html").stat().st_size > 0


def test_an_experiment_file_says_what_it_said(version: str) -> None:
    wanted = expected(version)["experiment"]
    experiment = load(SAMPLES / version / "experiment.toml")
    now = experiment.model_dump(mode="json")
    assert now["seed"] == wanted["values"]["seed"]
    for section, values in wanted["values"].items():
        if section != "seed":  # keys that were added since do not count
            assert {key: now[section][key] for key in values} == values
    assert experiment.fingerprint == wanted["fingerprint"]  # or its runs could not be resumed


def test_the_files_of_a_deployment_are_those_of_the_same_federation(
    version: str, deployment: Path
) -> None:
    digest = digest_of(deployment / "experiment.toml", deployment / "network.json")
    assert digest == expected(version)["deployment"]
    nodes = {path.parent.name: read_node(path) for path in deployment.glob("nodes/*/node.toml")}
    assert sorted(nodes) == [*(f"client-{n}" for n in range(4)), "edge-0", "edge-1", "operator-0"]
    assert set(peers_of(nodes["operator-0"])) == {0, 1}
    name, serial = described((deployment / "nodes/edge-0/identity/cert.pem").read_bytes())
    assert (name.role, name.number) == ("edge", 0)
    (allowed,) = deployment.rglob("allow.txt")
    assert (serial, str(name)) in entries(allowed.read_text())


def test_a_deployed_server_knows_where_it_was(version: str, deployment: Path) -> None:
    home = deployment / "nodes" / "edge-0"
    federation, _ = federation_of(read_node(home / "node.toml"))
    kept = Store(home / "state")
    try:
        edge = Edge(federation, 0, kept, {})
        assert edge.known.k >= 3
        assert [record["k"] for record in kept.records()] == list(range(edge.known.k))
        model = federation.own_model(edge.exchange.current())
        assert not torch.equal(model, federation.initial)
    finally:
        kept.close()
    assert [event.number for event in store.read_events(home) if isinstance(event, Round)]


def test_synchronous_servers_that_are_killed_still_reach_the_simulator_s_model(
    version: str, servers: Path
) -> None:
    wanted = expected(version)["servers"]
    scheme = SDFeel(tau1=2, alpha=2)
    village = Village(scheme, network(), servers / "in-step", wanted["iterations"])
    model, simulated = village.go(), torch.tensor(wanted["in-step"])
    assert all(edge.known.k == wanted["iterations"] // 2 for edge in village.ended.values())
    if same_arithmetic(version):
        assert torch.equal(model, simulated)
    else:
        torch.testing.assert_close(model, simulated, rtol=1e-3, atol=1e-4)


def test_asynchronous_servers_that_are_killed_still_reach_the_end(
    version: str, servers: Path
) -> None:
    scheme = HEARSAY
    iterations = expected(version)["servers"]["iterations"]
    village = Village(scheme, network(), servers / "out-of-step", iterations)
    assert torch.isfinite(village.go()).all()
    steps = [edge.known.steps for edge in village.ended.values()]
    assert sum(steps) / len(steps) >= iterations


@pytest.mark.parametrize("version", SIGNED)
def test_what_nodes_signed_and_logged_can_still_be_checked(version: str, tmp_path: Path) -> None:
    shutil.unpack_archive(SAMPLES / version / "signed.zip", tmp_path)
    wanted = expected(version)["signed"]
    assert {each["name"]: each["head"] for each in audited(tmp_path)} == wanted["heads"]
    found = verify(tmp_path)
    assert (found.rounds, found.signatures) == (wanted["rounds"], wanted["signatures"])
    if same_arithmetic(version):  # then the models are those that were signed, too
        assert (dict(found.good), found.findings, found.unknown) == (wanted["good"], [], {})


def messages_of(version: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((SAMPLES / version / "messages.json").read_text())
    return found


@pytest.mark.parametrize("version", TALKED)
def test_messages_are_understood_or_refused_by_the_name_of_their_protocol(version: str) -> None:
    messages = messages_of(version)
    assert {message["kind"] for message in messages} >= KINDS
    for message in messages:
        for said in ("question", "answer"):
            if (protocol := spoken(message[said])) != VERSION:
                with pytest.raises(Refused, match=f"the message is of protocol {protocol}, but"):
                    _opened(message[said])
                continue
            kind, header, body = _opened(message[said])
            assert kind == message["kind"]
            assert said == "answer" or header["federation"] == "f" * 64
            if "sha256" in header and body is not None:
                assert _model(body, header["sha256"]).shape == (SIZE,)


def spoken(message: str) -> int:
    """The protocol of a recorded message."""
    found: int = json.loads(base64.b64decode(message).partition(b"\n")[0])["version"]
    return found


def test_the_protocol_that_nodes_speak_now_has_been_recorded() -> None:
    assert VERSION in {spoken(messages_of(version)[0]["question"]) for version in TALKED}


@pytest.mark.parametrize("scheme", [SDFeel(tau1=2), HEARSAY], ids=["in step", "out of step"])
@pytest.mark.parametrize("version", TALKED)
def test_what_nodes_of_that_version_ask_is_answered_or_refused(
    version: str, scheme: Scheme, tmp_path: Path
) -> None:
    """Rolling upgrade: a server of today, and everything that was ever said to one."""
    village = Village(scheme, network(), tmp_path, 12)
    said = [message for message in messages_of(version) if spoken(message["question"]) == VERSION]
    answered = []

    async def story() -> None:
        village.start(1)
        await asyncio.sleep(0)
        for message in said:
            role, _, number = message["from"].partition("-")
            kind, header, body = _opened(message["question"])
            try:
                who = Who(role, int(number))
                await village.edges[1].handle(who, kind, {**header, "wait": 0}, body)
                answered.append(kind)
            except Refused:
                continue
        village.crash(1)

    timeless.run(story())
    assert not said or {"work", "here", "status", "rounds", "current"} <= set(answered)


def test_no_private_key_is_among_the_samples(version: str, deployment: Path) -> None:
    if version in SIGNED:
        shutil.unpack_archive(SAMPLES / version / "signed.zip", deployment / "signed")
    for directory in (SAMPLES / version, deployment):
        for path in directory.rglob("*"):
            assert not path.is_file() or b"PRIVATE KEY" not in path.read_bytes()


def _apart(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """How far two models are apart, relative to their size."""
    rows = [torch.cat([each[name].flatten() for name in sorted(each)]) for each in (one, two)]
    return float((rows[0] - rows[1]).norm() / rows[1].norm())


def _opened(message: str) -> tuple[str, dict[str, Any], bytes | None]:
    limits = Limits(bodies=dict.fromkeys(KINDS, 1 << 20))
    envelope, body = opened(base64.b64decode(message), limits)
    return envelope.kind, envelope.header, body


def _model(body: bytes, sha256: str) -> Tensor:
    schema = Schema.of({"model": np.zeros(SIZE, np.float32)})
    return torch.from_numpy(unpack(body, schema, sha256)["model"])
