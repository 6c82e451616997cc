"""A federation with clients that have no torch: python -m tests.tools.device

Two edge servers, two clients as they always are, and two devices, which run `sdfeel-device` from
its own wheel in an environment with nothing but what the wheel asks for. One device is killed (-9)
on the way and started again. The model at the end must be the simulator's. Kinds of devices:

    --device x86_64     a fresh virtual environment of this machine's Python
    --device aarch64    a whole 64-bit ARM Python under qemu-user, in a private directory: Debian's
                        packages for arm64, wheels for aarch64. Nothing is installed into the
                        system, and no container is used (apt-get install qemu-user)
    --device armv7      the same for 32-bit ARM, with Debian's NumPy

What is fetched is kept in --root for the next time. Then figures: seconds until a device is ready,
its memory, what is installed. `make test-device` runs it for aarch64.
"""

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from sdfeel.core.errors import RunError, SdfeelError
from sdfeel.core.events import Finished, Round
from sdfeel.core.run_files import NODE, NODES
from sdfeel.deploy.local import Processes
from sdfeel.deploy.node_directories import make, on_loopback
from sdfeel.deploy.operator import Operator
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.run.session import start
from sdfeel.run.store import create
from tests.waiting import DEADLINE, finished, until

HOME = Path(__file__).parents[2]
PROJECT = HOME / "packaging" / "device"
SETTINGS = [
    "network.clients=4",
    "network.servers=2",
    "data.classes_per_client=5",
    "training.engine=native",
    "training.iterations=40",
    "evaluation.every=4",
]
READY = re.compile(r"ready after ([0-9.]+) s")


@dataclass(frozen=True)
class Machine:
    """Where a device's Python is, and how it is started."""

    command: tuple[str, ...]  # a Python that finds sdfeel-device and what it needs
    environment: Mapping[str, str] = field(default_factory=dict)
    installed: Path | None = None  # what pip installed
    module: str = "sdfeel.live.device"

    def start(self, node: Path, log: Path) -> "subprocess.Popen[bytes]":
        words = [*self.command, "-m", self.module, str(node)]
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with log.open("ab") as file:
            return subprocess.Popen(
                words, stdout=file, stderr=file, env={**env, **self.environment}
            )


@dataclass
class Devices:
    """Processes of devices, restarted when they are killed."""

    machine: Machine
    directory: Path
    names: Sequence[str]
    running: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    memory: float = 0.0  # MB, the most that a device had at a round's end

    def log(self, name: str) -> Path:
        return self.directory / NODES / name / "log.txt"

    def start(self, name: str) -> None:
        node = self.directory / NODES / name / NODE
        self.running[name] = self.machine.start(node, self.log(name))

    def kill(self, name: str) -> None:
        """kill -9, and start again."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait(DEADLINE)
        self.start(name)

    def failed(self) -> SdfeelError | None:
        """A device that ended on its own: nobody starts it again, and all would wait for it."""
        for name, process in self.running.items():
            if process.poll() not in (None, 0, -signal.SIGKILL):
                said = self.log(name).read_text()[-500:]
                return RunError(f"{name} ended with {process.returncode}: {said}")
        return None

    def look(self) -> None:
        for process in self.running.values():
            self.memory = max(self.memory, resident(process.pid))

    def end(self, patience: float) -> None:
        """Wait for them to hear that the run is over; stop those that do not."""
        end = time.monotonic() + patience
        for process in self.running.values():
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            if process.poll() is None:
                process.terminate()
        for process in self.running.values():
            process.wait(120)


def resident(pid: int) -> float:
    """The most memory that a process has had, in MB; 0 if it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


@dataclass(frozen=True)
class Ended:
    """How a federation with devices ended."""

    model: str
    simulated: str
    kills: int
    seconds: float
    memory: float  # MB
    ready: list[float]  # seconds
    told: list[str]  # the devices' last lines


