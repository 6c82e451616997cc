"""Which examples a client sees at which step: a function of (seed, client, step) alone.

A client goes through its examples in shuffled order, batch by batch, and shuffles again when no
full batch is left. Its position follows from the number of steps it has taken, so nothing has to be
kept between rounds, and a client with a small tau1 does not see the same few examples again and
again.
"""

from collections.abc import Sequence

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.seeds import rng

BATCHES = "batches"  # what the draws are for
DROPOUT = "dropout"  # the number that is the first half of the key of a run's masks (`dropout.py`)


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
        turn, position = divmod(step, per_pass)
        count = min(per_pass - position, first + steps - step)
        order = rng(seed, BATCHES, client, turn).permutation(examples)
        picked.append(order[position * size : (position + count) * size].reshape(count, size))
        step += count
    return np.concatenate(picked) if picked else np.empty((0, size), dtype=np.int64)


def passes(examples: Ints, batch_size: int) -> int:
    """Batches in one pass over a client's examples."""
    return len(examples) // min(batch_size, len(examples))


class Picker:
    """Picks the same batches, and remembers the pass that each client is in.

    Shuffling a client's examples costs as much as a few native steps, and rounds shorter than a
    pass would shuffle for the same pass again and again. One pass of every client is as much
    memory as the parts themselves.
    """

    def __init__(self, parts: Sequence[Ints], batch_size: int, seed: int, examples: int) -> None:
        self._parts, self._size, self._seed, self._examples = parts, batch_size, seed, examples
        self._passes: dict[int, tuple[int, Ints]] = {}  # client -> (turn, (batches, B))

    def passes(self, client: int) -> int:
        """Batches in one pass over a client's examples."""
        return passes(self._parts[client], self._size)

    def picked(self, client: int, first: int, steps: int) -> Ints:
        """(steps, B) rows of the training data, in one piece of memory."""
        each = self.passes(client)
        found, step = [], first
        while step < first + steps:
            turn, position = divmod(step, each)
            count = min(each - position, first + steps - step)
            found.append(self._pass(client, turn, each)[position : position + count])
            step += count
        if not found:
            return np.empty((0, min(self._size, len(self._parts[client]))), dtype=np.int64)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _pass(self, client: int, turn: int, each: int) -> Ints:
        known = self._passes.get(client)
        if known is None or known[0] != turn:
            rows = batches(self._parts[client], self._size, self._seed, client, turn * each, each)
            # C++ checks no sizes: a wrong row would be read from anywhere.
            if rows.min() < 0 or rows.max() >= self._examples:
                raise IndexError(f"it has rows beyond the {self._examples} examples")
            known = self._passes[client] = (turn, np.ascontiguousarray(rows, dtype=np.int64))
        return known[1]
