"""Many clients on one edge server: what they cost it. `python -m tests.tools.many_clients`.

The server is a process of its own, as deployed; the clients are real ones, too, with a certificate,
a connection and checks of their own, but many of them share a process, and none of them trains.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from sdfeel.bench.deployed_rounds import Shape, federation, laps, prepared, records
from sdfeel.bench.transport_speed import cpu
from sdfeel.core.run_files import AUDIT, NODE, NODES
from sdfeel.deploy.files import read_node
from sdfeel.deploy.local import Processes
from sdfeel.deploy.node import federation_of
from sdfeel.deploy.node_directories import on_loopback
from sdfeel.deploy.status import read_statuses
from tests.waiting import completed, joined

PATIENCE = 600.0  # seconds for one measurement
AT_ONCE = 8  # clients of one process that connect at the same time
WARM = 2  # rounds in which connections are made


@dataclass(frozen=True)
class Crowd:
    """What this many clients cost their server."""

    clients: int
    rounds: int
    first: float  # seconds until all were connected and a first round was done
    seconds: float  # of a round, a median
    cpu: float  # of the server's process, in one round
    memory: int  # bytes, the most that it ever had
    threads: int  # the most that were seen
    back: tuple[float, float] | None = None  # from a killed server's start until all were there

    @property
    def line(self) -> str:
        each = 1000 / self.clients
        back = "" if self.back is None else f"{self.back[0]:>10.1f} s{self.back[1]:>10.1f} s"
        return (
            f"{self.clients:>8,}{self.rounds:>8}{self.first:>10.1f} s{self.seconds * 1000:>10.0f} "
            f"ms{self.seconds * each:>9.2f} ms{self.cpu * each:>9.2f} ms"
            f"{self.memory / 2**20:>8.0f} MiB{self.threads:>9}{back}"
        )


HEADER = (
    f"{'clients':>8}{'rounds':>8}{'first':>12}{'a round':>13}{'a client':>12}{'CPU each':>12}"
    f"{'memory':>12}{'threads':>9}"
)
BACK = f"{'all back':>12}{'its CPU':>12}"


def measure(
    directory: Path, clients: int, rounds: int, processes: int, kill: bool = False
) -> Crowd:
    """Run `rounds` of one server and this many clients, which share a few processes.

    `kill`: half-way the server is killed, and all come back to it at once.
    """
    shape = Shape(1, clients, "mnist-cnn")
    federation(prepared(directory, shape, rounds), directory, on_loopback(1))
    spawn = multiprocessing.get_context("spawn")
    shares = [range(n, clients, processes) for n in range(processes)]
    crowd = [spawn.Process(target=_crowd, args=(directory, share)) for share in shares]
    edge = Processes(directory, ["edge-0"])
    began = time.monotonic()
    edge.start("edge-0")
    watch = _Watch(directory, edge, clients, WARM + rounds // 2 if kill else None)
    try:
        for each in crowd:
            each.start()
        watch.until_over(crowd, began + PATIENCE)
    finally:
        edge.stop()
        for each in crowd:
            each.terminate()
            joined(each)
    found = records(directory)
    times = laps(found, WARM)
    begins = time.time() - (time.monotonic() - began)
    first = float(found[0][0]["ended"]) - begins
    seen = watch.cpu_per_round, watch.most, watch.threads, watch.back
    return Crowd(clients, times.rounds, first, times.seconds, *seen)


class _Watch:
    """Looks at a server's process until all its rounds are done."""

    def __init__(self, directory: Path, edge: Processes, clients: int, kill: int | None) -> None:
        self._directory, self._edge, self._kill = directory, edge, kill
        self._process = edge.pids()["edge-0"]
        self.most = self.threads = 0
        self.back: tuple[float, float] | None = None  # seconds, and those of the server's work
        self._killed: tuple[int, float] | None = None  # what its log had, and when it was back
        self._log = directory / NODES / "edge-0" / AUDIT
        self._clients = clients
        self._marks: list[tuple[int, float]] = []  # rounds done, and the work until then

    @property
    def cpu_per_round(self) -> float:
        steady = [mark for mark in self._marks if mark[0] >= WARM]
        if len(steady) < 2 or steady[-1][0] == steady[0][0]:
            return float("nan")
        return (steady[-1][1] - steady[0][1]) / (steady[-1][0] - steady[0][0])

    def _all_there(self) -> bool:
        """Has every client called since the server was killed? Its audit log tells."""
        assert self._killed is not None
        with self._log.open("rb") as file:
            file.seek(self._killed[0])
            called = {json.loads(line)["who"] for line in file if line.endswith(b"\n")}
        return sum("/client/" in who for who in called) == self._clients

    def until_over(self, crowd: Sequence[object], end: float) -> None:
        pause = threading.Event()
        while time.monotonic() < end:
            with suppress(OSError):
                status = Path(f"/proc/{self._process}/status").read_text()
                numbers = dict(line.split(":", 1) for line in status.splitlines())
                self.most = int(numbers["VmHWM"].split()[0]) * 1024
                self.threads = max(self.threads, int(numbers["Threads"]))
            told = next(iter(read_statuses(self._directory, time.time())), {})
            done = int(told.get("round", 0))
            if not self._marks or done > self._marks[-1][0]:
                self._marks.append((done, cpu(self._process)))
            if self._killed is not None and self.back is None and self._all_there():
                self.back = time.monotonic() - self._killed[1], cpu(self._process)
            if told.get("over"):
                return
            if self._kill is not None and self._killed is None and done >= self._kill:
                self._edge.kill("edge-0")
                self._edge.start("edge-0")
                self._process, self._marks = self._edge.pids()["edge-0"], []
                self._killed = (self._log.stat().st_size, time.monotonic())
            pause.wait(0.2)
        raise SystemExit(f"the rounds are not done after {PATIENCE:g} s: see {self._directory}")


