"""The paper's latency model: how long one local iteration takes.

    seconds(K) = K * (T_comp + T_cs / tau1 + alpha * T_ss / (tau1 * tau2))

T_comp is one local iteration at the slowest client, T_cs one model from a client to its server,
T_ss one model between two servers. The constants in the paper's text contradict its figures, so
PRESETS has two readings of it, and a third for what deployments do.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError

IterationUnit = Literal["batch", "epoch"]
SamplesPerIteration = Literal["one", "batch", "all"]


@dataclass(frozen=True)
class Reading:
    """How the paper's 'one local iteration' and its operation count are understood."""

    samples_per_iteration: SamplesPerIteration
    backward_factor: float
    iteration_unit: IterationUnit
    downlink: bool = False  # does sending models down take time?
    calls: bool = False  # is each model asked for, and sent to one node at a time?
    holds: bool = False  # do asynchronous exchanges wait for one another?


PRESETS = {
    # The printed numbers as they stand: the operations of one sample's forward pass per iteration.
    "paper-literal": Reading("one", 1.0, "batch"),
    # An iteration is a pass over the client's data: the reading that fits the paper's statements.
    "paper-epoch": Reading("all", 1.0, "epoch"),
    # What really happens: all samples of a batch, forwards and backwards, and models sent down.
    "deployed": Reading("batch", 3.0, "batch", downlink=True, calls=True, holds=True),
}


def step_seconds(
    speeds: Floats,  # (C,) operations per second
    samples: Floats,  # (C,)
    operations: float,  # of one sample's forward pass
    batch_size: int,
    reading: Reading,
) -> Floats:
    """(C,) seconds of one local iteration at each client.

    >>> literal = PRESETS["paper-literal"]
    >>> float(step_seconds(np.array([1e10]), np.array([1200]), 487_540, 10, literal)[0])
    4.8754e-05
    """
    counted = {
        "one": np.ones_like(samples),
        "batch": np.minimum(batch_size, samples),
        "all": samples,
    }[reading.samples_per_iteration]
    return floats(counted * operations * reading.backward_factor / speeds)


def speeds(clients: int, mean: float, spread: float) -> Floats:
    """(C,) operations per second, evenly spaced, slowest first: fastest / slowest = `spread`.

    The mean stays the same for every spread, so that unequal devices are no faster as a whole.

    >>> speeds(3, 10.0, 3.0).tolist()
    [5.0, 10.0, 15.0]
    """
    if not spread >= 1:
        raise InputError(
            f"devices.spread (fastest over slowest) must be at least 1, got {spread:g}"
        )
    if not mean > 0:
        raise InputError(f"devices.gflops must be above 0, got {mean / 1e9:g}")
    slowest = 2 * mean / (1 + spread)
    return floats(np.linspace(slowest, spread * slowest, clients))


Placement = Literal["random", "clustered", "even"]


def assigned(
    ascending: Floats, placement: Placement, home: Ints, rng: np.random.Generator
) -> Floats:
    """(C,) speeds assigned to clients: at random, cluster by cluster, or evenly within each.

    >>> home = np.array([0, 0, 1, 1])
    >>> assigned(np.array([1.0, 2, 3, 4]), "clustered", home, np.random.default_rng(0)).tolist()
    [1.0, 2.0, 3.0, 4.0]
    >>> assigned(np.array([1.0, 2, 3, 4]), "even", home, np.random.default_rng(0)).tolist()
    [1.0, 4.0, 2.0, 3.0]
    """
    if placement == "random":
        return floats(rng.permutation(ascending))
    order = np.argsort(home, kind="stable")  # cluster by cluster
    if placement == "even":
        # One client of every cluster before any gets a second, back and forth so that none is
        # favoured.
        turn = np.empty(len(home), dtype=np.int64)
        for d in np.unique(home):
            turn[home == d] = np.arange((home == d).sum())
        order = np.lexsort((np.where(turn % 2, -home, home), turn))
    given = np.empty_like(ascending)
    given[order] = ascending
    return floats(given)
