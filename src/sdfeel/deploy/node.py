"""Turns a node's files into a running node."""

import asyncio
import hashlib
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import DataError, InputError, printable
from sdfeel.core.network import Network
from sdfeel.core.run_files import client_arrays, secret_of
from sdfeel.core.seeds import number
from sdfeel.data.adapters import AS_IT_IS
from sdfeel.data.federated import Examples, Federated, examples
from sdfeel.deploy.files import (
    NodeFile,
    digest_of,
    parse_network,
    peers_of,
    read_libraries,
    read_network,
    read_node,
)
from sdfeel.deploy.flower import FlowerTrainer
from sdfeel.engine.arithmetic import arithmetic
from sdfeel.engine.attacks import Attack, lie
from sdfeel.engine.base import ModuleEngine, Task
from sdfeel.engine.loop import TORCH
from sdfeel.engine.messages import Packing
from sdfeel.engine.native.engine import BITS
from sdfeel.engine.personal import PersonalEngine
from sdfeel.experiment.build import build_scheme
from sdfeel.experiment.build_data import build_data, how_to_read
from sdfeel.experiment.build_liars import attack_of
from sdfeel.experiment.build_messages import build_packing, hiding, with_masks, with_noise
from sdfeel.experiment.build_network import on_another, with_peers
from sdfeel.experiment.build_training import build_engine, build_workload, local_step
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.live.epochs import directory_of
from sdfeel.live.federation import Federation, by_torch
from sdfeel.live.protocol import About
from sdfeel.models import zoo
from sdfeel.models.flat import Layout

if TYPE_CHECKING:  # gRPC must not be loaded before a node's process has been forked
    from sdfeel.live.process import NodeSetting

Tell = Callable[[str], None]
Orphaned = Callable[[], bool]


def run_edge_node(path: Path, orphaned: Orphaned = lambda: False) -> None:
    """`sdfeel edge NODE.toml`; it ends as soon as it is `orphaned`: its launcher has gone."""
    from sdfeel.live.process import Service, run_edge

    node = read_node(path)
    federation, _ = federation_of(node)
    setting = _setting(node, path, "edge", orphaned)
    service = Service(node.listen, node.policy.policy())
    torch.set_num_threads(1)
    asyncio.run(run_edge(federation, setting, service, teller(f"edge-{setting.identity.number}")))


def run_client_node(
    path: Path, orphaned: Orphaned = lambda: False, forgetful: bool = False, pause: float = 0.0
) -> None:
    """`sdfeel client NODE.toml`.

    A `forgetful` client counts its steps in its own memory, and ignores the server's count: the
    negative control of the chaos trial, which must find that a crash then changes the model.
    `pause` makes rounds longer, so that a trial has time to kill nodes.
    """
    from sdfeel.live.process import run_client

    node = read_node(path)
    federation, module = federation_of(node)
    setting = _setting(node, path, "client", orphaned)
    me = setting.identity.number
    joins = setting.epochs is not None and any(setting.epochs.glob("*.json"))
    member = federation.member(me, joins)
    torch.set_num_threads(1)
    if node.trainer is not None:
        if federation.stays is not None:
            raise InputError(
                "the node file names a trainer of your own, which cannot keep a personal part of "
                "the model: set personal.method to none, or let sdfeel train"
            )
        samples = int(federation.net.samples[me])
        train: Callable[[Task], Tensor] = FlowerTrainer(zoo.imported(node.trainer)(), module)
    else:
        own = own_examples(node, me)
        secret = secret_of(setting.directory) if federation.private else None
        engine = own_engine(node, me, own, module, secret)
        samples, train = len(own), trainer(engine)
        if engine.name == "native":  # on an old CPU its bits differ, and servers refuse it
            member = replace(member, about=replace(member.about, engine=engine.bits))
        rounds = arithmetic() if engine.bits.startswith(TORCH) else None
        member = replace(member, about=replace(member.about, arithmetic=rounds))
    if federation.attack is not None and me in federation.attack.clients:
        train = lying(train, federation.attack)
    if forgetful:
        train = forgetting(train)
    if pause:
        train = slowed(train, pause)
    tell = teller(f"client-{me}")
    asyncio.run(run_client(member, setting, samples, by_torch(train), tell))


