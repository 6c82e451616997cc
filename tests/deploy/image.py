"""The image, really built, and a federation in containers of it: `python -m tests.deploy.image`.

No Docker engine is needed: `buildah` builds, `podman` and `podman-compose` run (Debian has the
first two, and `runc`, `netavark` and `aardvark-dns`; PyPI has the third). Without `--base`, a base
is made by `debootstrap`, and torch is the wheel that this environment has, if it is one without
CUDA. It takes minutes and a few gigabytes, ends with 1 if the model is not the simulator's, and
says what is missing if it cannot be tried.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tests.deploy.hosts import called, last_line, simulated
from tests.waiting import finished

ROOT = Path(__file__).parents[2]
USER = 1000  # of the image
DEBIAN, PYTHON = "bookworm", "3.11"
HELPERS, NAMES = Path("/usr/lib/podman"), ("netavark", "aardvark-dns")  # so containers have names
SETTINGS = (
    "network.servers=2",
    "network.clients=5",
    "model.name=logistic",
    "training.iterations=40",
)
# Nothing of CUDA, and the packages that a node needs.
CHECK = """
import importlib.metadata as m, torch, grpc, cryptography
names = {each.metadata["Name"].lower() for each in m.distributions()}
assert torch.version.cuda is None, torch.version.cuda
assert not [name for name in names if name.startswith("nvidia")], names
print("torch", torch.__version__, "of", len(names), "packages")
"""


def missing(base: str | None) -> list[str]:
    tools = ["buildah", "podman", "podman-compose", *([] if base else ["debootstrap"])]
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        tools.append("runc")  # crun takes no machine that has control groups of both kinds
    names = [tool for tool in NAMES if not (HELPERS / tool).exists()]
    return [*(tool for tool in tools if shutil.which(tool) is None), *names]


class Steps:
    """What is being done, and how long the step before took: minutes without a word look dead."""

    def __init__(self) -> None:
        self._name, self._began = "", time.monotonic()

    def begin(self, name: str) -> None:
        if self._name:
            print(f"{self._name}: {time.monotonic() - self._began:.0f} s", flush=True)
        self._name, self._began = name, time.monotonic()


class Engine:
    """buildah and podman with a storage of their own, which is thrown away."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        driver = "overlay" if "\toverlay\n" in Path("/proc/filesystems").read_text() else "vfs"
        (directory / "storage.conf").write_text(
            f'[storage]\ndriver = "{driver}"\ngraphroot = "{directory}/storage"\n'
            f'runroot = "{directory}/run"\n'
        )
        runtime = next((name for name in ("runc", "crun") if shutil.which(name)), "crun")
        (directory / "containers.conf").write_text(
            f'[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
            f'[engine]\nruntime = "{runtime}"\n[network]\nnetwork_backend = "netavark"\n'
        )
        self.place: Mapping[str, str] = {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(directory / "storage.conf"),
            "CONTAINERS_CONF": str(directory / "containers.conf"),
        }

    def run(self, *words: str, cwd: Path | None = None) -> str:
        done = finished(words, 3600, cwd=cwd, env=self.place)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout


def base_image(engine: Engine) -> str:
    """Debian with Python, from its own packages."""
    root = engine.directory / "base"
    packed = Path(f"{root}.tar")
    packages = "--include=python3,python3-venv,ca-certificates"
    engine.run("debootstrap", "--variant=minbase", packages, DEBIAN, str(root))
    engine.run("tar", "-C", str(root), "-cf", str(packed), ".")
    return imported(engine, packed)


def imported(engine: Engine, packed: Path) -> str:
    """A packed root file system as an image."""
    engine.run("podman", "import", str(packed), "sdfeel-base")
    return "localhost/sdfeel-base"


def base_of(engine: Engine, given: str | None) -> str:
    if given is None:
        return base_image(engine)
    return imported(engine, Path(given)) if Path(given).is_file() else given


def own_torch(engine: Engine, python: str = PYTHON) -> list[Path]:
    """The wheel of this environment's torch, if it has no CUDA and this machine can get it again.

    Otherwise the Dockerfile's own index is asked for one.
    """
    if torch.version.cuda is not None:
        return []
    place = engine.directory / "wheels"
    words = ["--no-deps", "--only-binary", ":all:", "--python-version", python, "-d", str(place)]
    pip = [sys.executable, "-m", "pip", "download", "-q", *words, f"torch=={torch.__version__}"]
    finished(pip, 3600)
    return sorted(place.glob("torch-*.whl"))


def build(engine: Engine, files: Path, base: str, wheels: Sequence[Path]) -> None:
    """As docs/deploy.md says: sdfeel's wheel next to the Dockerfile."""
    engine.run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(files), str(ROOT))
    for wheel in wheels:
        shutil.copy(wheel, files)
    certificates = "/etc/ssl/certs:/etc/ssl/certs:ro"  # whatever this machine trusts
    words = ["buildah", "build", "--isolation", "chroot", "-v", certificates]
    engine.run(*words, "--build-arg", f"BASE={base}", "-t", "sdfeel", str(files))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", help="an image with Python, or a root file system as .tar")
    parser.add_argument("--wheel", type=Path, action="append", default=[], help="such as torch's")
    given = parser.parse_args()
    if lacking := missing(given.base):
        print(f"not tried: `apt-get update && apt-get install {' '.join(lacking)}` first")
        return 0
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="image-", ignore_cleanup_errors=True) as place:
        directory = Path(place)
        engine = Engine(directory)
        words = [word for each in SETTINGS for word in ("--set", each)]
        called(directory, "deploy", "init", "federation", *words, "--with-data")
        files = directory / "federation"
        steps.begin("the base, Debian with Python")
        base = base_of(engine, given.base)
        steps.begin("the image")
        wheels = given.wheel or ([] if given.base else own_torch(engine))
        build(engine, files, base, wheels)
        print(engine.run("podman", "run", "--rm", "--entrypoint", "python", "sdfeel", "-c", CHECK))
        steps.begin("a federation in containers")
        for path in [files / "nodes", *(files / "nodes").rglob("*")]:
            os.chown(path, USER, USER)
        compose = ["podman-compose", "-f", "compose.yaml"]
        try:
            engine.run(*compose, "up", "-d", cwd=files)
            follow = ["deploy", "follow", ".", "--out", "/federation/real", "--stop"]
            mount = ["--network", "federation_default", "-v", f"{files}:/federation", "--user", "0"]
            engine.run("podman", "run", "--rm", *mount, "sdfeel", *follow)
        finally:
            engine.run(*compose, "down", "-t", "5", cwd=files)
            engine.run("podman", "network", "prune", "-f")
        steps.begin("the same simulated")
        deployed = str(last_line(files / "real")["model_sha256"])
        expected = simulated(directory, SETTINGS)
        steps.begin("")
        print(f"in containers {deployed}\nsimulated     {expected}", flush=True)
        engine.run("podman", "system", "reset", "-f")
        finished(["umount", str(directory / "storage" / "overlay")])  # podman may leave it
    return int(deployed != expected)


if __name__ == "__main__":
    sys.exit(main())
