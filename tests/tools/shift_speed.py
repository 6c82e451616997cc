"""What a shift costs the native engine: python -m tests.tools.shift_speed

Both kinds of steps take turns in one process, on one thread, and are timed in processor seconds, so
that whatever else the machine does matters less; of each the fastest quarter of the turns counts. A
ratio of 1.15 is what a shift may cost the MNIST CNN at most.
"""

import argparse
from time import process_time

import numpy as np
import torch

from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.models import zoo
from tests.tools.native_speed import best

STEPS, CLIENTS = 20, 10


def ratio(turns: int, batch: int) -> tuple[float, float]:
    """Seconds of a plain step, and how many times as long a step with a shift takes."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 1, 28, 28, generator=draws)
    data = Examples(x, torch.randint(10, (2000,), generator=draws))
    parts = [np.arange(n * 200, n * 200 + 200) for n in range(CLIENTS)]
    module = zoo.build("mnist-cnn", (1, 28, 28), 10, seed=0)
    engine = NativeEngine(Workload(module, data, parts, data, Training(0.001, batch), 0), threads=1)
    start = engine.initial()
    shift = 1e-3 * torch.randn(start.shape, generator=draws)
    took: list[list[float]] = [[], []]
    for n in range(turns + 1):
        for which in (0, 1) if n % 2 else (1, 0):
            own = shift if which else None
            tasks = [Task(c, start, STEPS, 0, shift=own) for c in range(CLIENTS)]
            began = process_time()
            for _ in engine.train(tasks):
                pass
            took[which].append(process_time() - began)
    engine.close()
    plain, shifted = (best(each[1:]) for each in took)  # the first turn warms up
    return plain / STEPS / CLIENTS, shifted / plain


def main() -> None:
    parser = argparse.ArgumentParser(description="what a shift costs the native engine")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--batch", type=int, default=10)
    options = parser.parse_args()
    seconds, times = ratio(options.turns, options.batch)
    print(f"mnist-cnn, batches of {options.batch}: a plain step takes {1e6 * seconds:.0f} us, ")
    print(f"a step with a shift {times:.3f} times as long (at most 1.15)")


if __name__ == "__main__":
    main()