def _setting(node: NodeFile, path: Path, role: str, orphaned: Orphaned) -> "NodeSetting":
    from sdfeel.live.process import NodeSetting
    from sdfeel.live.trust.identity import Identity

    identity = Identity.load(Path(node.identity))
    if identity.role != role:
        other = "deploy follow" if identity.role == "operator" else identity.role
        raise InputError(
            f"{node.identity} is the identity of {identity.name}: run it with `sdfeel {other}`"
        )
    epochs = directory_of(Path(node.network))
    return NodeSetting(
        identity, path.parent, peers_of(node), Path(node.allow), node.health, orphaned, epochs
    )


def teller(name: str) -> Tell:
    """Log lines on standard error, with the time and the node's name."""

    def tell(line: str) -> None:
        with suppress(OSError):  # on a full disk, the health page says so
            said = f"{time.strftime('%H:%M:%S')} {name}: {printable(line)}"
            print(said, file=sys.stderr, flush=True)

    return tell


def federation_of(node: NodeFile) -> tuple[Federation, nn.Module]:
    """The federation that all nodes agree on, and the model's module."""
    experiment = load(Path(node.experiment))
    net, cost, shape, classes = read_network(Path(node.network))
    net = with_peers(experiment, net)
    model = experiment.model
    seed = number(experiment.seed, "model")
    module = zoo.build(model.name, shape, classes, seed, **model.options)
    engine = _first_engine(experiment, module, shape, len(net.samples))
    initial = engine.initial()
    base = decisions_of(experiment, net, cost)

    def rebuilt(text: str) -> Decisions:
        changed, prices, _, _ = parse_network(text)
        return on_another(base, net, with_peers(experiment, changed), prices)

    federation = Federation(
        digest=digest_of(Path(node.experiment), Path(node.network)),
        name=experiment.scheme.name,
        decisions=base,
        rebuilt=rebuilt,
        iterations=experiment.training.iterations,
        measure_every=experiment.evaluation.every,
        initial=initial,
        about=_about(node, experiment, module, initial),
        libraries=read_libraries(Path(node.network)),
        packing=_packing(experiment, base, engine.layout),
        stays=engine.stays if isinstance(engine, PersonalEngine) else None,
        published=engine.state_dict if isinstance(engine, PersonalEngine) else None,
        private=experiment.privacy.protects == "examples",
        attack=attack_of(experiment),
    )
    return federation, module


def decisions_of(experiment: Experiment, net: Network, cost: Cost) -> Decisions:
    """The decisions as nodes make them: the simulation's, but one server plays the cloud."""
    scheme, _ = build_scheme(experiment)
    named = experiment.network.cloud
    found = Decisions.of(scheme, net, cost, experiment.seed, local_step(experiment))
    hubs = experiment.compression.backhaul == "none"  # compressed messages must reach all servers
    found = replace(found, cloud=0 if named is None else named, hubs=hubs)
    return hiding(experiment, found)


def _packing(experiment: Experiment, decisions: Decisions, layout: Layout) -> Packing | None:
    """How messages are compressed and hidden: as in a simulation of the same experiment."""
    packing = with_noise(experiment, build_packing(experiment, layout), decisions)
    return with_masks(experiment, packing, decisions, layout)


def _about(node: NodeFile, experiment: Experiment, module: nn.Module, initial: Tensor) -> About:
    """The facts in which other nodes must agree with this one."""
    kind = engine_kind(experiment)
    return About(
        experiment=hashlib.sha256(Path(node.experiment).read_bytes()).hexdigest(),
        network=hashlib.sha256(Path(node.network).read_bytes()).hexdigest(),
        engine=BITS if kind == "native" else "loop",
        torch=str(torch.__version__),
        model=code_of(module),
        initial=hashlib.sha256(initial.contiguous().numpy().tobytes()).hexdigest(),
        arithmetic=None if kind == "native" else arithmetic(),
    )


def engine_kind(experiment: Experiment) -> str:
    """How a client trains: by the engine that was chosen when the deployment was made."""
    engine = experiment.training.engine
    if engine in ("native", "loop"):
        return engine
    if engine == "parallel":
        return "loop"  # `parallel` is the loop in several processes, with the same bits
    raise InputError(
        f"experiment.toml has training.engine = {engine}, which leaves open how clients train: use "
        f"the file that `sdfeel deploy init` wrote, which names the engine"
    )


