"""A client on a device that cannot run torch: `sdfeel-device NODE.toml`.

It is the client of `client.py`, but trains with a library that the operator compiled for this
device and this model. `device.json`, next to the node file, has everything that the client must
know; `sdfeel deploy init --device` writes both (`deploy/device.py`). It needs only NumPy, gRPC,
cryptography and safetensors.
"""

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more threads would only cost memory

import numpy as np

from sdfeel.core.arrays import Ints, Singles
from sdfeel.core.errors import DataError, InputError, RunError, SdfeelError, printable, unknown
from sdfeel.core.run_files import NEAR_ALLOW, client_arrays, read_toml
from sdfeel.core.seeds import rng
from sdfeel.engine.guards import UpdateGuard
from sdfeel.engine.native.library import Library
from sdfeel.engine.native.trainer import Lessons, LocalStep, Trainer
from sdfeel.engine.wire_codes import Coding
from sdfeel.live.client import ArrayTask, Membership, Train
from sdfeel.live.process import NodeSetting, run_client
from sdfeel.live.protocol import About
from sdfeel.live.transport.tensors import MODEL, Schema
from sdfeel.live.trust.identity import Identity
from sdfeel.live.trust.names import addresses
from sdfeel.version import __version__

BUNDLE, LIBRARY = "device.json", "model.so"  # in the node's directory
FORM = 1  # of the bundle
MACHINES = {62: "x86_64", 183: "aarch64", 40: "armv7"}  # in the head of an ELF file
REFERENCE_STEPS, REFERENCE_RATE = 2, 0.05
KEYS = ("experiment", "network", "identity", "allow", "health", "data", "peers")  # of a node file


@dataclass(frozen=True)
class Bundle:
    """The content of `device.json`: what a device needs besides its node file."""

    device: str  # the kind of device for which the library was compiled
    client: int
    samples: int
    servers: tuple[int, ...]
    refuges: tuple[int, ...]
    federation: str  # the digest of what all nodes agree on
    shape: tuple[int, ...]  # of an example
    classes: int
    row: int  # numbers of a model
    seed: int
    sgd: LocalStep
    library: str  # the SHA-256 of the library
    reference: str  # the SHA-256 of the model that the library must train from known numbers
    about: Mapping[str, str] = field(default_factory=dict)  # what it tells servers about itself
    coding: Coding | None = None  # how its updates are compressed; None: it sends whole models
    guard: UpdateGuard | None = None  # clips its updates and adds noise before they leave
    most: int | None = None  # the most local iterations that a server may ask for in one round
    form: int = FORM

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Bundle":
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if values.get("form") != FORM:
                raise InputError(
                    f"{path} was written by another version of sdfeel than this one, "
                    f"{__version__}: install the operator's version"
                )
            for key in ("servers", "refuges", "shape"):
                values[key] = tuple(values[key])
            coding = values["coding"]
            if coding is not None:
                values["coding"] = Coding(**{**coding, "sizes": tuple(coding["sizes"])})
            if values.get("guard") is not None:
                values["guard"] = UpdateGuard(**values["guard"])
            return cls(**{**values, "sgd": LocalStep(**values["sgd"])})
        except OSError as error:
            raise InputError(
                f"cannot read {path} ({error.strerror}): `sdfeel deploy init --device` writes it"
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is damaged: copy it again from where it was made") from None


def checked_library(path: Path, bundle: Bundle) -> Library:
    """The library, if it is intact, fits this machine, and trains the reference model exactly."""
    again = f"copy {path.name} again from where `sdfeel deploy init` wrote it"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path} ({error.strerror}): {again}") from None
    if hashlib.sha256(content).hexdigest() != bundle.library:
        made = machine_of(content)
        what = f" (it is for {made})" if made not in (None, bundle.device) else ""
        raise RunError(
            f"{path} is not the library that {BUNDLE} names{what}: it is damaged, or belongs to "
            f"another model or device; {again}"
        )
    lacking = missing_instructions(bundle.device)
    if lacking:
        raise RunError(f"{path} cannot run on this CPU, which has no {' and no '.join(lacking)}")
    try:
        library = Library(path)
    except (OSError, AttributeError) as error:
        here = os.uname().machine.removesuffix("l")
        why = f" ({error})" if machine_of(content) == here else ""
        raise RunError(
            f"{path} is for {bundle.device} and does not run on this {here}{why}: ask the operator "
            f"for `--device` with this machine's name"
        ) from None
    if not library.fuses:
        raise RunError(
            f"{path} was compiled without fused multiply-add, so it computes other bits than the "
            f"other nodes: ask the operator for another library"
        )
    found = reference(library, bundle)
    if found != bundle.reference:
        raise RunError(
            f"{path} does not train the reference model ({found[:12]}, not "
            f"{bundle.reference[:12]}): this device computes other numbers and cannot take part"
        )
    return library


