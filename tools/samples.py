"""Write the samples of this version, which later versions must be able to read.

    PYTHONPATH=<tree>/src:<tree> python tools/samples.py tests/samples/<version>   # of any tree

They are runs stopped half-way with the results they reach when resumed, a finished run, an
experiment file, servers of a deployment stopped half-way, recorded messages, and what the nodes of
a finished deployment signed and logged. No private key is among them. `tests/test_old_files.py`
reads them.

    ... tools/samples.py tests/samples/<version> signed     # only that last one, beside the others
"""

import asyncio
import base64
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hashes import found

COMMON = (
    "network.clients=6",
    "network.servers=3",
    "network.graph=path",
    "model.name=logistic",
    "training.iterations=40",
    "training.engine=loop",
    "evaluation.every=3",
    "devices.gflops=0.0006",
    "devices.spread=3",
)
SQUEEZED = (
    "scheme.name=sd-feel",
    "compression.uplink=top-k",
    "compression.backhaul=uniform",
    "compression.bits=6",
    "latency.late=drop",
    "latency.deadline_seconds=0.011",
)
# Settings of each run, and the round in which it is stopped.
STOPPED: dict[str, tuple[int, tuple[str, ...]]] = {
    "sd-feel": (4, ("scheme.name=sd-feel", "scheme.alpha=2")),
    "async-sd-feel": (7, ("scheme.name=async-sd-feel",)),
    "fedsa": (4, ("scheme.name=fedsa",)),
    "safa": (4, ("scheme.name=safa",)),
    "compressed-late": (4, SQUEEZED),
    # Rows that clients and servers keep: corrections, momentum, parts of models, a mean.
    "scaffold": (4, ("scheme.name=scaffold", "scheme.tau1=2")),
    "tiers": (5, ("scheme.name=tiers", "training.average=0.5", "training.schedule=cosine")),
    "personal": (
        4,
        (
            *("scheme.name=hierfavg", "scheme.tau1=2", "personal.method=fedper"),
            *("server.optimizer=momentum", "model.name=mlp", "model.options={ hidden = 4 }"),
        ),
    ),
}
MANY_KEYS = (
    "seed=7",
    "network.clients=30",
    "network.servers=5",
    "network.graph=erdos-renyi",
    "network.probability=0.7",
    "network.mixing=metropolis",
    "network.assignment=by_label",
    "network.imbalance=1",
    "network.link_chance=0.9",
    "network.server_up_seconds=40",
    "network.server_down_seconds=2.5",
    "data.partition=dirichlet",
    "data.concentration=0.7",
    "data.balance=true",
    "data.min_size=5",
    "model.name=mlp",
    "model.options={ hidden = 16 }",
    "scheme.name=async-sd-feel",
    "scheme.theta_min=3",
    "scheme.psi=exponential",
    "training.momentum=0.9",
    "training.optimizer_options={ nesterov = true }",
    "training.schedule=cosine",
    "training.warmup=5",
    "training.clip_norm=2.5",
    "training.average=0.9",
    "training.target_accuracy=0.95",
    "training.max_seconds=100.5",
    "latency.preset=paper-epoch",
    "latency.downlink=true",
    "latency.late=drop",
    "latency.deadline_seconds=3.5",
    "radio.rates=distance",
    "radio.fading=nakagami",
    "radio.nakagami_m=1.5",
    "radio.correlation=0.5",
    "compression.uplink=top-k",
    "compression.share=0.1",
    "devices.spread=4",
    "devices.placement=clustered",
    "evaluation.estimates=true",
    'evaluation.per_client=["accuracy", "loss"]',
    "evaluation.own_steps=3",
    "server.optimizer=adam",
    "robust.cluster=trimmed-mean",
    "robust.liars=0.2",
    "attack.kind=sign-flip",
    "attack.clients=2",
    "privacy.protects=clients",
    "personal.method=fedbn",
    "checkpoint.every_seconds=2",
)
DEPLOYED = ("network.clients=4", "network.servers=2", "data.classes_per_client=5")
CLIENTS, EDGES = ("work", "start", "result", "here"), ("model", "lock", "apply")
OPERATORS = ("status", "rounds", "measured", "current", "stop")
KINDS = {*CLIENTS, *EDGES, *OPERATORS}
# Files of a deployment; the private keys are left out.
KEPT = (
    "experiment.toml",
    "network.json",
    "allow.txt",  # of version 0.1; now it is in trust/
    "trust/allow.txt",
    "nodes/*/node.toml",
    "nodes/edge-0/identity/c*.pem",
    "nodes/edge-0/events.jsonl",
    "nodes/edge-0/state/state.sqlite",
)
# What verifying a deployment needs, and the logs of calls.
SIGNED = (
    "experiment.toml",
    "network.json",
    "model.safetensors",
    "events.jsonl",
    "nodes/*/node.toml",
    "nodes/*/identity/ca.pem",
    "nodes/*/data.npz",
    "nodes/*/statements.jsonl",
    "nodes/*/audit.jsonl",
)


