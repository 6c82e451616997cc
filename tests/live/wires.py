"""Links between edge servers that can be cut and mended: a small TCP proxy for each direction."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from sdfeel.core.run_files import NODE, NODES
from sdfeel.deploy.files import peers_of, read_node, write_node
from tests.waiting import joined

T = TypeVar("T")
CHUNK = 1 << 16


class Wire:
    """Forwards connections to an address. While it is cut, bytes wait and nobody is told.

    A connection that was begun meanwhile comes to nothing.
    """

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._whole = asyncio.Event()
        self._whole.set()
        self._busy: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def stop(self) -> None:
        self._server.close()
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._forward(reader, writer))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._whole.is_set():
                await self._both_ways(reader, writer)
            else:
                await self._whole.wait()
        finally:
            writer.transport.abort()

    async def _both_ways(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            ways = [self._pump(reader, far_writer), self._pump(far_reader, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                far_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()


class Wires:
    """All links between the edge servers of a local deployment, in a thread of their own."""

    def __init__(self, directory: Path, servers: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._wires: dict[tuple[int, int], Wire] = {}
        for d in range(servers):
            home = directory / NODES / f"edge-{d}"
            node = read_node(home / NODE)
            peers = {
                f"edge-{other}": self._run(self._wire(d, other, address))
                for other, address in peers_of(node).items()
            }
            write_node(home, "edge", node.model_copy(update={"peers": peers}))

    def isolate(self, server: int) -> None:
        """Nothing passes between this server and the others any more."""
        for pair, wire in self._wires.items():
            if server in pair:
                self._loop.call_soon_threadsafe(wire.cut)

    def mend(self) -> None:
        for wire in self._wires.values():
            self._loop.call_soon_threadsafe(wire.mend)

    def close(self) -> None:
        for wire in self._wires.values():
            self._run(wire.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        joined(self._thread)
        self._loop.close()

    async def _wire(self, source: int, target: int, address: str) -> str:
        wire = Wire(address)
        self._wires[source, target] = wire
        return await wire.start()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)
