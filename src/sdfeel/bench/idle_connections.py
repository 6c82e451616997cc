"""What honest calls cost beside many idle connections. It reads /proc, so it needs Linux."""

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from sdfeel.bench.transport_speed import LIMITS, SIZES, Served, served
from sdfeel.live.transport.peer import Peer

IDLE = 200  # connections
TURNS, CALLS = 10, 40


@dataclass(frozen=True)
class Strain:
    """The cost of honest calls: their time, and the server's work, which load affects less."""

    seconds: float  # the median of a push and a pull
    cpu_seconds: float  # of the server, for each such pair


async def alternately(servers: Sequence[Served], calls: int) -> list[list[float]]:
    """Seconds of a round's worth of messages, a push and a pull of 0.09 MB, at each server in turn.

    Whatever else the machine does then slows down one as much as the other.
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
    """Strangers that connect and then say nothing."""
    host, port = address.split(":")
    return [socket.create_connection((host, int(port))) for _ in range(count)]


def cpu(process: int) -> float:
    """Seconds that the processors have worked for a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
