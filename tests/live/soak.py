"""A long deployment: memory, descriptors and disk of every node must not grow with the rounds.

`make soak` runs it; `python -m tests.live.soak --seconds 60` is a short one.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from sdfeel.core.events import Round
from sdfeel.deploy.files import PolicySection
from sdfeel.deploy.local import LocalDeployment
from sdfeel.experiment.loading import load
from tests.live import matrix

SETTINGS = [*matrix.SETTINGS, "evaluation.every=100", "training.iterations=100000000"]
Sample = dict[str, tuple[int, int, int]]  # node -> resident bytes, descriptors, bytes on disk


def sample(deployment: LocalDeployment) -> Sample:
    """How much each node has of everything, now."""
    found = {}
    for name, pid in deployment.processes.pids().items():
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        files = len(os.listdir(f"/proc/{pid}/fd"))
        state = deployment.directory / "nodes" / name / "state"
        disk = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
        found[name] = (pages * os.sysconf("SC_PAGE_SIZE"), files, disk)
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=600.0)
    seconds = options.parse_args().seconds
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    policy = PolicySection(keep_records=500)  # so that pruning begins soon
    deployment = LocalDeployment(load(None, SETTINGS), directory / "run", policy)
    samples: list[Sample] = []
    began, rounds = time.monotonic(), 0
    try:
        for event in deployment:
            rounds = event.number if isinstance(event, Round) else rounds
            due = began + len(samples) * seconds / 40
            if rounds > 5 and time.monotonic() >= due:
                samples.append(sample(deployment))
            if time.monotonic() - began >= seconds:
                deployment.stop()
    finally:
        shutil.rmtree(directory)
    return report(samples, rounds)


def report(samples: list[Sample], rounds: int) -> int:
    """Compare the second quarter of the time with the last one; 1 if something grew."""
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    grew = False
    print(f"{rounds} rounds, {len(samples)} samples: second quarter -> last quarter")
    for name in samples[0]:
        before, after = (
            [statistics.median(each[name][n] for each in part) for n in range(3)]
            for part in (early, late)
        )
        bad = after[0] > 1.05 * before[0] or after[1] > before[1] + 1
        bad = bad or after[2] > 1.05 * before[2]
        grew = grew or bad
        print(
            f"{name:10} memory {before[0] / 1e6:7.1f} -> {after[0] / 1e6:7.1f} MB, descriptors "
            f"{before[1]:.0f} -> {after[1]:.0f}, disk {before[2] / 1e6:.2f} -> "
            f"{after[2] / 1e6:.2f} MB{'  GREW' if bad else ''}"
        )
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
