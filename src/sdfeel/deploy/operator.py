"""The operator: follows a federation wherever it runs, and writes a run's directory."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from sdfeel.core import run_files
from sdfeel.core.arrays import Floats, floats
from sdfeel.core.errors import SdfeelError
from sdfeel.core.events import Evaluated, Event, Finished, Round, Warned
from sdfeel.core.network import Network
from sdfeel.core.run_files import NODE, NODES, write_atomic
from sdfeel.deploy.files import peers_of, read_node
from sdfeel.deploy.membership import OPERATOR, versions
from sdfeel.deploy.node import federation_of
from sdfeel.deploy.node_directories import deployed
from sdfeel.deploy.privacy_spent import Releases
from sdfeel.deploy.records import Record, Records
from sdfeel.deploy.replay import write_arrivals
from sdfeel.engine.combine import mean
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.live.edge.journal import RoundTally, notices, started
from sdfeel.live.federation import Federation, grown
from sdfeel.live.protocol import Answer, Link
from sdfeel.live.transport.errors import Unreachable
from sdfeel.run import store
from sdfeel.run.drive import fingerprint

TICK = 0.05  # seconds between two checks whether to leave


class Operator:
    """Iterate over it as over a simulated run; to stop does not disturb the federation."""

    def __init__(
        self,
        deployment: Path,  # the directory that `deploy init` wrote
        directory: Path,  # of the run
        stop: bool = False,  # stop the edge servers at the end?
        ready: Prepared | None = None,
        trouble: Callable[[], SdfeelError | None] = lambda: None,
    ) -> None:
        self._node = read_node(deployment / NODES / OPERATOR / NODE)
        self._home = deployment / NODES / OPERATOR
        self.directory, self._stop_edges, self._trouble = directory, stop, trouble
        self.ready = prepare(load(Path(self._node.experiment))) if ready is None else ready
        if directory != deployment:
            store.create(directory)
        self.finished = self._leaving = False

    def leave(self) -> None:
        """Stop following soon."""
        self._leaving = True

    def __iter__(self) -> Iterator[Event]:
        with store.locked(self.directory):
            text = deployed(self.ready).text().encode()
            write_atomic(self.directory / run_files.EXPERIMENT, text)
            log = store.Log(self.directory)
            try:
                for event in self._events():
                    log.append(event)
                    self.finished = isinstance(event, Finished)
                    yield event
            finally:
                log.secure()
                log.close()
                self.ready.engine.close()

    def _events(self) -> Iterator[Event]:
        from sdfeel.live.process import NodeSetting, links
        from sdfeel.live.trust.identity import Identity

        federation, _ = federation_of(self._node)
        identity = Identity.load(Path(self._node.identity))
        setting = NodeSetting(identity, self._home, peers_of(self._node), Path(self._node.allow))
        with asyncio.Runner() as runner:
            runner.get_loop()
            ways = links(federation, setting, list(federation.net.servers))
            follower = Follower(self.ready, federation, ways, partial(self._net, federation))
            stream = follower.events()
            while not self._leaving:
                event = runner.run(self._next(stream))
                if event is None:
                    break
                if isinstance(event, Finished):
                    assert follower.model is not None
                    weights = self.ready.engine.state_dict(follower.model)
                    write_atomic(self.directory / run_files.MODEL, save(weights))
                    if follower.records.arrivals and follower.records.repeatable:
                        write_arrivals(self.directory, follower.records.arrivals)
                    if self._stop_edges:
                        runner.run(follower.stop())
                yield event
            with suppress(RuntimeError):
                runner.run(stream.aclose())

    def _net(self, federation: Federation, epoch: int) -> Network | None:
        """The network of an epoch, from the operator's own files; None if there is no such file."""
        for version in versions(Path(self._node.network).parent):
            if version.number == epoch:
                return federation.renewed(version).net
        return None

    async def _next(self, stream: AsyncGenerator[Event, None]) -> Event | None:
        waiting = asyncio.ensure_future(anext(stream))
        while not self._leaving and self._trouble() is None:
            done, _ = await asyncio.wait([waiting], timeout=TICK)
            if done:
                try:
                    return waiting.result()
                except StopAsyncIteration:
                    return None
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        error = self._trouble()
        if error is not None:
            raise error
        return None


DOUBT = 2.0  # seconds without an answer after which the operator asks whether a server was given up

