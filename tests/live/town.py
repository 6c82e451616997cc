"""Any experiment, deployed in one process: nodes from the files that `deploy init` writes, messages
in memory, and an event loop whose seconds cost nothing.

Messages are lost and doubled, servers and clients are killed. `drawn` combines the options of
`tests/pairs` at random on networks of other sizes; `python -m tests.live.town SEED FIRST LAST`
tries many.
"""

import asyncio
import json
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sdfeel.core.errors import SdfeelError
from sdfeel.core.run_files import EPOCHS, NODE, NODES, STATE
from sdfeel.deploy.files import NodeFile, read_node
from sdfeel.deploy.node import federation_of, own_engine, own_examples, trainer
from sdfeel.deploy.node_directories import make, on_loopback
from sdfeel.deploy.verify import Verifier
from sdfeel.deploy.verify_copies import ClientCopies, shared_files
from sdfeel.deploy.verify_report import Verification
from sdfeel.engine.base import ModuleEngine
from sdfeel.engine.combine import mean
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.live.client import Client
from sdfeel.live.edge.server import Edge
from sdfeel.live.edge.server_statements import Recorder
from sdfeel.live.epochs import EpochBook, SignedNetwork, in_files, placed, proven
from sdfeel.live.failover import Failover
from sdfeel.live.federation import by_torch
from sdfeel.live.protocol import Answer, Header, Link, Who
from sdfeel.live.statements import ClientDesk
from sdfeel.live.store import Store
from sdfeel.live.transport import Reply
from sdfeel.live.transport.errors import Unreachable
from sdfeel.live.trust.identity import Identity
from sdfeel.run.drive import fingerprint
from tests.live import timeless
from tests.pairs.options import FACTORS, Choice, place

LOST, DOUBLED, UNANSWERED = 0.02, 0.06, 0.03  # shares of all messages
DELAYS = (0.001, 0.01, 0.05)
PATIENCE = 2000.0  # of the loop's seconds, for a whole run
ONLY_SIMULATED = (
    "outages",
    "schedule",
    "fading",
    "late",
    "stop",
    "counted",
    "evaluation",
    "preset",
)
OTHERS = sorted(FACTORS.keys() - {"scheme", "engine", "graph", "attack", *ONLY_SIMULATED})


