"""The work that every peer does, and how it reports its speed. Needs only NumPy."""

import json
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np

CLIENTS, EXAMPLES, CLASSES = 50, 60, 10
BATCH, STEPS, RATE = 10, 5, 0.01
COLD, WARM = 2, 6  # rounds; only the warm ones are timed


def data() -> list[tuple[np.ndarray, np.ndarray]]:
    """(images, labels) of each client."""
    draws = np.random.default_rng(0)
    return [
        (
            draws.standard_normal((EXAMPLES, 1, 28, 28), dtype=np.float32),
            draws.integers(CLASSES, size=EXAMPLES),
        )
        for _ in range(CLIENTS)
    ]


def report(peer: str, version: str, begins: Sequence[float]) -> None:
    """One line of JSON. `begins`: when each round began, and when the last one ended."""
    rounds = [end - begin for begin, end in pairwise(begins)][COLD:]
    speed = CLIENTS * STEPS * BATCH / median(rounds)
    line = {"peer": peer, "version": version, "samples_per_second": speed, "rounds": rounds}
    print(json.dumps(line), flush=True)