def write_runs(out: Path) -> dict[str, Any]:
    """Runs stopped half-way; returns the results they reach."""
    ends = {}
    for name, (rounds, settings) in STOPPED.items():
        directory = out / "stopped" / name
        session = found("start")(found("load")(None, (*COMMON, *settings)), directory)
        for event in session:
            if getattr(event, "number", 0) == rounds:
                session.stop()
        ends[name] = finished_elsewhere(directory, out / "finals" / f"{name}.safetensors")
    return ends


def finished_elsewhere(directory: Path, model: Path) -> dict[str, Any]:
    """The result that a stopped run reaches; the run itself stays as it is."""
    copy = directory.with_name(f"{directory.name}-again")
    shutil.copytree(directory, copy)
    (*_, last) = found("resume")(copy)
    model.parent.mkdir(exist_ok=True)
    shutil.copy(copy / "model.safetensors", model)
    shutil.rmtree(copy)
    names = ("number", "iterations", "seconds", "bytes", "joules", "reason", "model_sha256")
    return {name: getattr(last, name) for name in names}


def write_finished(out: Path) -> None:
    settings = (*COMMON, "scheme.name=hierfavg", "evaluation.estimates=true")
    for _ in found("start")(found("load")(None, settings), out / "finished"):
        pass


def write_experiment(out: Path) -> dict[str, Any]:
    """An experiment file with all keys; returns what is in it."""
    experiment = found("load")(None, MANY_KEYS)
    (out / "experiment.toml").write_text(found("template")(experiment))
    return {"fingerprint": experiment.fingerprint, "values": experiment.model_dump()}


def write_deployment(out: Path, scratch: Path) -> str:
    """The files of a deployment that was stopped half-way; returns their digest."""
    deployment = found("LocalDeployment")(found("load")(None, (*COMMON, *DEPLOYED)), scratch)
    for event in deployment:
        if getattr(event, "number", 0) == 3:
            deployment.stop()
    _copy(scratch, out / "deployment", KEPT)
    files = (out / "deployment" / "experiment.toml", out / "deployment" / "network.json")
    return str(found("digest_of")(*files))


def write_signed(out: Path, scratch: Path) -> dict[str, Any]:
    """What the nodes of a finished deployment signed and logged; returns what is found there."""
    settings = (*COMMON, *DEPLOYED, "training.iterations=10")
    for _ in found("LocalDeployment")(found("load")(None, settings), scratch):
        pass
    _copy(scratch, out / "signed", SIGNED)
    told = found("verify")(out / "signed")
    audited = {each["name"]: each["head"] for each in found("audited")(out / "signed")}
    shutil.make_archive(str(out / "signed"), "zip", out / "signed")
    shutil.rmtree(out / "signed")
    return {
        "rounds": told.rounds,
        "signatures": told.signatures,
        "good": dict(told.good),
        "heads": audited,
    }


