"""`python -m sdfeel.live.transport.siege`: a server with idle strangers, and with many uploads.

Prints how much longer an honest call takes beside 200 idle connections, how many copies of a model
the server holds per upload, and what refused calls leave behind. Reads the server's memory from
/proc, so it needs Linux.
"""

import asyncio
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from sdfeel.live.errors import Refused
from sdfeel.live.identity import Identity
from sdfeel.live.transport.measure import LIMITS, SIZES, served
from sdfeel.live.transport.peer import Peer

IDLE, UPLOADS = 200, 8
TURNS, CALLS, REFUSED = 9, 60, 1000
MODEL = SIZES["25 MB"]


async def honest(address: str, client: Identity) -> float:
    """The median seconds of a round's worth of messages: a push and a pull of 0.09 MB."""
    body, seconds = os.urandom(SIZES["0.09 MB"]), []
    async with Peer(address, client, "edge/0", LIMITS) as peer:
        for _ in range(CALLS):
            begun = time.perf_counter()
            await peer.call("push", {}, body, timeout=60)
            await peer.call("pull", {"bytes": len(body)}, timeout=60)
            seconds.append(time.perf_counter() - begun)
    return median(seconds)


@dataclass(frozen=True)
class Strain:
    """What honest calls cost: how long they take, and the server's work, which load hides less."""

    seconds: float  # the median of a push and a pull
    cpu_seconds: float  # of the server, for each such pair


def beside_strangers(address: str, client: Identity, process: int) -> tuple[Strain, Strain]:
    """Without and with idle connections, in turn, so that drift shows in neither."""
    host, port = address.split(":")
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for turn in range(2 * TURNS):
        beside = turn % 2 == 1
        idle = [socket.create_connection((host, int(port))) for _ in range(IDLE * beside)]
        before = cpu(process)
        seconds = asyncio.run(honest(address, client))
        found[beside].append((seconds, (cpu(process) - before) / CALLS))
        for connection in idle:
            connection.close()
    alone, crowded = (
        Strain(median(seconds for seconds, _ in turns), mean(work for _, work in turns))
        for turns in found.values()
    )
    return alone, crowded


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
    with served() as (address, clients, process):
        alone, beside = beside_strangers(address, clients[0], process)
        for what, before, after in (
            ("time", alone.seconds, beside.seconds),
            ("server's CPU time", alone.cpu_seconds, beside.cpu_seconds),
        ):
            print(
                f"{what} of a push and a pull of 0.09 MB: {before * 1000:.2f} ms alone, "
                f"{after * 1000:.2f} ms beside {IDLE} idle connections"
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
