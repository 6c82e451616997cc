"""The native engine of two versions side by side: python -m tests.tools.native_speed

Both versions run in processes of their own and take turns, one thread each, so that whatever else
the machine does is shared by both; of each the fastest turns are compared. Rows are ratios, after
over before: above 1 is slower. By default the version before is the last without one order of sums
for all CPUs, of which at most 1.05 (AVX-512) and 1.10 (AVX2) may be lost. Ask a quiet machine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOME = Path(__file__).parents[2]
BEFORE = "0646ccf^"
TARGETS = {"avx512": "-march=x86-64-v4", "avx2": "-march=x86-64-v3"}
MODELS = {"logistic": "1,28,28", "mlp": "1,28,28", "mnist-cnn": "1,28,28", "cifar-cnn": "3,32,32"}
# Knows only what both versions have. A line in is a turn, a line out its seconds.
WORKER = """
import sys, time, torch
import numpy as np
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.models import zoo
name, shape, size = sys.argv[1], tuple(map(int, sys.argv[2].split(","))), int(sys.argv[3])
draws = torch.Generator().manual_seed(0)
x = torch.randn(2000, *shape, generator=draws)
y = torch.randint(10, (2000,), generator=draws)
data = Examples(x, y)
parts = [np.arange(n * 200, n * 200 + 200) for n in range(10)]
module = zoo.build(name, shape, 10, seed=0)
work = Workload(module, data, parts, data, Training(0.001, size), 0)
engine = NativeEngine(work, threads=1)
start = engine.initial()
steps = max(1, int(float(sys.argv[4]) * 20))
print("ready", flush=True)
for line in sys.stdin:
    began = time.process_time()
    if line.strip() == "train":
        for row in engine.train([Task(c, start, steps, 0) for c in range(10)]):
            pass
    else:
        for _ in range(-(-steps // 4)):  # a turn must be long enough for the clock
            engine.evaluate(start)
    print(time.process_time() - began, flush=True)
"""
LENGTHS = {"logistic": 20.0, "mlp": 4.0, "mnist-cnn": 1.0, "cifar-cnn": 0.05}


@contextmanager
def worker(
    source: Path, name: str, compiler: Path, cache: Path
) -> "Iterator[subprocess.Popen[str]]":
    """A process that trains by the package in `source`."""
    given = {"PYTHONPATH": str(source), "CXX": str(compiler), "XDG_CACHE_HOME": str(cache)}
    words = [sys.executable, "-c", WORKER, name, MODELS[name], "10", str(LENGTHS[name])]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **given}
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{name} cannot be timed by {source}")
        yield process
    finally:
        process.kill()
        process.wait(60)


def turn(process: "subprocess.Popen[str]", deed: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{deed}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def best(seconds: list[float]) -> float:
    """The mean of the fastest quarter: what disturbs only adds."""
    chosen = sorted(seconds)[: max(1, len(seconds) // 4)]
    return sum(chosen) / len(chosen)


def ratios(name: str, target: str, before: Path, turns: int, folder: Path) -> dict[str, float]:
    compiler = folder / f"{target}.sh"
    compiler.write_text(f'#!/bin/sh\nexec g++ "$@" {TARGETS[target]}\n')  # the last word counts
    compiler.chmod(0o755)
    sources = (before, HOME / "src")
    with (
        worker(sources[0], name, compiler, folder / f"{target}-0") as old,
        worker(sources[1], name, compiler, folder / f"{target}-1") as new,
    ):
        found = {}
        for deed in ("train", "evaluate"):
            took: list[list[float]] = [[], []]
            for n in range(turns + 1):
                pairs = [(0, old), (1, new)]
                for which, process in pairs if n % 2 else reversed(pairs):
                    took[which].append(turn(process, deed))
            found[deed] = best(took[1][1:]) / best(took[0][1:])  # the first turn warms up
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description="the native engine of two versions side by side")
    parser.add_argument("--before", default=BEFORE, help="a commit")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        archive = subprocess.run(
            ["git", "-C", str(HOME), "archive", options.before, "src"],
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True, timeout=60)
        load = os.getloadavg()[0]
        print(f"after over before, {options.turns} turns each; load {load:.1f} at the beginning")
        print(f"{'':12}{'':8}{'train':>8}{'evaluate':>10}")
        for name in options.models.split(","):
            for target in options.targets.split(","):
                found = ratios(name, target, place / "src", options.turns, place)
                print(
                    f"{name:12}{target:8}{found['train']:8.2f}{found['evaluate']:10.2f}", flush=True
                )


if __name__ == "__main__":
    main()