def _crowd(directory: Path, clients: Sequence[int]) -> None:
    """One process of many clients."""
    torch.set_num_threads(1)
    with suppress(KeyboardInterrupt):
        completed(_all(directory, clients), PATIENCE)


async def _all(directory: Path, clients: Sequence[int]) -> None:
    from sdfeel.live.client import Client
    from sdfeel.live.failover import Failover
    from sdfeel.live.process import NodeSetting, links
    from sdfeel.live.statements import ClientDesk
    from sdfeel.live.transport.connections import allow_descriptors
    from sdfeel.live.trust.identity import Identity, Wallet

    allow_descriptors(len(clients))
    homes = [directory / NODES / f"client-{n}" for n in clients]
    shared, _ = federation_of(read_node(homes[0] / NODE))
    found = []
    for n, home in zip(clients, homes, strict=True):
        node = read_node(home / NODE)
        peers = {int(name.removeprefix("edge-")): where for name, where in node.peers.items()}
        identity = Identity.load(Path(node.identity))
        setting = NodeSetting(identity, home, peers, Path(node.allow))
        ways = Failover(links(shared, setting, [0]))
        client = Client(shared.schema, n, int(shared.net.samples[n]), ways, _unchanged)
        client.desk = ClientDesk.of(Wallet(identity).current, shared.digest, home, n)
        found.append(client)
    door = asyncio.Semaphore(AT_ONCE)

    async def life(client: Client) -> None:
        async with door:  # processors of a thousand devices share those of this machine
            await client.failover.link(0).insist("here", {})
        await client.run()

    await asyncio.gather(*map(life, found))


def _unchanged(task: Any) -> Any:
    return task.start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default="10,100,1000", help="numbers of clients, one by one")
    parser.add_argument("--rounds", type=int, default=10, help="that are measured, for each")
    parser.add_argument("--processes", type=int, default=4, help="that the clients share")
    words = "kill the server half-way, so that all its clients come back at once"
    parser.add_argument("--kill", action="store_true", help=words)
    chosen = parser.parse_args()
    print(HEADER + (BACK if chosen.kill else ""), flush=True)
    for clients in map(int, chosen.clients.split(",")):
        with TemporaryDirectory() as directory:
            many = min(chosen.processes, clients)
            place = Path(directory) / "crowd"
            found = measure(place, clients, chosen.rounds, many, chosen.kill)
            print(found.line, flush=True)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
