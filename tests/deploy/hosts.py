"""Hosts in network namespaces: each with its own addresses, its own files, and one cable.

`python -m tests.deploy.hosts` (`make test-hosts`) deploys a federation on them with the documented
commands alone, cuts links while it trains, and compares the model with the simulator's. It needs
root and `ip` of iproute2; nothing leaves the namespaces.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import IO, Any

from sdfeel.core.run_files import EPOCHS, EVENTS, EXPERIMENT, NETWORK, NODES, STATUS
from tests.cli.command import call
from tests.waiting import finished

SDFEEL = (sys.executable, "-m", "sdfeel")
PATIENCE = 240.0  # seconds for whatever is waited for


def possible() -> str:
    """Why this machine cannot have such hosts; "" if it can."""
    if shutil.which("ip") is None:
        return "`ip` of iproute2 is not installed"
    name = f"sdfeel-{os.getpid()}-try"
    if finished(["ip", "netns", "add", name]).returncode:
        return "network namespaces are not allowed here"
    finished(["ip", "netns", "del", name], check=True)
    return ""


def run(*words: str, check: bool = True) -> bool:
    done = finished(words)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.returncode == 0


@dataclass
class Host:
    """One namespace with a directory of its own, plugged into the hub."""

    number: int
    space: str
    hub: str
    directory: Path
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    logs: list[IO[bytes]] = field(default_factory=list)

    @property
    def version4(self) -> str:
        return f"10.77.0.{10 + self.number}"

    @property
    def version6(self) -> str:
        return f"fd77::{10 + self.number}"

    @property
    def port(self) -> str:
        return f"sd{self.number}"  # the hub's end of its cable

    def plug_in(self) -> None:
        run("ip", "netns", "add", self.space)
        inside = ["ip", "-n", self.space]
        ends = ["type", "veth", "peer", "name", "eth0", "netns", self.space]
        run("ip", "-n", self.hub, "link", "add", self.port, *ends)
        for address in (f"{self.version4}/24", f"{self.version6}/64"):
            nodad = ["nodad"] if ":" in address else []
            run(*inside, "addr", "add", address, "dev", "eth0", *nodad)
        for device in ("lo", "eth0"):
            run(*inside, "link", "set", device, "up")
        run("ip", "-n", self.hub, "link", "set", self.port, "up")
        self.mend()

    def shape(self, rate: str, delay: str, loss: str) -> str:
        """Make its cable slow; returns how far this kernel can."""
        add = ["tc", "-n", self.space, "qdisc", "add", "dev", "eth0", "root"]
        if run(*add, "netem", "rate", rate, "delay", delay, "loss", loss, check=False):
            return f"{rate}, {delay}, {loss} lost"
        run(*add, "tbf", "rate", rate, "burst", "16kb", "latency", "200ms")
        drop = ["-m", "statistic", "--mode", "random", "--probability", f"{float(loss[:-1]) / 100}"]
        rule = ["iptables", "-A", "INPUT", "-i", "eth0", *drop, "-j", "DROP"]
        lossy = run("ip", "netns", "exec", self.space, *rule, check=False)
        return f"{rate}, {loss if lossy else 'none'} lost (this kernel has no netem)"

    def cut(self) -> None:
        """Packets vanish, silently: neither end is told."""
        run("ip", "-n", self.hub, "link", "set", self.port, "nomaster")

    def mend(self) -> None:
        run("ip", "-n", self.hub, "link", "set", self.port, "master", "hub")

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """A command on this host, in its directory; what it says goes to log.txt there."""
        log = (self.directory / "log.txt").open("ab")
        inside = ["ip", "netns", "exec", self.space, *words]
        process = subprocess.Popen(
            inside, cwd=self.directory, stdout=log, stderr=log, start_new_session=True
        )
        self.processes.append(process)
        self.logs.append(log)
        return process

    def signal(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)

    def unplug(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait(PATIENCE)
        for log in self.logs:
            log.close()
        run("ip", "netns", "del", self.space, check=False)

    def said(self) -> str:
        return (self.directory / "log.txt").read_text(errors="replace")


@contextmanager
def hosts(count: int, directory: Path) -> Iterator[list[Host]]:
    """This many hosts on one hub; all processes on them end with the block."""
    label = f"sdfeel-{os.getpid()}"
    hub = f"{label}-hub"
    made: list[Host] = []
    run("ip", "netns", "add", hub)
    try:
        run("ip", "-n", hub, "link", "add", "hub", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "hub", "up")
        for number in range(count):
            home = directory / f"host-{number}"
            home.mkdir(parents=True)
            made.append(Host(number, f"{label}-{number}", hub, home))
            made[-1].plug_in()
        yield made
    finally:
        for host in made:
            host.unplug()
        run("ip", "netns", "del", hub)


@dataclass
class Stage:
    """A federation whose nodes have a host each, and the operator's host."""

    files: Path  # what `deploy init` wrote, at the operator's
    places: dict[str, Host]

    @classmethod
    def build(cls, machines: Sequence[Host], settings: Sequence[str], servers: int) -> "Stage":
        """`sdfeel deploy init` on the operator's host; then each host is given what is its own."""
        edges, clients, desk = machines[:servers], machines[servers:-1], machines[-1]
        # Odd servers by IPv6. A client reaches what its certificate's name says, not the address.
        where = [host.version6 if n % 2 else host.version4 for n, host in enumerate(edges)]
        words = [word for each in settings for word in ("--set", each)]
        more = ["--with-data", "--hosts", ",".join(where)]
        called(desk.directory, "deploy", "init", "federation", *words, *more)
        files = desk.directory / "federation"
        names = {f"edge-{d}": host for d, host in enumerate(edges)}
        names |= {f"client-{n}": host for n, host in enumerate(clients)}
        stage = cls(files, names)
        for name in names:
            stage.deliver(name)
        return stage

    def deliver(self, name: str) -> None:
        """Copy the files to a host that docs/deploy.md lists."""
        target = self.places[name].directory
        for shared in (EXPERIMENT, NETWORK):
            shutil.copy(self.files / shared, target / shared)
        for tree in ("trust", EPOCHS, f"{NODES}/{name}"):
            shutil.copytree(self.files / tree, target / tree, dirs_exist_ok=True)

    def start(self, name: str) -> None:
        role = name.partition("-")[0]
        self.places[name].start(*SDFEEL, role, f"{NODES}/{name}/node.toml")

    def status(self, name: str) -> dict[str, Any]:
        path = self.places[name].directory / NODES / name / STATUS
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        return {}

    def until(self, condition: Callable[[], bool], what: str) -> float:
        """Wait for something; returns for how long it took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > PATIENCE:
                told = "\n".join(host.said()[-300:] for host in self.places.values())
                raise TimeoutError(f"{what} did not happen within {PATIENCE:g} s:\n{told}")
            time.sleep(0.05)
        return time.monotonic() - began

    def rounds(self, name: str) -> int:
        """How many rounds a server has finished, by its log."""
        log = self.places[name].directory / NODES / name / EVENTS
        return log.read_bytes().count(b'"round"') if log.exists() else 0

    def until_round(self, name: str, number: int) -> float:
        return self.until(lambda: self.rounds(name) >= number, f"round {number} of {name}")

    def until_waiting(self, name: str) -> float:
        """Until this is the only client that any server waits for: all others have handed in."""
        edges = [each for each in self.places if each.startswith("edge-")]

        def alone() -> bool:
            found = [self.status(each).get("waiting_for") for each in edges]
            if any(each is None for each in found):
                return False  # a server that has not begun yet waits for all of its clients
            waited = {who for each in found for who in each or () if who.startswith("client-")}
            return waited == {name}

        return self.until(alone, f"that servers wait for {name} alone")

    def mended(self, name: str, seconds: float, then: Callable[[], None] = lambda: None) -> str:
        """A cut cable stays so for some seconds; tells how soon all continued afterwards."""
        began = self.rounds("edge-0")
        time.sleep(seconds)  # how long a cable is cut is what is tried here
        still = self.rounds("edge-0")
        if still > began + 1:
            raise RuntimeError(f"{name} was cut off, but {still - began} rounds went by")
        then()
        self.places[name].mend()
        took = self.until_round("edge-0", still + 1)
        return f"{name} was cut off for {seconds:g} s in round {still + 1}; back in {took:.1f} s"


def called(directory: Path, *words: str) -> None:
    """`sdfeel WORDS` at the operator's desk; in this process, which has imported torch before."""
    with chdir(directory):
        done = call(*words)
    if done.code:
        raise RuntimeError(f"sdfeel {' '.join(words)}: {done.err}")