UNKNOWN = "reports epoch {}, of which there is no file here, and others do not: look at that server"


@dataclass
class Follower:
    """Turns what edge servers report into the events of a run. It keeps nothing on disk."""

    ready: Prepared
    federation: Federation
    edges: Mapping[int, Link]
    net_of: Callable[[int], Network | None] | None = None  # by its epoch; None: there is no file
    model: Tensor | None = None  # the last that was measured
    _accuracy: float | None = None
    _over: str | None = None  # why the scheme has ended the run
    _before: dict[int, Record] = field(default_factory=dict)  # each server's last record
    _heard: dict[int, int] = field(default_factory=dict)  # when that came, in the order of records
    _moment: int = 0
    _unknown: set[int] = field(default_factory=set)  # epochs without a file here
    _warned: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        links = self.federation.net.links
        near = {d: np.flatnonzero(links[d]).tolist() for d in self.edges}
        self.records = Records(self.edges, self.federation.synchronous, near)
        self._tally = RoundTally(len(self.federation.net.present))
        budget, iterations = self.ready.budget, self.federation.iterations
        self._releases = None if budget is None else Releases(budget, self._net(), iterations)
        if self.federation.synchronous and self.net_of is not None:
            self.records.members = self._members

    def _members(self, epoch: int) -> list[int] | None:
        net_of = self.net_of
        net = self.federation.net if not epoch or net_of is None else net_of(epoch)
        if net is None:
            self._unknown.add(epoch)
        return None if net is None else [int(d) for d in net.present]

    async def events(self) -> AsyncGenerator[Event, None]:
        """Everything from the first round to the last."""
        for note in (*self.ready.foreign, *self.ready.notes):
            yield Warned(note)
        net = self.federation.net
        why = f"deployed on {len(net.servers)} servers and {len(net.samples)} clients"
        yield started(self.federation, self.ready.engine.name, why)
        yield self._measured(
            0, 0, 0.0, dict.fromkeys(self._members(0) or (), self.federation.initial)
        )
        number, last = 0, None
        async for records in self.records.in_order():
            for notice in self._notices(records):
                yield notice
            if self.records.members is not None:
                self._tally.keep(self._members(self.records.epoch) or ())
            last = self._tally.round(records)
            self._count(records)
            number = last.number
            yield last
            k = 1 + max(record["k"] for record in records.values())
            if self._due(k if self.federation.synchronous else number):
                models = await self._models(records, k)
                if models is None:
                    yield Warned(f"the models of round {number} are no longer kept: not measured")
                else:
                    told = self._measured(number, last.iterations, last.seconds, models)
                    yield replace(told, metrics={**told.metrics, **last.figures})
            said = (record.get("over") for record in records.values())
            self._over = next((over for over in said if over), self._over)
            reason = self._reason(last)
            if reason is not None:
                break
        assert last is not None  # an experiment has at least one iteration
        yield Finished(
            number=number,
            iterations=last.iterations,
            seconds=last.seconds,
            bytes=self._tally.bytes,
            joules=0.0,
            reason=self._reason(last) or self._over or "all iterations done",
            model_sha256=fingerprint(self._final()),
        )

    def _count(self, records: Mapping[int, Record]) -> None:
        """Count what a round revealed about clients, or about their examples."""
        if self._releases is None:
            return
        net = self._net()
        if net is not self._releases.net:
            self._releases.move(net, min(record["k"] for record in records.values()))
        self._releases.count(records.values())

    async def stop(self) -> None:
        """Tell all servers to stop."""
        await asyncio.gather(
            *(self.edges[d].ask("stop", {}, seconds=5.0) for d in self.edges.keys() - self._gone()),
            return_exceptions=True,
        )

    def _final(self) -> Tensor:
        assert self.model is not None
        return self.model

    def _due(self, number: int) -> bool:
        return self.records.exhausted() or number % self.federation.measure_every == 0

    def _reason(self, last: Round) -> str | None:
        training = self.ready.experiment.training
        if training.max_seconds is not None and last.seconds >= training.max_seconds:
            return "time is up"
        goal = training.target_accuracy
        if goal is not None and self._accuracy is not None and self._accuracy >= goal:
            return "target accuracy reached"
        return None

    def _notices(self, records: Mapping[int, Record]) -> list[Warned]:
        """Warnings on who came and who went, and on servers in an unknown epoch."""
        told = []
        self._moment += 1
        for epoch in sorted(self._unknown - self._warned):
            self._warned.add(epoch)
            names = [f"edge-{d}" for d, each in records.items() if each.get("epoch", 0) == epoch]
            told.append(Warned(f"{' and '.join(names) or 'a server'} {UNKNOWN.format(epoch)}"))
        for d, record in records.items():
            self._heard[d] = self._moment
            told += [Warned(text) for text in notices(self._before.get(d), record)]
            self._before[d] = record
        return told

    async def _models(self, records: Iterable[int], k: int) -> dict[int, Tensor] | None:
        """The servers' models after k rounds, or, if asynchronous, now. None: no longer kept."""
        in_step = self.federation.synchronous
        kind, question = ("measured", {"round": k}) if in_step else ("current", {})

        async def one(d: int) -> Answer | None:
            call = asyncio.ensure_future(self.edges[d].insist(kind, question))
            try:
                while not (await asyncio.wait([call], timeout=DOUBT))[0]:
                    if await self._given_up(d):
                        return None
                return call.result()
            finally:
                call.cancel()

        asked = sorted(records if in_step else self.edges.keys() - self._gone())
        answers = await asyncio.gather(*(one(d) for d in asked))
        found = {d: answer for d, answer in zip(asked, answers, strict=True) if answer is not None}
        if not found or any(body is None for _, body in found.values()):
            return None
        return {
            d: self.federation.model(body or b"", header.get("sha256"))
            for d, (header, body) in found.items()
        }

    def _gone(self) -> set[int]:
        """Servers that another one has left out since their own last record."""
        return {
            d
            for other, record in self._before.items()
            for d in record["away"]
            if self._heard.get(d, 0) < self._heard[other]
        }

    async def _given_up(self, d: int) -> bool:
        """Does another server continue without this one?"""
        for other, link in self.edges.items():
            if other != d:
                with suppress(Unreachable):
                    header, _ = await link.ask("status", {}, seconds=DOUBT)
                    absent = header.get("absent")
                    if isinstance(absent, list) and f"edge-{d}" in absent:
                        return True
        return False

    def _mass(self, servers: Collection[int]) -> Floats:
        """(D,) each server's share of the examples, with the guests that it has now."""
        net = self._net()
        told = {d: self._before[d]["guests"] if d in self._before else () for d in servers}
        guests = {d: [n for n in each if n < len(net.samples)] for d, each in told.items()}
        if len(servers) == len(net.present) == len(net.servers) and not any(guests.values()):
            return net.mass
        sizes = np.array([grown(net, d, guests[d]) for d in servers])
        return floats(sizes / sizes.sum())

    def _net(self) -> Network:
        """The network of the newest round that was reported."""
        epoch = self.records.epoch
        found = None if not epoch or self.net_of is None else self.net_of(epoch)
        return self.federation.net if found is None else found

    def _grouped(self, number: int, iterations: int) -> dict[str, float]:
        """The metrics per client and per cluster, if they are due."""
        groups, model = self.ready.groups, self._final()
        if groups is None or not (self.records.exhausted() or groups.due(number)):
            return {}
        return groups.measured(lambda client: model, iterations)

    def _measured(
        self, number: int, iterations: int, seconds: float, found: Mapping[int, Tensor]
    ) -> Evaluated:
        mass, models = self._mass(found), torch.stack(list(found.values()))
        self.model = mean(mass.tolist(), models)
        distances = (models - self.model).double().norm(dim=1).numpy()
        scores = self.ready.engine.evaluate(self.model)
        self._accuracy = scores.accuracy
        return Evaluated(
            number=number,
            iterations=iterations,
            seconds=seconds,
            bytes=self._tally.bytes,
            joules=0.0,
            loss=scores.loss,
            test_loss=scores.test_loss,
            accuracy=scores.accuracy,
            spread=float(np.sqrt(mass @ distances**2)),
            metrics={
                **scores.metrics,
                **self.ready.also_measured(self.model),
                **self._grouped(number, iterations),
                **({} if self._releases is None else self._releases.epsilons()),
            },
            distances=tuple(distances.tolist()),
            confusion=self.ready.confusion(self.model) if self.records.exhausted() else (),
        )