def federation(
    experiment: Experiment,
    directory: Path,
    kinds: Mapping[int, str],
    machine: Machine,
    kills: int,
    patience: float = 240.0,  # seconds; an emulated processor needs longer
) -> Ended:
    """Deploy an experiment with some clients on devices, kill one, compare with a simulation."""
    (*_, last) = start(experiment, directory / "simulated")
    assert isinstance(last, Finished)
    here = directory / "deployed"
    ready = prepare(experiment)
    create(here)
    net = make(ready, here, on_loopback(len(ready.decisions.net.servers)), devices=kinds)
    stock = [f"client-{n}" for n, reach in enumerate(net.reach) if reach and n not in kinds]
    nodes = Processes(here, [*(f"edge-{d}" for d in net.servers), *stock])
    devices = Devices(machine, here, [f"client-{n}" for n in kinds])
    began, done, found = time.monotonic(), 0, ""
    try:
        held = stock[-1:] if kills else []
        for name in nodes.names:
            if name not in held:
                nodes.start(name)
        for name in devices.names:
            devices.start(name)
        end = began + patience
        log = devices.log(devices.names[0])
        for name in held:  # a run without it does not end: the first kill does not come too late
            until(lambda: "round 1:" in log.read_text(), "the device does nothing", patience)
            devices.kill(devices.names[0])
            done += 1
            nodes.start(name)

        def trouble() -> SdfeelError | None:
            try:
                nodes.supervise()
            except SdfeelError as error:
                return error
            late = time.monotonic() > end
            return devices.failed() or (RunError("it takes too long") if late else None)

        for event in Operator(here, directory / "followed", True, ready, trouble):
            devices.look()
            if isinstance(event, Round) and done < kills:
                devices.kill(devices.names[done % len(devices.names)])
                done += 1
            if isinstance(event, Finished):
                found = event.model_sha256
    finally:
        devices.end(30.0 if found else 0.0)
        nodes.stop()
    logs = [devices.log(name).read_text() for name in devices.names]
    took = [float(seconds) for log in logs for seconds in READY.findall(log)]
    told = [log.strip().splitlines()[-1] for log in logs]
    seconds = time.monotonic() - began
    return Ended(found, last.model_sha256, done, seconds, devices.memory, took, told)


def wheel(folder: Path) -> Path:
    """The wheel of sdfeel-device, built from this source tree."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder)]
    if find_spec("hatchling") is not None:  # then nothing needs to be fetched for it
        command += ["--no-build-isolation"]
    _run([*command, str(PROJECT)])
    (found,) = folder.glob("sdfeel_device-*.whl")
    return found


def own_machine(root: Path) -> Machine:
    """A fresh environment of this machine's Python with sdfeel-device alone."""
    place = root / "x86_64"
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-compile"]
    with tempfile.TemporaryDirectory() as folder:
        _run([*pip, str(wheel(Path(folder)))])
    (packages,) = place.glob("lib/python*/site-packages")
    return Machine((str(python),), installed=packages)


@dataclass(frozen=True)
class Arm:
    """An ARM system that qemu-user can run: what of it comes from Debian, and what from wheels."""

    qemu: str
    debian: str  # its name there
    packages: tuple[str, ...]
    platforms: tuple[str, ...]  # of wheels
    wheels: tuple[str, ...]


ARMS = {
    "aarch64": Arm(
        "qemu-aarch64",
        "arm64",
        ("python3", "libstdc++6"),
        ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64"),
        ("cffi", "cryptography", "grpcio", "numpy", "pycparser", "safetensors"),
    ),
    "armv7": Arm(  # for which there are no wheels of NumPy: Debian's is older than we ask for
        "qemu-arm",
        "armhf",
        ("python3", "libstdc++6", "python3-numpy", "python3-cffi-backend", "python3-pycparser"),
        ("linux_armv7l", "manylinux_2_17_armv7l", "manylinux_2_31_armv7l"),
        ("cryptography", "grpcio", "safetensors"),
    ),
}


