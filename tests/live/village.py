"""A federation in one process and one event loop: real nodes and stores, messages by memory.

Its servers can be killed at any write to the disk, and messages can be lost or doubled.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.network import Network
from sdfeel.core.run_files import NODES
from sdfeel.core.scheme import Local, Scheme
from sdfeel.core.seeds import rng
from sdfeel.core.sparse import Sparse
from sdfeel.engine.base import Scores, Task
from sdfeel.engine.combine import mean
from sdfeel.engine.messages import Packing, SecureSum
from sdfeel.live.client import Client
from sdfeel.live.edge.policy import PATIENT, Policy
from sdfeel.live.edge.server import Edge
from sdfeel.live.edge.server_statements import Recorder
from sdfeel.live.epochs import EpochBook
from sdfeel.live.failover import Failover, refuges_of
from sdfeel.live.federation import Federation, by_torch
from sdfeel.live.protocol import Answer, Handler, Header, Link, Who
from sdfeel.live.statements import ClientDesk
from sdfeel.live.store import Store
from sdfeel.live.transport import Reply
from sdfeel.live.transport.errors import Unreachable
from sdfeel.live.trust.identity import Identity, create_authority, issue
from sdfeel.sim.simulate import Simulation
from tests.live import timeless

T = TypeVar("T")
SIZE = 12
RING = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
PATH = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])


class Killed(BaseException):
    """Stands for kill -9 in a test: no handler of the program may catch it."""


@dataclass(frozen=True)
class NoisyEngine:
    """Steps towards a client's own centre, with noise that belongs to (client, step)."""

    clients: int
    seed: int = 7
    name: str = "noisy"

    def initial(self) -> Tensor:
        return torch.zeros(SIZE)

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        for task in tasks:
            model = task.start.clone()
            for step in range(task.first, task.first + task.steps):
                noise = rng(self.seed, "noise", task.client, step).standard_normal(SIZE)
                goal = torch.from_numpy(noise + task.client).float()
                slope = model - goal if task.shift is None else model - goal + task.shift
                slope += task.pull * (model - task.start)
                model -= 0.1 * task.rate * slope
            yield model

    def evaluate(self, model: Tensor) -> Scores:
        return Scores(0.0, 0.0, None)


def network(links: Any = PATH, overlap: bool = False) -> Network:
    """Six clients of different sizes around three servers."""
    home = [0, 0, 1, 1, 2, 2]
    reach = [(d, (d + 1) % 3) if overlap and n % 2 else (d,) for n, d in enumerate(home)]
    return Network(np.array([30, 10, 20, 40, 25, 15]), tuple(reach), Sparse.of(links))


def sums_of(net: Network) -> SecureSum:
    """Clients hide their updates in the sums of their clusters."""
    mass = np.array([net.samples[net.home == d].sum() for d in net.home])
    return SecureSum(tuple((net.samples / mass).tolist()), int(np.bincount(net.home).max()))


RATES: Mapping[Any, float] = dict.fromkeys(
    ("client-server", "client-cloud", "server-server", "server-cloud"), 1e6
)
LOCAL = Local(rate=0.1)
COST = Cost(np.array([1.0, 2.0, 1.5, 1.0, 3.0, 2.5]), 32.0 * SIZE, RATES)


def decided(scheme: Scheme, net: Network, seed: int, packing: Packing | None) -> Decisions:
    """The decisions of all nodes; with masked sums, if messages are hidden in them."""
    found = Decisions.of(scheme, net, COST, seed, LOCAL)
    return found if packing is None or packing.sums is None else found.with_masked_sums


def simulated(scheme: Scheme, net: Network, rounds: int, packing: Packing | None = None) -> Tensor:
    """The simulator's model after this many rounds."""
    engine = NoisyEngine(len(net.samples))
    decisions = decided(scheme, net, engine.seed, packing)
    simulation = Simulation(decisions, engine, packing=packing)
    for _ in range(rounds):
        next(simulation)
    return simulation.model()


