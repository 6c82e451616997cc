"""How fast a large model moves, and what idle connections cost."""

import asyncio
import multiprocessing
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from sdfeel.core.errors import RunError
from sdfeel.core.run_files import ALLOW
from sdfeel.live.transport.limits import Limits
from sdfeel.live.transport.peer import Peer
from sdfeel.live.transport.server import Caller, Server
from sdfeel.live.trust.allow_list import AllowList
from sdfeel.live.trust.identity import Identity, create_authority, issue

SIZES = {"64 B": 64, "0.09 MB": 87_360, "25 MB": 25_000_000}
LIMITS = Limits(bodies={"push": 25_000_000, "pull": 25_000_000})
STARTS = 60.0  # seconds within which a server must be ready
Served = tuple[str, list[Identity], int]  # an address, identities to call it with, a process id


@dataclass(frozen=True)
class CallSpeed:
    """The seconds of calls that carry a body one way."""

    kind: str  # push or pull
    size: str
    bytes: int
    best: float
    median: float

    @property
    def megabytes_per_second(self) -> float:
        return self.bytes / self.median / 1e6


def measure(calls: int = 200, large: int = 15) -> list[CallSpeed]:
    """Time pushes and pulls of every size; `large` is how many of 25 MB."""
    with served() as (address, clients, _):
        return asyncio.run(_measured(address, clients[0], calls, large))


@contextmanager
def served(clients: int = 1) -> Iterator[Served]:
    """A server in a separate process, and the identities that may call it."""
    with TemporaryDirectory() as directory:
        root = Path(directory)
        authority = create_authority(root / "authority")
        issue(authority, "edge/0", ["127.0.0.1"], root / "edge")
        found = [issue(authority, f"client/{n}", [], root / f"client-{n}") for n in range(clients)]
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        server = spawn.Process(target=_serve, args=(theirs, root), daemon=True)
        server.start()
        theirs.close()  # so that its end is noticed
        try:
            if not ours.poll(STARTS):
                raise RunError(f"the server to measure did not start within {STARTS:g} s")
            yield f"127.0.0.1:{ours.recv()}", found, server.pid or 0
        finally:
            with suppress(BrokenPipeError):
                ours.send("stop")
            server.join(10)
            server.kill()


async def _measured(address: str, client: Identity, calls: int, large: int) -> list[CallSpeed]:
    speeds = []
    async with Peer(address, client, "edge/0", LIMITS) as peer:
        for size, count in SIZES.items():
            body = os.urandom(count)
            for kind in ("push", "pull"):
                seconds = []
                for _ in range(2 + (large if count > 10**6 else calls)):
                    begun = time.perf_counter()
                    if kind == "push":
                        await peer.call(kind, {}, body, timeout=60)
                    else:
                        await peer.call(kind, {"bytes": count}, timeout=60)
                    seconds.append(time.perf_counter() - begun)
                warm = sorted(seconds[2:])
                speeds.append(CallSpeed(kind, size, count, warm[0], warm[len(warm) // 2]))
    return speeds


def _serve(pipe: Connection, directory: Path) -> None:
    asyncio.run(_serving(pipe, directory))


async def _serving(pipe: Connection, directory: Path) -> None:
    stored = os.urandom(max(SIZES.values()))
    parts = {count: stored[:count] for count in SIZES.values()}

    async def handle(
        caller: Caller, kind: str, header: dict[str, Any], body: bytes | None
    ) -> tuple[dict[str, Any], bytes | None]:
        return {}, parts[header["bytes"]] if kind == "pull" else None

    server = Server()
    allow = AllowList(directory / "authority" / ALLOW)
    me = Identity.load(directory / "edge")
    pipe.send(await server.start("127.0.0.1:0", me, allow, handle, LIMITS))
    await asyncio.to_thread(pipe.recv)
    await server.stop(0)


def main() -> None:
    from sdfeel.engine.base import cores  # with torch, which no server here needs

    print(f"{'':6}{'body':>9}{'best':>12}{'median':>12}{'speed':>14}")
    for speed in measure():
        rate = f"{speed.megabytes_per_second:,.0f} MB/s" if speed.bytes > 10**6 else ""
        print(
            f"{speed.kind:6}{speed.size:>9}{speed.best * 1000:9.2f} ms"
            f"{speed.median * 1000:9.2f} ms{rate:>14}"
        )
    print(f"{cores()} cores, load {os.getloadavg()[0]:.1f}")


IDLE = 200  # connections
TURNS, CALLS = 10, 40


@dataclass(frozen=True)
class Strain:
    """The cost of honest calls: their time, and the server's work, which load affects less."""

    seconds: float  # the median of a push and a pull
    cpu_seconds: float  # of the server, for each such pair


async def alternately(servers: Sequence[Served], calls: int) -> list[list[float]]:
    """Seconds of a round's worth of messages, a push and a pull of 0.09 MB, at each server in turn.

    So whatever else the machine does slows down all of them alike.
    """
    body = os.urandom(SIZES["0.09 MB"])
    seconds: list[list[float]] = [[] for _ in servers]
    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(Peer(address, clients[0], "edge/0", LIMITS))
            for address, clients, _ in servers
        ]
        for _ in range(calls + 1):
            for peer, found in zip(peers, seconds, strict=True):
                begun = time.perf_counter()
                await peer.call("push", {}, body, timeout=60)
                await peer.call("pull", {"bytes": len(body)}, timeout=60)
                found.append(time.perf_counter() - begun)
    return [found[1:] for found in seconds]  # the first one includes the handshake


def beside_strangers() -> tuple[Strain, Strain]:
    """Without and with idle connections: two servers, each of which gets these in turn."""
    found: tuple[list[float], list[float]] = ([], [])  # alone, beside
    work = [0.0, 0.0]
    with served() as one, served() as other:
        servers = (one, other)
        for turn in range(2 * TURNS):
            besieged = turn % 2
            strangers = idle_connections(servers[besieged][0], IDLE)
            before = [cpu(process) for *_, process in servers]
            seconds = asyncio.run(alternately(servers, CALLS))
            for n, (*_, process) in enumerate(servers):
                found[n == besieged].extend(seconds[n])
                work[n == besieged] += cpu(process) - before[n]
            for connection in strangers:
                connection.close()
    count = 2 * TURNS * (CALLS + 1)
    return Strain(median(found[0]), work[0] / count), Strain(median(found[1]), work[1] / count)


def idle_connections(address: str, count: int) -> list[socket.socket]:
    """Strangers that connect and then say nothing."""
    host, port = address.split(":")
    return [socket.create_connection((host, int(port))) for _ in range(count)]


def cpu(process: int) -> float:
    """Seconds that the processors have worked for a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
