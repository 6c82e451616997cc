"""A private network in which every link is as fast, and as long, as an experiment's prices say.

The kernel sets the rates (`shaped_links`). A relay on the way adds the delays: it passes everything
on that much later. TCP does not notice them, but whoever waits for an answer does.
Clients sleep for as long as the experiment lets them compute.

`python -m sdfeel.bench.priced_links DIRECTORY`, inside such a network, runs the federation of the
directory to its end and writes its log.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sdfeel.bench.shaped_links import PACKET, private
from sdfeel.core.errors import RunError, SdfeelError
from sdfeel.core.run_files import NETWORK, NODE, NODES
from sdfeel.deploy.files import read_network, read_node, write_node
from sdfeel.deploy.flower import Arrays
from sdfeel.deploy.local import Processes
from sdfeel.deploy.operator import Operator
from sdfeel.deploy.round_times import deployed_decisions

RELAYED = 1000  # is added to a port, for the relay to listen there
ASIDE = 10  # is added to an address's second number, for the relay's side of a link
CHUNK = 1 << 16
PRICES = "SDFEEL_BENCH_NETWORK"  # the variable that tells clients how fast they are
TRAINER = f"{__name__}:Sleeping"
PATIENCE = 900.0  # seconds for a whole federation


class Sleeping:
    """As much of a Flower client as is needed, which takes the experiment's time."""

    def __init__(self) -> None:
        _, cost, _, _ = read_network(Path(os.environ[PRICES]))
        self._seconds = cost.step_seconds

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, Any]:
        time.sleep(config["steps"] * self._seconds[config["client"]])
        return parameters, 1, {}


class PricedLine(NamedTuple):
    """A link between two nodes, at an address of its own."""

    mbps: float
    seconds: float = 0.0  # under way
    cell: int = -1  # the server whose clients share a line; -1: none
    cell_mbps: float = 0.0


def lines(directory: Path) -> dict[str, PricedLine]:
    """The line behind each address in a federation's node files, by the experiment's prices."""
    decisions = deployed_decisions(directory)
    view = next(decisions.first_views())
    cost, found = decisions.cost, {}
    plans = [decisions.plan(decisions.view(0, k)).mix for k in range(4)]
    up = plans[0].up.via
    kinds = {stage.via for plan in plans for stage in plan.stages} or {"server-server"}
    if len(kinds) > 1:
        raise RunError(f"servers use links of several kinds, {', '.join(sorted(kinds))}")
    (across,) = kinds
    own, shared = cost.overheads, cost.overheads.cell_rate
    for home in sorted((directory / NODES).iterdir()):
        role, _, number = home.name.partition("-")
        for peer, address in read_node(home / NODE).peers.items():
            n, d = int(number), int(peer.partition("-")[2])
            if role == "client":
                slow = 1.0 if cost.client_rates is None else float(cost.client_rates[n])
                cell = -1 if shared is None else int(view.net.home[n])
                rate = cost.rates[up] * slow / 1e6
                line = PricedLine(rate, cost.delay(up), cell, (shared or 0.0) / 1e6)
            elif role == "edge":
                each = own.server_delays if across == "server-server" else None
                delay = cost.delay(across) if each is None else float(each[n, d])
                slow = 1.0 if cost.server_rates is None else float(cost.server_rates[n, d])
                line = PricedLine(cost.rates[across] * (slow or 1.0) / 1e6, delay)
            else:
                continue
            found[address.partition(":")[0]] = line
    return found


def shaping(found: Mapping[str, PricedLine]) -> Iterator[str]:
    """The commands that give each direction of each address its rate, within its cell's."""
    yield "ip link set lo mtu 1500 gso_max_size 1500 gso_max_segs 1 up"
    yield "tc qdisc add dev lo root handle 1: htb"
    bucket = f"burst {PACKET} cburst {PACKET} quantum {PACKET}"
    cells = sorted({line.cell for line in found.values() if line.cell >= 0})
    parents, number = {}, 1
    for cell in cells:
        (rate,) = {line.cell_mbps for line in found.values() if line.cell == cell}
        for way in ("dst", "src"):
            parents[cell, way] = f"1:{number:x}"
            number += 1
            yield (
                f"tc class add dev lo parent 1: classid {parents[cell, way]} htb "
                f"rate {rate * 1e6:.0f}bit {bucket}"
            )
    for end, line in found.items():
        mates = sum(other.cell == line.cell for other in found.values())
        for way in ("dst", "src"):
            flow, parent = f"1:{number:x}", parents.get((line.cell, way), "1:")
            number += 1
            least = line.mbps if line.cell < 0 else min(line.mbps, line.cell_mbps / mates)
            yield (
                f"tc class add dev lo parent {parent} classid {flow} htb "
                f"rate {least * 1e6:.0f}bit ceil {line.mbps * 1e6:.0f}bit {bucket}"
            )
            match = f"u32 match ip {way} {end} flowid {flow}"
            yield f"tc filter add dev lo parent 1: protocol ip prio 1 {match}"


