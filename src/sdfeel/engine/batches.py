"""Which examples a client sees at which step: a function of (seed, client, step) alone.

A client goes through its examples in shuffled order, batch by batch, and shuffles anew when no
full batch is left. Where it is follows from the steps it has taken, so nothing has to be kept
between rounds, and a small tau1 does not see the same few examples again and again.
"""

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.seeds import rng


def batches(
    examples: Ints, batch_size: int, seed: int, client: int, first: int, steps: int
) -> Ints:
    """(steps, B) rows of `examples` for steps `first` to `first + steps - 1`.

    A client with fewer examples than a batch uses all of them in every step.
    """
    size = min(batch_size, len(examples))
    per_pass = len(examples) // size
    picked, step = [], first
    while step < first + steps:
        turn, place = divmod(step, per_pass)
        count = min(per_pass - place, first + steps - step)
        order = rng(seed, "batches", client, turn).permutation(examples)
        picked.append(order[place * size : (place + count) * size].reshape(count, size))
        step += count
    return np.concatenate(picked) if picked else np.empty((0, size), dtype=np.int64)


def passes(examples: Ints, batch_size: int) -> int:
    """Batches in one pass over a client's examples."""
    return len(examples) // min(batch_size, len(examples))