@dataclass
class Village:
    """All nodes of a small federation. `run` works until every server is done."""

    scheme: Scheme
    net: Network
    directory: Path
    iterations: int = 10
    policy: Policy = PATIENT
    policies: dict[int, Policy] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)  # nodes that never start
    given_up: set[int] = field(default_factory=set)  # servers that the others do without at once
    liars: dict[int, Handler] = field(default_factory=dict)  # servers that say what they like
    disturb: Callable[[str, str], str] = lambda caller, kind: "deliver"
    train: Callable[[Task], Tensor] | None = None
    moving: bool = False  # may clients of a dead server turn to another one?
    tell: Callable[[str], None] = lambda line: None
    packing: Packing | None = None
    signed: bool = False  # do nodes sign what they do? Then in directory/nodes
    arithmetic: str | None = None  # how clients say that torch rounds where they train
    book: Callable[[Store], EpochBook] | None = None  # what a server knows of epochs
    at_the_end: Callable[[], Awaitable[None]] | None = None  # while the servers still answer
    edges: dict[int, Edge] = field(default_factory=dict)
    ended: dict[int, Edge] = field(default_factory=dict)  # for a look at what they counted
    models: dict[int, Tensor] = field(default_factory=dict)  # at the end
    restarts: int = 0
    memories: dict[int, Store] = field(default_factory=dict)  # of clients that have one
    _jobs: "dict[int, list[asyncio.Task[Any]]]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        engine = NoisyEngine(len(self.net.samples))
        if self.train is None:
            self.train = lambda task: next(engine.train([task]))
        self.federation = Federation(
            digest="f" * 64,
            name="tried",
            decisions=replace(
                decided(self.scheme, self.net, engine.seed, self.packing),
                cloud=0,
                hubs=self.packing is None or self.packing.across is None,
            ),
            iterations=self.iterations,
            measure_every=1000,
            initial=engine.initial(),
            packing=self.packing,
        )

    def go(self) -> Tensor:
        """Run to the end; the weighted mean of the servers' models."""
        return timeless.run(self.run())

    async def run(self) -> Tensor:
        absent = {*self.away, *(f"edge-{d}" for d in self.liars)}
        servers = [d for d in self.federation.net.servers if f"edge-{d}" not in absent]
        for d in servers:
            self.start(d)
        clients = [
            asyncio.ensure_future(self.client_life(n))
            for n, reach in enumerate(self.federation.net.reach)
            if reach and f"client-{n}" not in self.away
        ]
        await self._until_done(servers)
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        self.models = {d: self.model(d) for d in servers}
        models = torch.stack(list(self.models.values()))
        self.ended = {d: self.edges[d] for d in servers}
        if self.at_the_end is not None:
            await self.at_the_end()
        for d in servers:
            self.crash(d)
        await asyncio.sleep(0)
        mass = self.federation.net.mass[servers]
        if len(mass) < len(self.federation.net.mass):  # else the simulator's own numbers
            mass = mass / mass.sum()
        return mean(mass.tolist(), models)

    async def _until_done(self, servers: list[int]) -> None:
        while True:
            for d in servers:
                if d not in self.edges:
                    self.start(d)
                    self.restarts += 1
                runner = self._jobs[d][0]
                if runner.done() and not runner.cancelled():
                    runner.result()
            if all(e.known.over and e.exchange.settled() for e in self.edges.values()):
                return
            await asyncio.sleep(0.002)

    def model(self, d: int) -> Tensor:
        edge = self.edges[d]
        return self.federation.own_model(edge.returned(edge.exchange.current()))

    def start(self, d: int) -> None:
        store = Store(self.directory / f"edge-{d}")
        peers = {n: self.link(Who("edge", d), n) for n in self.federation.net.servers if n != d}
        policy = self.policies.get(d, self.policy)
        try:
            edge = Edge(
                *(self.federation, d, store, peers, policy, self.tell),
                epochs=None if self.book is None else self.book(store),
                recorder=self._recorder(d, store, policy),
            )
        except Killed:
            store.close()
            return
        for cluster in edge.clusters:
            cluster.clock = cluster.wall = asyncio.get_running_loop().time
        self.edges[d] = edge
        for n in self.given_up - {d}:
            edge.exchange.absent.add(n)
        self._jobs[d] = []
        self._jobs[d].append(asyncio.ensure_future(self._living(d, edge.run)))

    def _recorder(self, d: int, store: Store, policy: Policy) -> Recorder | None:
        if not self.signed:
            return None
        who, home = self._identity("edge", d), self.directory / NODES / f"edge-{d}"
        return Recorder.of(lambda: who, self.federation, store, d, home, policy)

    def certify(self) -> None:
        """Give every client its certificate."""
        for n in range(len(self.net.samples)):
            self._identity("client", n)

    def _identity(self, role: str, number: int) -> Identity:
        """A node's key and certificate, made when it is first asked for."""
        authority = self.directory / "authority"
        if not authority.exists():
            create_authority(authority)
        home = self.directory / NODES / f"{role}-{number}" / "identity"
        if home.exists():
            return Identity.load(home)
        return issue(authority, f"{role}/{number}", ["localhost"], home)

    async def _living(self, d: int, life: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await life()
        except Killed:
            self.crash(d)
            return None

    def crash(self, d: int) -> None:
        """kill -9: whatever runs there ends at once, and memory is lost."""
        edge = self.edges.pop(d, None)
        if edge is None:
            return
        delivery = getattr(edge.exchange, "_delivery", None)
        for job in [*self._jobs.pop(d), *([delivery] if delivery is not None else [])]:
            if job is not asyncio.current_task():
                job.cancel()
        edge.exchange.absent.clear()
        edge.store.close()

    def client(self, n: int) -> Client:
        assert self.train is not None
        net = self.federation.net
        own, others = (
            {d: self.link(Who("client", n), d) for d in part}
            for part in (sorted(net.reach[n]), refuges_of(net, n) if self.moving else [])
        )
        failover = Failover(own, others, doubt=0.1)
        member = self.federation.member(n)
        client = Client(
            *(member.schema, n, int(net.samples[n]), failover, by_torch(self.train)),
            coding=member.coding,
        )
        client.most = member.most
        if member.keeps:
            self.memories[n] = Store(self.directory / f"client-{n}")
            client.kept, client.rows = member.memory(self.memories[n]), tuple(member.rows)
            client.guard, client.private = member.guard, member.private
            client.noisy_steps = member.noisy_steps
            client.masking = member.masking
            client.secret = self.packing.seed if self.packing is not None else 0  # a given secret
        if self.signed or client.masking is not None:
            who, home = self._identity("client", n), self.directory / NODES / f"client-{n}"
            agreed = self.federation.digest, home, n, self.arithmetic
            client.desk = ClientDesk.of(lambda: who, *agreed)
        return client

    async def client_life(self, n: int) -> None:
        """A client that was killed is started again."""
        while True:
            try:
                return await self.client(n).run()
            except Killed:
                self.restarts += 1
            finally:
                if n in self.memories:
                    self.memories.pop(n).close()

    def link(self, who: Who, target: int) -> Link:
        return Link(f"edge-{target}", _Port(self, who, target), self.federation.digest)

    async def deliver(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        """One message, as a network that may lose or double it would carry it."""
        await asyncio.sleep(0.01)
        fate = self.disturb(str(who), kind)
        if fate == "cut":
            raise Unreachable("the link is cut")
        times = 2 if fate == "twice" else 1
        for _ in range(times):
            answer = await self._once(who, target, kind, header, body)
        if fate == "lose the answer":
            raise Unreachable("the answer was lost")
        return answer

    async def _once(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        if target in self.liars:
            return await self.liars[target](who, kind, header, body)
        edge = self.edges.get(target)
        if edge is None:
            raise Unreachable("nobody there")
        copied = json.loads(json.dumps(header))
        answer = partial(edge.handle, who, kind, copied, body)
        job = asyncio.ensure_future(self._living(target, answer))
        self._jobs[target].append(job)
        try:
            found = await job
        except asyncio.CancelledError:
            if target in self.edges and self.edges[target] is edge:
                job.cancel()
                raise
            raise Unreachable("it was killed") from None
        finally:
            with suppress(KeyError, ValueError):
                self._jobs[target].remove(job)
        if found is None:
            raise Unreachable("it was killed")
        return found


@dataclass(frozen=True)
class Answering:
    """The far end of a link without a network: a function answers every call."""

    answer: Callable[[str, Header], Reply]

    async def call(
        self,
        kind: str,
        header: Header,
        body: bytes | None = None,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> Reply:
        return self.answer(kind, header)


@dataclass(frozen=True)
class _Port:
    village: Village
    who: Who
    target: int

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
                return Reply(*await self.village.deliver(self.who, self.target, kind, header, body))
        except TimeoutError:
            raise Unreachable("no answer in time") from None