def arm_machine(root: Path, kind: str) -> Machine:
    """An ARM Python under qemu-user, with sdfeel-device and what it needs."""
    arm, place = ARMS[kind], root / kind
    system, packages = place / "system", place / "packages"
    if not (system / "usr" / "bin" / "python3").exists():
        _arm_system(arm, place, system)
    (python,) = (p for p in system.glob("usr/bin/python3.[0-9]*") if p.name[-1].isdigit())
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages)]
    if not (packages / "grpc").is_dir():
        version = python.name.removeprefix("python")
        platforms = [f"--platform={name}" for name in arm.platforms]
        words = ["--only-binary=:all:", f"--python-version={version}", *platforms]
        _run([*pip, *words, *arm.wheels, "typing_extensions"])
    with tempfile.TemporaryDirectory() as folder:
        _run([*pip, "--upgrade", str(wheel(Path(folder)))])
    libraries = [str(path.parent) for path in system.glob("usr/lib/*/*/lib*.so.3")]  # BLAS
    paths = f"{packages}:{system}/usr/lib/python3/dist-packages"
    command = (arm.qemu, "-L", str(system), "-E", f"LD_LIBRARY_PATH={':'.join(libraries)}")
    return Machine((*command, str(python)), {"PYTHONPATH": paths}, packages)


def _arm_system(arm: Arm, place: Path, system: Path) -> None:
    """Debian's own packages for another architecture, unpacked into a directory."""
    for folder in ("lists/partial", "archives/partial"):
        (place / "apt" / folder).mkdir(parents=True, exist_ok=True)
    (place / "apt" / "status").touch()
    settings = {
        "APT::Architecture": arm.debian,
        "APT::Architectures": arm.debian,
        "Dir::State": str(place / "apt"),
        "Dir::State::Lists": str(place / "apt" / "lists"),
        "Dir::State::status": str(place / "apt" / "status"),
        "Dir::Cache": str(place / "apt"),
        "Dir::Cache::archives": str(place / "apt" / "archives"),
        "Debug::NoLocking": "1",
    }
    words = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    finished(["apt-get", *words, "-qq", "update"])  # a source without ARM does no harm
    asked = ["install", "-y", "-qq", "--download-only", "--no-install-recommends", *arm.packages]
    _run(["apt-get", *words, *asked])
    for package in sorted((place / "apt" / "archives").glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(system)])


def _run(command: Sequence[str]) -> None:
    done = finished(command, 3600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def megabytes(place: Path) -> float:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) / 1e6


MACHINES: dict[str, Callable[[Path], Machine]] = {
    "x86_64": own_machine,
    **{kind: partial(arm_machine, kind=kind) for kind in ARMS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="a federation with clients that have no torch")
    parser.add_argument("--device", choices=list(MACHINES), default=platform.machine())
    parser.add_argument("--root", type=Path, default=Path.home() / ".cache" / "sdfeel" / "devices")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--kills", type=int, default=1)
    options = parser.parse_args()
    machine = MACHINES[options.device](options.root)
    experiment = load(None, [*SETTINGS, f"model.name={options.model}"])
    with tempfile.TemporaryDirectory() as folder:
        kinds = dict.fromkeys((2, 3), options.device)
        ended = federation(experiment, Path(folder), kinds, machine, options.kills, 3600.0)
    for line in ended.told:
        print(line)
    same = ended.model == ended.simulated
    emulated = " (emulated by qemu)" if machine.command[0].startswith("qemu") else ""
    print(f"2 clients with torch, 2 on {options.device}{emulated} without, {ended.kills} killed")
    print(
        f"deployed {ended.model[:16]}, simulated {ended.simulated[:16]}: "
        f"{'equal' if same else 'DIFFERENT'}; {ended.seconds:.0f} s"
    )
    print(
        f"a device: ready after {min(ended.ready):.2f} to {max(ended.ready):.2f} s, "
        f"{ended.memory:.0f} MB of memory at most{emulated}",
        end="",
    )
    if machine.installed is not None:
        print(f", {megabytes(machine.installed):.0f} MB installed")
    sys.exit(not same)


if __name__ == "__main__":
    main()