def code_of(module: nn.Module) -> str:
    """A hash of the code that computes a model: of all its parts except torch's own.

    The whole file of each part counts, since the part may call anything in it.
    """
    found = hashlib.sha256(repr(module).encode())
    kinds = {type(part) for part in module.modules()}
    own = {kind.__module__ for kind in kinds if not kind.__module__.startswith("torch.")}
    for name in sorted(own):
        path = getattr(sys.modules.get(name), "__file__", None)
        if name.startswith("sdfeel."):  # the version of sdfeel is compared separately
            found.update(name.encode())
        elif path is not None and Path(path).is_file():
            found.update(Path(path).read_bytes())
    return found.hexdigest()


def _first_engine(
    experiment: Experiment, module: nn.Module, shape: tuple[int, ...], clients: int
) -> ModuleEngine:
    """An engine without data, for the initial model and its layout."""
    nothing = Examples(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64))
    alone = _alone(experiment, "loop")
    workload = build_workload(alone, _of_one(nothing, 0, clients), module)
    return build_engine(alone, workload)[0]


def _alone(experiment: Experiment, engine: str) -> Experiment:
    """The experiment for a process that trains one client."""
    training = experiment.training.model_copy(update={"engine": engine, "workers": 1})
    return experiment.model_copy(update={"training": training})


def _of_one(own: Examples, client: int, clients: int) -> Federated:
    """A federation in which only one client has data."""
    nothing = np.empty(0, dtype=np.int64)
    parts = tuple(np.arange(len(own)) if n == client else nothing for n in range(clients))
    return Federated(own, parts, own)


def own_examples(node: NodeFile, client: int) -> Examples:
    """A client's own data, from its own disk."""
    if node.data is None:
        raise InputError("the node file names no data: set `data` to an .npz file with x and y")
    path = Path(node.data)
    if path.is_dir():
        return _part(load(Path(node.experiment)), path, client)
    if path.suffix == ".npz":
        return _from_file(path)
    if ":" not in node.data:
        raise InputError(f"'{node.data}' is neither an .npz file, a directory nor module:factory")
    experiment = Path(node.experiment)
    reading = how_to_read(load(experiment)) if experiment.is_file() else AS_IT_IS
    return examples(zoo.imported(node.data)(), reading, reading.lazy)


def _from_file(path: Path) -> Examples:
    if not path.exists():
        raise DataError(
            f"this client's data are missing: save x and y to {path} with numpy.savez, or set "
            f"`data` in its node file to a directory or to module:factory (docs/deploy.md, 8)"
        )
    with client_arrays(path) as (x, y):
        return examples((x, y))


def _part(experiment: Experiment, directory: Path, client: int) -> Examples:
    """This client's part of the experiment's data set in `directory`."""
    section = experiment.data.model_copy(update={"directory": str(directory)})
    data = build_data(experiment.model_copy(update={"data": section}))
    return data.train.some(data.parts[client])


def forgetting(train: Callable[[Task], Tensor]) -> Callable[[Task], Tensor]:
    """The same training, but its position in the data is lost with the process."""
    taken = 0

    def broken(task: Task) -> Tensor:
        nonlocal taken
        model = train(replace(task, first=taken))
        taken += task.steps
        return model

    return broken


def lying(train: Callable[[Task], Tensor], attack: Attack) -> Callable[[Task], Tensor]:
    """The same training, but with a lie in place of the model."""
    return lambda task: lie(attack, task, train(task))


def slowed(train: Callable[[Task], Tensor], pause: float) -> Callable[[Task], Tensor]:
    """The same model, later."""

    def late(task: Task) -> Tensor:
        time.sleep(pause)
        return train(task)

    return late


def own_engine(
    node: NodeFile, client: int, own: Examples, module: nn.Module, secret: int | None = None
) -> ModuleEngine:
    """The engine of a simulation, with only this client's data, and its own noise."""
    experiment = load(Path(node.experiment))
    net, _, _, _ = read_network(Path(node.network))
    data = _of_one(own, client, max(len(net.samples), client + 1))
    alone = _alone(experiment, engine_kind(experiment))
    return build_engine(alone, build_workload(alone, data, module, secret))[0]


def trainer(engine: ModuleEngine) -> Callable[[Task], Tensor]:
    """A function that trains one task with an engine."""

    def train(task: Task) -> Tensor:
        return next(iter(engine.train([task]))).clone()

    return train