def missing_instructions(device: str, cpu: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The instructions that a library for `device` needs and this CPU lacks: it would crash."""
    if device != "x86_64" or os.uname().machine != device:
        return []
    lines = cpu.read_text().splitlines() if cpu.is_file() else []
    flags = next((line.split() for line in lines if line.startswith("flags")), None)
    return [] if flags is None else [name for name in ("avx2", "fma") if name not in flags]


def machine_of(content: bytes) -> str | None:
    """The machine for which an ELF file is; None if it is no ELF file."""
    if content[:4] != b"\x7fELF" or len(content) < 20:
        return None
    number = int.from_bytes(content[18:20], "little")
    return MACHINES.get(number, f"machine {number}")


def reference(library: Library, bundle: Bundle) -> str:
    """The SHA-256 of a model trained for a few steps from numbers that are the same everywhere."""
    draws = rng(bundle.seed, "reference")
    count = 2 * bundle.sgd.batch_size + 1
    x = draws.random((count, *bundle.shape), dtype=np.float32) * 2 - 1
    y = draws.integers(bundle.classes, size=count)
    start = (draws.random(bundle.row, dtype=np.float32) * 2 - 1) * np.float32(0.1)
    sgd = replace(bundle.sgd, learning_rate=REFERENCE_RATE, iteration="batch")
    known = replace(bundle, sgd=sgd)
    task = ArrayTask(bundle.client, start, REFERENCE_STEPS, first=1)
    return hashlib.sha256(by_library(library, known, x, y)(task).tobytes()).hexdigest()


def by_library(library: Library, bundle: Bundle, x: Singles, y: Ints) -> Train:
    """Trains a client with its library alone."""
    nothing = np.empty(0, dtype=np.int64)
    parts = [nothing] * bundle.client + [np.arange(len(x))]
    trainer = Trainer(library, Lessons(x, y, parts, bundle.sgd, bundle.seed), bundle.row, 1)

    def train(task: ArrayTask) -> Singles:
        if task.shift is not None or task.pull:
            raise InputError("this device's library cannot shift gradients, which the scheme needs")
        return next(iter(trainer.train([task]))).copy()

    return train


def own_data(path: Path, bundle: Bundle) -> tuple[Singles, Ints]:
    """The device's examples, in the types that the library reads."""
    with client_arrays(path) as (x, y):
        x = x.astype(np.float32) if x.dtype.kind in "biu" else x
    if x.dtype != np.float32 or x.shape[1:] != bundle.shape:
        raise DataError(
            f"x in {path} is {x.dtype} {x.shape}, but it must be float32 (N, "
            f"{', '.join(map(str, bundle.shape))})"
        )
    if y.dtype.kind not in "iu" or y.shape != (len(x),):
        raise DataError(
            f"y in {path} is {y.dtype} {y.shape}, but it must be {len(x)} class numbers"
        )
    if not len(y) or y.min() < 0 or y.max() >= bundle.classes:
        raise DataError(f"y in {path} must be class numbers from 0 to {bundle.classes - 1}")
    return np.ascontiguousarray(x), np.ascontiguousarray(y, np.int64)


@dataclass(frozen=True)
class DeviceNode:
    """The keys of a node file that a device uses; paths are absolute."""

    home: Path
    identity: Path
    allow: Path
    data: Path
    peers: Mapping[int, str]
    health: str | None

    @classmethod
    def read(cls, path: Path) -> "DeviceNode":
        values = read_toml(path, "the node file")
        if "trainer" in values:
            raise InputError(f"{path} names a trainer, but a device trains with its library alone")
        for key, value in values.items():
            if key not in KEYS:
                raise unknown("key", key, list(KEYS))
            if not isinstance(value, dict if key == "peers" else str):
                raise InputError(f"{path}: {key} must be text, got {value!r}")
        home = path.parent.resolve()
        return cls(
            home,
            home / values.get("identity", "identity"),
            home / values.get("allow", NEAR_ALLOW),
            home / values.get("data", "data.npz"),
            addresses(values.get("peers", {})),
            values.get("health", "127.0.0.1:0"),
        )


def run_device(path: Path) -> None:
    """Take part until the federation has finished."""
    node = DeviceNode.read(path)
    bundle = Bundle.read(node.home / BUNDLE)
    identity = Identity.load(node.identity)
    if (identity.role, identity.number) != ("client", bundle.client):
        raise InputError(
            f"{node.identity} is the identity of {identity.name}, but {BUNDLE} is for client "
            f"{bundle.client}: copy the whole directory of one node"
        )
    library = checked_library(node.home / LIBRARY, bundle)
    x, y = own_data(node.data, bundle)
    schema = Schema.of({MODEL: np.empty(bundle.row, np.float32)})
    about = About(**bundle.about, library=bundle.library)
    member = Membership(
        bundle.federation, schema, bundle.servers, bundle.refuges, about, bundle.coding
    )
    member = replace(member, guard=bundle.guard, private=bundle.guard is not None, most=bundle.most)
    setting = NodeSetting(identity, node.home, node.peers, node.allow, node.health)

    def tell(line: str) -> None:
        now = time.strftime("%H:%M:%S")
        print(f"{now} client-{bundle.client}: {printable(line)}", file=sys.stderr, flush=True)

    tell(f"{LIBRARY} for {bundle.device} trains the reference model; ready after {age():.2f} s")
    asyncio.run(run_client(member, setting, len(x), by_library(library, bundle, x, y), tell))


def age() -> float:
    """Seconds since this process was started, including the time to load Python.

    Without /proc, as on macOS, the seconds of CPU time that it has used.
    """
    try:
        started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """`sdfeel-device NODE.toml`; with --check, only check the node's files and the library."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print(__version__)
        return
    paths = [word for word in words if not word.startswith("-")]
    if len(paths) != 1 or set(words) - {*paths, "--check"}:
        sys.exit("usage: sdfeel-device NODE.toml [--check]")
    try:
        if "--check" in words:
            node = DeviceNode.read(Path(paths[0]))
            bundle = Bundle.read(node.home / BUNDLE)
            checked_library(node.home / LIBRARY, bundle)
            print(f"{LIBRARY} for {bundle.device} trains the reference model")
        else:
            run_device(Path(paths[0]))
    except SdfeelError as error:
        sys.exit(f"sdfeel-device: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
