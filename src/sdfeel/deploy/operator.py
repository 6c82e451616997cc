"""The operator's desk: follows a federation wherever it runs, and writes a run's directory."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from safetensors.torch import save

from sdfeel.core import run_files
from sdfeel.core.errors import SdfeelError
from sdfeel.core.events import Event, Finished
from sdfeel.core.network import Network
from sdfeel.core.run_files import NODE, NODES, write_atomic
from sdfeel.deploy.files import peers_of, read_node
from sdfeel.deploy.make import deployed
from sdfeel.deploy.membership import OPERATOR, versions
from sdfeel.deploy.node import federation_of
from sdfeel.deploy.replay import write_arrivals
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.live.federation import Federation
from sdfeel.run import store

TICK = 0.05  # seconds between two checks whether to leave


class Operator:
    """Iterate over it as over a simulated run. Leaving does not disturb the federation."""

    def __init__(
        self,
        deployment: Path,  # what `deploy init` wrote
        directory: Path,  # of the run
        stop: bool = False,  # the edge servers, at the end
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
        from sdfeel.deploy.follow import Follower
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