def redirect(directory: Path, found: Mapping[str, PricedLine]) -> dict[tuple[str, int], PricedLine]:
    """Send what arrives late through the relay; returns the (address, port) of each such line."""
    relayed: dict[tuple[str, int], PricedLine] = {}
    for home in sorted((directory / NODES).iterdir()):
        node = read_node(home / NODE)
        peers = dict(node.peers)
        for peer, address in node.peers.items():
            end, _, port = address.partition(":")
            if end in found and found[end].seconds > 0:
                relayed[end, int(port)] = found[end]
                peers[peer] = f"{relay_end(end)}:{int(port) + RELAYED}"
        write_node(home, home.name.partition("-")[0], node.model_copy(update={"peers": peers}))
    return relayed


def relay_end(end: str) -> str:
    """The address on which the relay answers for a link's end.

    >>> relay_end("127.1.4.2")
    '127.11.4.2'
    """
    first, net, *rest = end.split(".")
    return ".".join([first, str(int(net) + ASIDE), *rest])


async def relay(relayed: Mapping[tuple[str, int], PricedLine]) -> None:
    """Pass on everything, later, until the process ends."""
    servers = [
        await asyncio.start_server(_passing(end, port, line), relay_end(end), port + RELAYED)
        for (end, port), line in relayed.items()
    ]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def _passing(end: str, port: int, line: PricedLine) -> Any:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(end, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            forward_later(reader, far_writer, line.seconds),
            forward_later(far_reader, writer, line.seconds),
        )

    return answer


async def forward_later(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
) -> None:
    """Pass on whatever comes, this many seconds later."""
    clock = asyncio.get_running_loop().time
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            when, data = await under_way.get()
            await asyncio.sleep(max(when - clock(), 0.0))
            if not data:
                break
            writer.write(data)
            await writer.drain()

    with suppress(OSError):
        out = asyncio.ensure_future(deliver())
        try:
            while data := await reader.read(CHUNK):
                under_way.put_nowait((clock() + seconds, data))
        except OSError:
            pass
        under_way.put_nowait((clock() + seconds, b""))
        await out
    with suppress(OSError):
        writer.close()


def run_priced(directory: Path) -> None:
    """Run the federation of a directory to its end, over links of its own prices."""
    command = [*private(), sys.executable, "-m", __name__, str(directory)]
    environment = {**os.environ, PRICES: str((directory / NETWORK).resolve())}
    try:
        found = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, env=environment
        )
    except subprocess.TimeoutExpired as late:
        raise RunError(f"the federation in {directory} takes too long: {late}") from None
    if found.returncode != 0:
        said = found.stderr.strip().splitlines() or [f"it ended with {found.returncode}"]
        raise RunError(f"the federation in {directory} failed: {said[-1]}")


def _run(directory: Path) -> None:
    found = lines(directory)
    for command in shaping(found):
        subprocess.run(command.split(), check=True, timeout=60)
    relayed = redirect(directory, found)
    if relayed:
        threading.Thread(target=lambda: asyncio.run(relay(relayed)), daemon=True).start()
    names = [home.name for home in sorted((directory / NODES).iterdir())]
    processes = Processes(directory, [name for name in names if not name.startswith("operator")])
    for name in processes.names:
        processes.start(name)
    try:
        for _ in Operator(directory, directory, stop=True):
            processes.supervise(most=1)
    finally:
        processes.stop()


def main() -> None:
    try:
        _run(Path(sys.argv[1]))
    except (SdfeelError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
