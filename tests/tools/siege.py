"""`python -m tests.tools.siege`: a server with idle strangers, and with many uploads.

Prints how much longer an honest call takes beside 200 idle connections, how many copies of a model
the server holds per upload, and what refused calls leave behind. Reads the server's memory from
/proc, so it needs Linux.
"""

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from sdfeel.bench.transport_speed import LIMITS, SIZES, Served, served
from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.peer import Peer
from sdfeel.live.trust.identity import Identity

IDLE, UPLOADS = 200, 8
TURNS, CALLS, REFUSED = 10, 40, 1000
MODEL = SIZES["25 MB"]


@dataclass(frozen=True)
class Strain:
    """What honest calls cost: how long they take, and the server's work, which load hides less."""

    seconds: float  # the median of a push and a pull
    cpu_seconds: float  # of the server, for each such pair


async def alternately(servers: Sequence[Served], calls: int) -> list[list[float]]:
    """Seconds of a round's worth of messages, a push and a pull of 0.09 MB, at each server in turn.

    What else the machine does meanwhile then slows down one as much as the other.
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
    """Without and with idle connections: two servers, of which either is besieged in turn."""
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
    """Strangers who connect and then say nothing."""
    host, port = address.split(":")
    return [socket.create_connection((host, int(port))) for _ in range(count)]


async def upload_together(address: str, clients: list[Identity]) -> None:
    body = bytes(MODEL)
    peers = [Peer(address, client, "edge/0", LIMITS) for client in clients]
    await asyncio.gather(*[peer.call("push", {}, body, timeout=120) for peer in peers])
    await asyncio.gather(*[peer.close() for peer in peers])


async def be_refused(address: str, client: Identity, calls: int) -> None:
    """Announce bodies that are too large, and some of a kind that carries none."""
    large = bytes(MODEL + 1)
    async with Peer(address, client, "edge/0", LIMITS) as peer:
        for _ in range(calls):
            for kind, body in (("push", large), ("nonsense", b"x")):
                with suppress(Refused):
                    await peer.call(kind, {"text": "x" * 1000}, body, timeout=60)


def memory(process: int, field: str) -> int:
    """Bytes of a process, now (VmRSS) or at most so far (VmHWM)."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def cpu(process: int) -> float:
    """Seconds that the processors have worked for a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    alone, beside = beside_strangers()
    for what, first, second in (
        ("time", alone.seconds, beside.seconds),
        ("server's CPU time", alone.cpu_seconds, beside.cpu_seconds),
    ):
        print(
            f"{what} of a push and a pull of 0.09 MB: {first * 1000:.2f} ms alone, "
            f"{second * 1000:.2f} ms beside {IDLE} idle connections"
        )
    with served(UPLOADS) as (address, clients, process):
        before = memory(process, "VmRSS")
        asyncio.run(upload_together(address, clients))
        copies = (memory(process, "VmHWM") - before) / (UPLOADS * MODEL)
        print(f"{UPLOADS} uploads of 25 MB at once: at most {copies:.2f} copies per upload")
    with served() as (address, clients, process):
        asyncio.run(be_refused(address, clients[0], REFUSED // 4))
        before = memory(process, "VmRSS")
        asyncio.run(be_refused(address, clients[0], REFUSED))
        grown = (memory(process, "VmRSS") - before) / 2**20
        print(f"{2 * REFUSED:,} refused calls: {grown:+.1f} MB of memory")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