@dataclass
class Town:
    """All nodes of a deployment whose files are in `directory`."""

    directory: Path
    dice: random.Random
    kills: int = 0
    edges: dict[int, Edge] = field(default_factory=dict)
    _jobs: "dict[int, list[asyncio.Future[Any]]]" = field(default_factory=dict)
    _clients: "dict[int, asyncio.Future[None]]" = field(default_factory=dict)
    _engines: dict[int, ModuleEngine] = field(default_factory=dict)
    _done: bool = False
    rounds: int = 0

    def __post_init__(self) -> None:
        self.federation, self.module = federation_of(self._node("edge-0"))

    def go(self) -> Tensor:
        """Run to the end; the mean of the servers' models."""
        try:
            return timeless.run(self._run(), PATIENCE)
        finally:
            for engine in self._engines.values():
                engine.close()

    def _node(self, name: str) -> NodeFile:
        return read_node(self.directory / NODES / name / NODE)

    def _identity(self, name: str) -> Identity:
        return Identity.load(self.directory / NODES / name / "identity")

    @cached_property
    def _authority(self) -> bytes:
        return self._identity("edge-0").ca

    async def _run(self) -> Tensor:
        servers = self.federation.net.servers
        changes = any((self.directory / EPOCHS).glob("*.json"))
        who = [n for n, reach in enumerate(self.federation.net.reach) if reach or changes]
        lives = [asyncio.ensure_future(self._life(n)) for n in who]
        try:
            while True:
                for d in servers:
                    if d not in self.edges:
                        self._start(d)
                for job in (*(self._jobs[d][0] for d in servers), *lives):
                    if job.done() and not job.cancelled():
                        job.result()
                edges = self.edges.values()
                if all(edge.known.over and edge.exchange.settled() for edge in edges):
                    break
                if self._clients and self._strikes():
                    self._clients[self.dice.choice(sorted(self._clients))].cancel()
                await asyncio.sleep(0.01)
            models = [self._model(self.edges[d]) for d in servers]
            self.rounds = self.edges[0].known.k
            return mean(self.edges[0].federation.net.mass.tolist(), torch.stack(models))
        finally:
            self._done = True
            for life in lives:
                life.cancel()
            await asyncio.gather(*lives, return_exceptions=True)
            for d in list(self.edges):
                self._kill(d)
            await asyncio.sleep(0)

    def _model(self, edge: Edge) -> Tensor:
        return self.federation.own_model(edge.returned(edge.exchange.current()))

    def _strikes(self) -> bool:
        hit = self.kills > 0 and self.dice.random() < 0.03
        self.kills -= hit
        return hit

    def _start(self, d: int) -> None:
        name, me = f"edge-{d}", Who("edge", d)
        node, home, who = self._node(name), self.directory / NODES / name, self._identity(name)
        federation, _ = federation_of(node)
        store, policy = Store(home / STATE, durable=False), node.policy.policy()
        peers = {n: self._link(me, n) for n in federation.net.servers if n != d}
        book = EpochBook(store, federation.digest, lambda: self._authority, self.directory / EPOCHS)
        recorder = Recorder.of(lambda: who, federation, store, d, home, policy)
        epochs = book if federation.synchronous else None
        edge = Edge(federation, d, store, peers, policy, epochs=epochs, recorder=recorder)
        for cluster in edge.clusters:
            cluster.clock = cluster.wall = asyncio.get_running_loop().time
        self.edges[d], self._jobs[d] = edge, [asyncio.ensure_future(edge.run())]

    def _kill(self, d: int) -> None:
        edge = self.edges.pop(d, None)
        if edge is not None:
            delivery = getattr(edge.exchange, "_delivery", None)
            for job in (*self._jobs.pop(d), *([delivery] if delivery is not None else [])):
                if job is not asyncio.current_task():
                    job.cancel()
            edge.store.close()

    async def _life(self, n: int) -> None:
        """A client that was killed is started again."""
        while True:
            self._clients[n] = asyncio.ensure_future(self._client(n))
            try:
                return await self._clients[n]
            except asyncio.CancelledError:
                if self._done:
                    self._clients[n].cancel()
                    raise

    async def _client(self, n: int) -> None:
        name, federation = f"client-{n}", self.federation
        home, who = self.directory / NODES / name, self._identity(name)
        if n not in self._engines:
            node = self._node(name)
            self._engines[n] = own_engine(node, n, own_examples(node, n), self.module)
        member = federation.member(n)
        train = by_torch(trainer(self._engines[n]))
        samples = int(federation.net.samples[n])
        client = Client(member.schema, n, samples, Failover({}), train, member.coding)
        client.desk = ClientDesk.of(lambda: who, federation.digest, home, n)
        client.most = member.most
        with ExitStack() as stack:
            if member.keeps:
                store = stack.enter_context(closing(Store(home / STATE, durable=False)))
                client.kept, client.rows = member.memory(store), tuple(member.rows)
                client.guard, client.private = member.guard, member.private
                client.noisy_steps, client.masking = member.noisy_steps, member.masking
                packing = federation.packing
                client.secret = 0 if packing is None else packing.seed  # as in a simulation
            await self._work(n, client, member)

    async def _work(self, n: int, client: Client, member: Any) -> None:
        """As `run_client` does, without a network."""
        later = in_files(self.directory / EPOCHS, self._authority)
        found = placed(member, {}, later, n)
        while found is not None:
            now = found[0]
            ways = {d: self._link(Who("client", n), d) for d in now.servers}
            client.failover, client.epoch = Failover(ways, {}), now.epoch
            news: list[SignedNetwork] = []
            while not news:
                client.outdated = None
                await client.run()
                if client.outdated is None:
                    return
                news = await proven(client, ways, self._authority, member.digest)
            newest = news[-1]
            still = [each for each in later if each.number > newest.number]
            left = replace(now, servers=(), epoch=newest.number)
            found = placed(left, {}, [newest, *still], n)

    def _link(self, who: Who, target: int) -> Link:
        federation = self.federation
        port = _Port(lambda *message: self._deliver(who, target, *message))
        return Link(f"edge-{target}", port, federation.digest, federation.about, str(who))

    async def _deliver(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        await asyncio.sleep(self.dice.choice(DELAYS))
        fate = self.dice.random()
        if fate < LOST:
            raise Unreachable("the message was lost")
        for _ in range(2 if fate < LOST + DOUBLED else 1):
            answer = await self._once(who, target, kind, header, body)
        if fate > 1 - UNANSWERED:
            raise Unreachable("the answer was lost")
        if self._strikes():
            self._kill(target)
        return answer

    async def _once(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        edge = self.edges.get(target)
        if edge is None:
            raise Unreachable("nobody there")
        copied = json.loads(json.dumps(header, allow_nan=False))
        job = asyncio.ensure_future(edge.handle(who, kind, copied, body))
        self._jobs[target].append(job)
        try:
            found, content = await job
        except asyncio.CancelledError:
            if self.edges.get(target) is edge:
                job.cancel()
                raise
            raise Unreachable("it was killed") from None
        except sqlite3.ProgrammingError:  # its store was closed
            raise Unreachable("it was killed") from None
        finally:
            with suppress(KeyError, ValueError):
                self._jobs[target].remove(job)
        return json.loads(json.dumps(found, allow_nan=False)), content


@dataclass(frozen=True)
class _Port:
    deliver: Callable[..., Any]

    async def call(
        self,
        kind: str,
        header: Header,
        body: bytes | None = None,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> Reply:
        try:
            async with asyncio.timeout(timeout):
                return Reply(*await self.deliver(kind, header, body))
        except TimeoutError:
            raise Unreachable("no answer in time") from None


@dataclass(frozen=True)
class Draw:
    """A combination of options, and the network on which it is tried."""

    choice: Choice
    clients: int
    servers: int
    more: tuple[str, ...]
    kills: int
    seed: str

    def settings(self, files: Path) -> list[str]:
        where = place(files, self.clients, self.servers)
        return [*where.settings(self.choice), *self.more]


def drawn(seed: str, number: int) -> Draw:
    """Combination `number` of a seed: the same every time."""
    name = f"town {seed} {number}"
    dice = random.Random(name)
    servers = dice.choice([1, 2, 2, 3, 3, 4, 5])
    clients = dice.choice([servers, servers + 1, 2 * servers, 2 * servers + 1, 3 * servers])
    chosen = dice.sample(OTHERS, dice.randint(1, 4))
    choice = {factor: dice.choice(list(FACTORS[factor])[1:]) for factor in chosen}
    choice = {"scheme": dice.choice(list(FACTORS["scheme"])), **choice}
    if dice.random() < 0.3:
        choice["engine"] = "native"
    more: tuple[str, ...] = (
        f"seed={dice.randrange(10**6)}",
        f"training.iterations={dice.choice([4, 6, 8, 12])}",
        f"data.classes_per_client={dice.choice([4, 5, 10])}",
    )
    if choice.get("mixing") != "base":  # which needs its own graph
        more += (f"network.graph={dice.choice(['ring', 'path', 'star', 'complete'])}",)
    return Draw(choice, max(2, clients), servers, more, dice.choice([0, 3, 8]), name)


def tried(draw: Draw) -> str | None:
    """The promises that do not hold. SdfeelError if the experiment cannot be deployed."""
    with tempfile.TemporaryDirectory(prefix="town-") as temporary:
        files, run = Path(temporary) / "files", Path(temporary) / "run"
        ready = prepare(load(None, draw.settings(files)))
        try:
            make(ready, run, on_loopback(draw.servers))
            town = Town(run, random.Random(f"messages {draw.seed}"), draw.kills)
            model = fingerprint(town.go())
            if not town.federation.synchronous:  # no simulation is its twin
                return None
            simulation = ready.simulation()
            for _ in islice(simulation, town.rounds):
                pass
            expected = fingerprint(simulation.model())
        finally:
            ready.engine.close()
        if model != expected:
            return f"the model is {model[:12]}, the simulator's {expected[:12]}"
        found = verified(run)
        if found.findings:
            return f"honest nodes are blamed: {found.findings[0].sentence()}"
        return None


def verified(directory: Path) -> Verification:
    """What `sdfeel deploy verify` finds, without a published model."""
    node = shared_files(directory)
    federation, module = federation_of(node)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        copies = ClientCopies(directory, node, module, {}, Path(temporary), stack)
        return Verifier(directory, federation, copies.made, Path(temporary), stack).run(None, None)


def main() -> int:
    seed, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    wrong = deployed = 0
    torch.set_num_threads(1)
    for number in range(first, last):
        draw = drawn(seed, number)
        try:
            found = tried(draw)
        except SdfeelError:
            continue
        deployed += 1
        if found is not None:
            wrong += 1
            print(f"{number}: {draw}: {found}", flush=True)
    print(f"{last - first} drawn, {deployed} deployed, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