def last_line(directory: Path) -> dict[str, Any]:
    """The last line of a run's log."""
    last: dict[str, Any] = json.loads((directory / EVENTS).read_text().splitlines()[-1])
    return last


def simulated(directory: Path, settings: Sequence[str]) -> str:
    """The hash of the model that `sdfeel run` computes."""
    words = [word for each in settings for word in ("--set", each)]
    called(directory, "run", *words, "--out", "simulated")
    return str(last_line(directory / "simulated")["model_sha256"])


def play(
    directory: Path,
    servers: int,
    clients: int,
    iterations: int,
    seconds: float,
    tell: Callable[[str], None],
) -> tuple[str, str]:
    """A federation trains while two of its cables are cut; the deployed hash, the simulated one."""
    settings = [
        f"network.servers={servers}",
        f"network.clients={clients}",
        f"training.iterations={iterations}",
        "model.name=logistic",
        "training.engine=loop",
        "data.partition=iid",
    ]
    with hosts(servers + clients + 1, directory) as machines:
        shaped = {machines[n].shape("20mbit", "10ms", "1%") for n in range(servers + 2)}
        tell(f"{len(machines)} hosts; cables of servers and two clients: {', '.join(shaped)}")
        stage = Stage.build(machines, settings, servers)
        desk = machines[-1]
        first, second = "client-1", "client-0"
        for name in stage.places:
            if name != first:
                stage.start(name)
        follow = desk.start(*SDFEEL, "deploy", "follow", "federation", "--out", "real", "--stop")
        # One client is not there or stands still until the cable is cut: so nobody can be done
        # before, however fast or slow this machine is.
        stage.until_waiting(first)
        stage.places["edge-1"].cut()
        stage.start(first)
        tell(stage.mended("edge-1", seconds, lambda: stage.places[second].signal(SIGSTOP)))
        stage.until_waiting(second)
        stage.places[second].cut()
        stage.places[second].signal(SIGCONT)
        tell(stage.mended(second, seconds))
        stage.until(lambda: follow.poll() is not None, "the end of the run")
        if follow.returncode:
            raise RuntimeError(desk.said())
        for name, host in stage.places.items():
            if host.processes[0].wait(PATIENCE):
                raise RuntimeError(f"{name}: {host.said()}")
        deployed = str(last_line(desk.directory / "real")["model_sha256"])
    return deployed, simulated(directory, settings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long cables are cut")
    given = parser.parse_args()
    reason = possible()
    if reason:
        print(f"not tried: {reason}")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        numbers = given.servers, given.clients, given.iterations, given.seconds
        found = play(Path(directory), *numbers, print)
    print(f"deployed  {found[0]}\nsimulated {found[1]}")
    return int(found[0] != found[1])


if __name__ == "__main__":
    sys.exit(main())