def _copy(source: Path, target: Path, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        for path in source.glob(pattern):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


class Recorder:
    """Records what nodes say to one another, one message of each form."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], dict[str, str]] = {}

    def village(self, *arguments: Any, **options: Any) -> Any:
        """A village whose messages are recorded."""
        village = found("Village")(*arguments, **options)
        deliver = village.deliver

        async def recorded(who: Any, target: int, kind: str, header: Any, body: Any) -> Any:
            answer = await deliver(who, target, kind, header, body)
            self.keep(who, kind, (header, body), answer)
            return answer

        village.deliver = recorded
        return village

    def keep(self, who: Any, kind: str, question: Any, answer: Any) -> None:
        form = (kind, who.role, *(part for said in (question, answer) for part in _form(*said)))
        if form not in self.kept:
            self.kept[form] = {
                "from": str(who),
                "kind": kind,
                "question": _encoded(kind, *question),
                "answer": _encoded(kind, *answer),
            }


def _form(header: dict[str, Any], body: bytes | None) -> tuple[Any, ...]:
    return tuple(sorted(header)), body is not None


def _encoded(kind: str, header: dict[str, Any], body: bytes | None) -> str:
    message = found("Envelope").of(kind, header, body).encode(body)
    return base64.b64encode(message).decode()


def write_messages(out: Path, scratch: Path) -> None:
    """Messages of four federations: synchronous, asynchronous, with shared clients, with losses."""
    recorder, schemes = Recorder(), found("SCHEMES")
    sd_feel, hearsay = schemes["sd-feel"](tau1=2, alpha=2), _hearsay()
    for number, (scheme, net, iterations) in enumerate(
        (
            (sd_feel, found("network")(), 12),
            (hearsay, found("network")(), 12),
            # Long enough that some client must ask a slower server for its start.
            (schemes["fedmes"](tau1=2), found("network")(overlap=True), 200),
        )
    ):
        village = recorder.village(scheme, net, scratch / str(number), iterations)

        async def operate(village: Any = village) -> None:
            link = village.link(found("Who")("operator", 0), 1)
            for kind, header in (
                ("status", {}),
                ("rounds", {"first": 1, "wait": 0.0}),
                ("measured", {"round": 6}),
                ("measured", {"round": 9999}),
                ("current", {}),
                ("stop", {}),
            ):
                await link.ask(kind, header)
            # Whether a client must ask another server for its start is a matter of chance.
            home = village.link(found("Who")("client", 2), 1)
            await home.ask("start", {"round": village.edges[1].known.k, "wait": 0.0})

        village.at_the_end = operate
        village.go()
    asyncio.run(asyncio.wait_for(_losses(recorder, scratch), 60))
    kinds = {message["kind"] for message in recorder.kept.values()}
    if kinds != KINDS:
        raise SystemExit(f"no message of {', '.join(KINDS - kinds)} was sent: try again")
    lines = ",\n".join(json.dumps(message) for _, message in sorted(recorder.kept.items()))
    (out / "messages.json").write_text(f"[\n{lines}\n]\n")


def _hearsay() -> Any:
    return found("SCHEMES")["async-sd-feel"](theta_min=2, staleness="hearsay")


async def _losses(recorder: Recorder, scratch: Path) -> None:
    """A server comes late: its clients are guests until then, and it adopts another's model."""
    policy = found("Policy")(dead_edge="drop", edge_deadline=0.5, client_deadline=5.0)
    scheme = found("SCHEMES")["sd-feel"](tau1=2)
    village = recorder.village(
        scheme, found("network")(), scratch / "losses", 4000, policy, away={"edge-2"}, moving=True
    )

    async def until(wanted: str, server: int, who: list[int]) -> None:
        while True:
            edge = village.edges.get(server)
            last = edge and edge.store.last_record()
            if last and last[wanted] == who:
                return
            await asyncio.sleep(0.01)

    life = asyncio.ensure_future(village.run())
    await until("guests", 1, [4, 5])
    village.start(2)
    await until("guests", 1, [])
    for server in (0, 1, 2):
        village.crash(server)
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)


def write_servers(out: Path) -> dict[str, Any]:
    """Servers killed half-way, synchronous and asynchronous; returns what the former reach."""
    net, rounds = found("network")(), 10
    sd_feel = found("SCHEMES")["sd-feel"](tau1=2, alpha=2)
    for name, scheme in (("in-step", sd_feel), ("out-of-step", _hearsay())):
        village = found("Village")(scheme, net, out / "servers" / name, 2 * rounds)
        asyncio.run(asyncio.wait_for(_killed(village), 60))
    model = found("simulated")(sd_feel, net, rounds)
    return {"iterations": 2 * rounds, "in-step": model.tolist()}


async def _killed(village: Any) -> None:
    life = asyncio.ensure_future(village.run())
    await asyncio.sleep(0)  # now all servers are there
    while not all(edge.known.k >= 3 for edge in village.edges.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    for server in (0, 1, 2):
        village.crash(server)
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)


def write(out: Path, scratch: Path) -> None:
    """All samples into an empty directory."""
    import torch

    from sdfeel.engine.arithmetic import arithmetic

    out.mkdir(parents=True)
    torch.set_num_threads(1)
    expected: dict[str, Any] = {
        "torch": str(torch.__version__),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "arithmetic": arithmetic(),
        "stopped": write_runs(out),
        "experiment": write_experiment(out),
        "servers": write_servers(out),
        "deployment": write_deployment(out, scratch / "deployment"),
        "signed": write_signed(out, scratch / "signed"),
    }
    write_finished(out)
    write_messages(out, scratch)
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for lock in out.rglob(".lock"):
        lock.unlink()
    for name in ("servers", "deployment"):  # databases are mostly empty space
        shutil.make_archive(str(out / name), "zip", out / name)
        shutil.rmtree(out / name)


def main(words: Sequence[str]) -> int:
    from tempfile import TemporaryDirectory

    if not words or words[1:] not in ([], ["signed"]):
        raise SystemExit("write: python tools/samples.py tests/samples/<version> [signed]")
    out = Path(words[0])
    with TemporaryDirectory() as scratch:
        if words[1:]:
            signed = write_signed(out, Path(scratch))
            expected = json.loads((out / "expected.json").read_text()) | {"signed": signed}
            (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        else:
            write(out, Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
