"""Peak memory of whole runs, and where their time goes: python -m tests.tools.run_cost memory

python -m tests.tools.run_cost memory     the CIFAR CNN by two engines, MNIST in few and many rounds
python -m tests.tools.run_cost profile    a run on MNIST, twice

Each run has a process of its own. Memory is that of the process and all below it, with what they
share counted once, looked up ten times a second. MNIST must be on this machine (`sdfeel data`).
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from sdfeel import api
from sdfeel.experiment import loading

COLOUR = "colour.npz"  # random images, made where the run is
CIFAR = (
    f"data.name={COLOUR}",
    *("data.partition=iid", "model.name=cifar-cnn", "network.clients=50"),
    *("training.iterations=2", "scheme.tau1=1"),
)
MNIST = ("data.name=mnist", "scheme.tau1=5")
JOBS = {
    "memory": (
        (*CIFAR, "training.engine=native"),
        (*CIFAR, "training.engine=parallel"),
        (*MNIST, "training.iterations=100"),
        (*MNIST, "training.iterations=1000"),
    ),
    "profile": ((*MNIST, "training.iterations=600"),) * 2,
}
PATIENCE = 1800.0  # seconds of one run
PAUSE = 0.1  # seconds between two looks at the memory


@dataclass(frozen=True)
class RunCost:
    """What a run took: its engine, megabytes at most, and real seconds by what they were for."""

    settings: tuple[str, ...]
    engine: str
    megabytes: float
    seconds: dict[str, float]


def measured(settings: tuple[str, ...]) -> RunCost:
    """A run in a new process: only there, the memory is its own."""
    command = [sys.executable, "-m", "tests.tools.run_cost", "one", *settings]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    return RunCost(**json.loads(done.stdout))


def one(settings: tuple[str, ...]) -> RunCost:
    """A run in this process."""
    with TemporaryDirectory() as folder, Peak() as peak:
        os.chdir(folder)
        if any(COLOUR in each for each in settings):
            write_colour(Path(COLOUR))
        session = api.Run(loading.load(None, settings), out=Path("run")).session
        for _ in session:
            pass
        os.chdir("/")
    return RunCost(settings, session.prepared.engine.name, peak.megabytes, session.profile())


def write_colour(path: Path) -> None:
    """A thousand random images of ten classes, and two hundred to test by."""
    draws = np.random.default_rng(0)
    sizes = {"train": 1000, "test": 200}
    images = {f"x_{k}": draws.random((n, 3, 32, 32), dtype=np.float32) for k, n in sizes.items()}
    classes = {f"y_{k}": draws.integers(10, size=n) for k, n in sizes.items()}
    np.savez(path, **images, **classes)  # type: ignore[arg-type]


class Peak:
    """The most memory of this process and all below it, while the context lasts."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def _look(self) -> None:
        while not self._over.wait(PAUSE):
            self.megabytes = max(self.megabytes, sum(map(own_megabytes, family())))


def family() -> list[int]:
    """This process and its children."""
    found = [os.getpid()]
    for each in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        found += map(int, each.read_text().split())
    return found


def own_megabytes(process: int) -> float:
    """Memory of a process; of what several share, each has its part."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="peak memory and the time of whole runs")
    parser.add_argument("what", choices=[*JOBS, "one"])
    parser.add_argument("settings", nargs="*", help="of `one` run in this process")
    parser.add_argument("--json", action="store_true", help="print a document")
    options = parser.parse_args()
    if options.what == "one":
        print(json.dumps(asdict(one(tuple(options.settings)))))
        return
    rows = [measured(job) for job in JOBS[options.what]]
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    for row in rows:
        whole = sum(row.seconds.values())
        shares = ", ".join(f"{name} {s / whole:.1%}" for name, s in row.seconds.items())
        print(f"{row.engine}, {row.megabytes:.0f} MB, {shares}: {' '.join(row.settings)}")


if __name__ == "__main__":
    main()
