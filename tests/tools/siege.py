"""`python -m tests.tools.siege`: a server with idle strangers, and with many uploads.

Prints how much longer an honest call takes with 200 idle connections open, how many copies of a
model the server holds per upload, and what refused calls leave behind. Reads the server's memory
from /proc, so it needs Linux.
"""

import asyncio
import os
import ssl
import time
from contextlib import suppress
from pathlib import Path

from sdfeel.bench import transport_speed
from sdfeel.bench.transport_speed import LIMITS, SIZES, served
from sdfeel.core.errors import SdfeelError
from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.peer import Peer
from sdfeel.live.trust.identity import Identity
from tests.waiting import completed

UPLOADS, REFUSED = 8, 1000
CROWDS = ((900, True), (1000, False))  # idle connections; with TLS?
MODEL = SIZES["25 MB"]


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


async def shut_out(address: str, bad: Identity, good: Identity, count: int, tls: bool) -> float:
    """Seconds of an honest first call next to this many idle connections of one stranger."""
    context = ssl.create_default_context(cadata=bad.ca.decode())
    context.check_hostname = False
    context.load_cert_chain(bad.directory / "cert.pem", bad.directory / "key.pem")
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    kind = context if tls else None
    writers = []
    for _ in range(0, count, 50):  # a few at a time: what is waited for is not the stranger
        knocks = (asyncio.open_connection(host, int(port), ssl=kind) for _ in range(50))
        found = await asyncio.gather(*knocks, return_exceptions=True)
        writers += [each[1] for each in found if not isinstance(each, BaseException)]
    begun = time.perf_counter()
    async with Peer(address, good, "edge/0", LIMITS) as peer:
        await peer.call("push", {}, b"x", timeout=60)
    seconds = time.perf_counter() - begun
    for writer in writers:
        writer.transport.abort()
    return seconds


def beside_a_crowd() -> None:
    for count, tls in CROWDS:
        with served(2) as (address, clients, _):
            what = "TLS connections of one certificate" if tls else "plain connections"
            try:
                seconds = completed(shut_out(address, clients[0], clients[1], count, tls))
            except SdfeelError as error:
                print(f"an honest call beside {count} idle {what}: {error}")
            else:
                print(f"an honest call beside {count} idle {what}: {seconds:.2f} s")


def main() -> None:
    beside_a_crowd()
    alone, beside = transport_speed.beside_strangers()
    for what, first, second in (
        ("time", alone.seconds, beside.seconds),
        ("server's CPU time", alone.cpu_seconds, beside.cpu_seconds),
    ):
        print(
            f"{what} of a push and a pull of 0.09 MB: {first * 1000:.2f} ms alone, "
            f"{second * 1000:.2f} ms beside {transport_speed.IDLE} idle connections"
        )
    with served(UPLOADS) as (address, clients, process):
        before = memory(process, "VmRSS")
        completed(upload_together(address, clients))
        copies = (memory(process, "VmHWM") - before) / (UPLOADS * MODEL)
        print(f"{UPLOADS} uploads of 25 MB at once: at most {copies:.2f} copies per upload")
    with served() as (address, clients, process):
        completed(be_refused(address, clients[0], REFUSED // 4))
        before = memory(process, "VmRSS")
        completed(be_refused(address, clients[0], REFUSED))
        grown = (memory(process, "VmRSS") - before) / 2**20
        print(f"{2 * REFUSED:,} refused calls: {grown:+.1f} MB of memory")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
