"""What clip and noise cost the native engine: python -m tests.tools.guard_speed

Rounds with and without them take turns in one process and are timed in processor seconds of all its
threads, so that whatever else the machine does matters less; of each the fastest quarter of the
turns counts. In a round, ten clients of the MNIST CNN take five steps each, and their server adds
up what they send. A ratio of 1.15 is what clip and noise may cost at most.
"""

import argparse
from time import process_time

import numpy as np
import torch

from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.combine import Sums
from sdfeel.engine.messages import Clip, Noise, Packing
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.models import zoo
from tests.tools.native_speed import best

CLIENTS = 10


def ratio(turns: int, steps: int) -> tuple[float, float]:
    """Seconds of a client's plain round, and how many times as long one with noise takes."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 1, 28, 28, generator=draws)
    data = Examples(x, torch.randint(10, (2000,), generator=draws))
    parts = [np.arange(n * 200, n * 200 + 200) for n in range(CLIENTS)]
    module = zoo.build("mnist-cnn", (1, 28, 28), 10, seed=0)
    engine = NativeEngine(Workload(module, data, parts, data, Training(0.01, 10), 0), threads=1)
    start = engine.initial()
    packing = Packing((len(start),), 0, (Clip(0.01), Noise(0.05)))
    took: list[list[float]] = [[], []]
    for k in range(turns + 1):
        for noisy in (0, 1) if k % 2 else (1, 0):
            tasks = [Task(c, start, steps, 0) for c in range(CLIENTS)]
            began, sums = process_time(), Sums(1, start)
            for task, row in zip(tasks, engine.train(tasks), strict=True):
                sent = packing.upload({}, task, row, k) if noisy else row
                sums.add(0, 1 / CLIENTS, sent)
            took[noisy].append(process_time() - began)
    engine.close()
    plain, noisy_one = (best(each[1:]) for each in took)  # the first turn warms up
    return plain / CLIENTS, noisy_one / plain


def main() -> None:
    parser = argparse.ArgumentParser(description="what clip and noise cost the native engine")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--steps", type=int, default=5, help="of a client in a round")
    options = parser.parse_args()
    seconds, times = ratio(options.turns, options.steps)
    print(f"mnist-cnn, {options.steps} steps: a client's round takes {1e6 * seconds:.0f} us, ")
    print(f"with clip and noise {times:.3f} times as long (at most 1.15)")


if __name__ == "__main__":
    main()
