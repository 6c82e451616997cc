"""Rounds of a real federation in which nobody trains, so that only the cost of deployment is left.

Edge servers and clients are processes with real certificates and durable state, as in
`sdfeel deploy local`, but without an operator watching. A client returns the model that it was
given, through the interface by which users plug in their own training code.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sdfeel.core.errors import InputError, RunError
from sdfeel.core.events import Round
from sdfeel.core.run_files import NODE, NODES
from sdfeel.deploy.files import read_node, write_node
from sdfeel.deploy.flower import Arrays
from sdfeel.deploy.local import Processes
from sdfeel.deploy.node_directories import EdgeAddress, make
from sdfeel.deploy.round_times import Idle
from sdfeel.deploy.status import read_statuses
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.live.store import Store
from sdfeel.sim.simulate import Simulation

WARM = 3  # rounds until all connections are made
TRAINER = f"{__name__}:Unchanged"
TICK = 0.1  # seconds between two checks whether the rounds are done
Record = Mapping[str, Any]


class Unchanged:
    """As much of a Flower client as is needed, with the shortest possible training."""

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, Any]:
        return parameters, 1, {}


@dataclass(frozen=True)
class Laps:
    """How long rounds took, and the parts of a round, which are medians over all servers."""

    rounds: int
    seconds: float  # from the end of one round to that of the next, a median
    best: float  # the shortest, which load affects least
    gather: float  # handing out models and collecting results, on disk
    mix: float  # averaging and exchanges between servers, all but the last on disk
    commit: float  # the rest: what ends a round durably


@dataclass(frozen=True)
class Shape:
    """How large a federation is, and what it sends, and how often."""

    servers: int
    clients: int
    model: str
    alpha: int = 1  # exchanges between servers in a round
    options: tuple[str, ...] = ()  # of the model


def prepared(directory: Path, shape: Shape, rounds: int, settings: Sequence[str] = ()) -> Prepared:
    """An experiment of SD-FEEL on images of 28x28 pixels: a round has one local iteration."""
    if (directory / NODES).exists():
        raise InputError(f"{directory} holds an earlier measurement: choose another --out")
    directory.mkdir(parents=True, exist_ok=True)
    examples = directory / "examples.npz"
    count = 20 * shape.clients
    pixels, labels = np.zeros((count, 1, 28, 28), np.uint8), np.arange(count) % 10
    np.savez(examples, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    chosen = [
        f"data.name={examples.resolve()}",
        "data.partition=iid",
        f"network.clients={shape.clients}",
        f"network.servers={shape.servers}",
        f"model.name={shape.model}",
        *(f"model.options.{option}" for option in shape.options),
        "scheme.tau1=1",
        f"scheme.alpha={shape.alpha}",
        f"training.iterations={WARM + rounds}",
        "training.engine=loop",
        f"evaluation.every={WARM + rounds}",
        *settings,
    ]
    return prepare(load(None, chosen))


def federation(
    ready: Prepared,
    directory: Path,
    addresses: Mapping[int, EdgeAddress],
    address: Callable[[str, int], str] | None = None,
    trainer: str = TRAINER,
) -> None:
    """Write all files of a federation without training in which `node` calls `address(node, d)`."""
    make(ready, directory, addresses, with_data=False)
    for home in sorted((directory / NODES).iterdir()):
        role = home.name.partition("-")[0]
        node = read_node(home / NODE)
        if address is not None:
            peers = {peer: address(home.name, int(peer.partition("-")[2])) for peer in node.peers}
            node = node.model_copy(update={"peers": peers})
        if role == "client":
            node = node.model_copy(update={"data": None, "trainer": trainer})
        write_node(home, role, node)


def run_to_the_end(directory: Path, patience: float) -> None:
    """Start every node as a process and return when all rounds are done and all have ended."""
    homes = [home.name for home in sorted((directory / NODES).iterdir())]
    processes = Processes(directory, [name for name in homes if not name.startswith("operator")])
    for name in processes.names:
        processes.start(name)
    try:
        end = time.monotonic() + patience
        while not _over(directory):
            processes.supervise(most=1)
            if time.monotonic() > end:
                raise RunError(f"the rounds are not done after {patience:g} s: see {directory}")
            time.sleep(TICK)
    finally:
        processes.stop()


def _over(directory: Path) -> bool:
    edges = [told for told in read_statuses(directory, time.time()) if told["role"] == "edge"]
    return all(told.get("over") for told in edges)


def records(directory: Path) -> list[list[Record]]:
    """What each server recorded about its rounds; read it when the servers have ended."""
    found: list[list[Record]] = []
    for home in sorted((directory / NODES).glob("edge-*")):
        store = Store(home / "state")
        found.append(list(store.records()))
        store.close()
    return found


def laps(servers: Sequence[Sequence[Record]], warm: int = WARM) -> Laps:
    """The times of steady rounds; a round is over when the last server has finished it."""
    ends = [max(each["ended"] for each in moment) for moment in zip(*servers, strict=True)]
    if len(ends) <= warm:
        raise RunError(
            f"{len(ends)} rounds are too few to measure, since {warm} are for warming up: run more"
        )
    lasted = [after - before for before, after in zip(ends[warm - 1 :], ends[warm:], strict=False)]
    steady = [record for server in servers for record in server[warm:]]
    gather = median(record["compute"] + record["upload"] for record in steady)
    mix = median(record["mix"] for record in steady)
    whole = median(lasted)
    return Laps(len(lasted), whole, min(lasted), gather, mix, whole - gather - mix)


def simulated(ready: Prepared) -> Round:
    """The first round on the simulator's clock; all others are like it."""
    return next(Simulation(ready.decisions, Idle(ready.engine.initial())))
