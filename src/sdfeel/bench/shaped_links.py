"""Links of a chosen speed without any hardware: a private network in which loopback is shaped.

Every pair of nodes talks over an address of its own, 127.1.CLIENT.SERVER or 127.2.SERVER.SERVER,
although all are the same loopback. A class of the kernel's token buckets (HTB) for either direction
of each address makes it a link of its own, as the simulator has it. Packets are not larger than
1,500 bytes and buckets hold one packet, so that no transfer gets a head start.

`python -m sdfeel.bench.shaped_links DIRECTORY CLIENT_MBPS SERVER_MBPS`, inside such a network,
shapes the links and runs the federation of the directory to its end.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sdfeel.bench.deployed_rounds import run_to_the_end
from sdfeel.core.errors import RunError, SdfeelError
from sdfeel.core.run_files import NODE, NODES
from sdfeel.deploy.files import read_node
from sdfeel.deploy.node_directories import EdgeAddress

PORT = 7400  # of the first server; the network is private, so nothing else uses it
PACKET = 1514  # bytes that the kernel counts for a full packet
PATIENCE = 600.0  # seconds for all rounds


def address(node: str, server: int) -> str:
    """The address and port at which a node reaches a server."""
    role, _, number = node.partition("-")
    net = {"client": 1, "edge": 2, "operator": 3}[role]
    return f"127.{net}.{number}.{server}:{PORT + server}"


def edge_addresses(servers: int) -> dict[int, EdgeAddress]:
    """Servers that can be reached under all their addresses."""
    return {
        d: EdgeAddress(f"0.0.0.0:{PORT + d}", f"127.0.0.1:{PORT + d}", ("127.0.0.1",))
        for d in range(servers)
    }


def links(directory: Path, client_mbps: float, server_mbps: float) -> dict[str, float]:
    """Megabits per second of every address in the node files of clients and servers."""
    found: dict[str, float] = {}
    for home in sorted((directory / NODES).iterdir()):
        rate = {"client": client_mbps, "edge": server_mbps}.get(home.name.partition("-")[0])
        if rate is not None:
            peers = read_node(home / NODE).peers.values()
            found |= {peer.partition(":")[0]: rate for peer in peers}
    return found


def shaping(rates: dict[str, float]) -> Iterator[str]:
    """The commands that give each direction of each address its own rate."""
    yield "ip link set lo mtu 1500 gso_max_size 1500 gso_max_segs 1 up"
    yield "tc qdisc add dev lo root handle 1: htb"
    ways = [(end, way, rate) for end, rate in rates.items() for way in ("dst", "src")]
    for number, (end, way, rate) in enumerate(ways, start=1):
        flow = f"1:{number:x}"
        yield (
            f"tc class add dev lo parent 1: classid {flow} htb rate {rate * 1e6:.0f}bit "
            f"burst {PACKET} cburst {PACKET} quantum {PACKET}"
        )
        match = f"u32 match ip {way} {end} flowid {flow}"
        yield f"tc filter add dev lo parent 1: protocol ip prio 1 {match}"


def why_not() -> str | None:
    """Why links cannot be shaped on this machine; None if they can."""
    trial = " && ".join(shaping({"127.1.0.0": 5.0}))
    try:
        found = subprocess.run(
            [*private(), "sh", "-c", trial], capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        return "this machine has no `unshare` to make a private network"
    if found.returncode == 0:
        return None
    said = found.stderr.strip().splitlines() or ["no reason given"]
    return f"a private network with shaped links cannot be made on this machine ({said[-1]})"


def run_shaped(directory: Path, client_mbps: float, server_mbps: float) -> None:
    """Run the federation of a directory to its end, over such links."""
    module = [sys.executable, "-m", __name__, str(directory), str(client_mbps), str(server_mbps)]
    command = [*private(), *module]
    try:
        found = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=2 * PATIENCE)
    except subprocess.TimeoutExpired as late:
        raise RunError(f"the federation over shaped links takes too long: {late}") from None
    if found.returncode != 0:
        said = found.stderr.strip().splitlines() or [f"it ended with {found.returncode}"]
        raise RunError(f"the federation over shaped links failed: {said[-1]}")


def private() -> list[str]:
    """A private network; a user that is not root becomes root inside it."""
    return ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]


def main(arguments: Sequence[str]) -> None:
    directory, client_mbps, server_mbps = Path(arguments[0]), *map(float, arguments[1:3])
    try:
        for command in shaping(links(directory, client_mbps, server_mbps)):
            subprocess.run(command.split(), check=True, timeout=60)
        run_to_the_end(directory, PATIENCE)
    except (SdfeelError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
