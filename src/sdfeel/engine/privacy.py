"""How much can be learned about a client, or about one of its examples, from what others see.

Every release is a Gaussian mechanism: something of bounded length, with noise. Several of them,
with lengths l and deviations s, reveal as much as a single one with 1/s^2 = sum l^2/s^2 (Dong, Roth
and Su 2022); this sum is what is counted here, as `loss`. What it means as (epsilon, delta) is
exact (Balle and Wang 2018) and computed by Google's dp-accounting.

Random draws are not counted as protection: who takes part and which examples make a batch follow
from the experiment's seed, which all nodes know.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from math import inf, sqrt
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.mixing import Mixing

INSTALLED = find_spec("dp_accounting") is not None
EPSILON, OUTSIDE = "epsilon", "epsilon outside the cluster"
MISSING = "epsilon is not computed without dp-accounting: install sdfeel[privacy]"


@dataclass(frozen=True)
class Budget:
    """What is protected, by how much noise, and how certainly."""

    protects: Literal["clients", "examples"]
    clip: float  # the greatest length of an update, or of one example's gradient
    deviation: float  # of the noise on each number of a message, or of a batch's sum
    delta: float
    per_pass: Ints | None = None  # (C,) examples: local iterations in a pass over a client's data
    sums: bool = False  # does a server see only the sum of its clients' messages?
    liars: frozenset[int] = frozenset()  # add no noise: they hide nobody, and are promised nothing

    @property
    def statement(self) -> str:
        """What is promised, in a sentence."""
        what = "update" if self.protects == "clients" else "example's gradient"
        ways = {
            "clients": "every message of a client is one release",
            "examples": "every pass over a client's data is one release",
        }
        told = "" if INSTALLED else f"; {MISSING}"
        return (
            f"privacy of {self.protects}: each {what} is clipped to {self.clip:g} and gets noise "
            f"of {self.deviation:g}; {ways[self.protects]}, all releases are composed, sampling "
            f"adds no protection, and delta is {self.delta:g}{told}"
        )

    def round(self, up: Mixing, clients: int, late: Ints | None = None) -> Floats:
        """(2, C) the loss of a round, to a client's own server and to whoever sees its model.

        A server sees the messages of those who are `late`, too, although it does not take them.
        """
        if not self.deviation:
            return floats(np.full((2, clients), inf))
        single = (self.clip / self.deviation) ** 2
        took = np.setdiff1d(up.sources[up.sources >= 0], list(self.liars))
        found = np.zeros((2, clients))
        found[:, took] = single
        if up.rule is None:
            found[1] = single * shares(up, clients, self.liars)
        if self.sums:  # a late client stays under its masks
            found[0] = found[1]
        elif late is not None:
            found[0, np.setdiff1d(late, list(self.liars))] = single
        return floats(found)

    def in_vain(self, late: Ints, planned: Ints) -> Floats:
        """(2, C) the loss of examples in steps whose models come too late: a server sees them."""
        assert self.per_pass is not None
        found = np.zeros((2, len(planned)))
        if self.deviation:
            found[:, late] = self.steps(planned)[late]
        return floats(found)

    def steps(self, taken: Ints) -> Floats:
        """(C,) the loss of an example after this many iterations: a pass uses each once at most."""
        assert self.per_pass is not None
        if not self.deviation:
            return floats(np.where(taken > 0, inf, 0.0))
        return floats(-(-taken // self.per_pass) * (self.clip / self.deviation) ** 2)

    def epsilons(self, spent: Floats, taken: Ints) -> dict[str, float]:
        """The epsilon of the least protected client or example, to be reported by name."""
        if not INSTALLED or not self.deviation:
            return {}
        if self.protects == "examples":
            seen = self.steps(taken) + (spent[0] if spent.size else 0.0)
            return {EPSILON: epsilon(float(seen.max(initial=0)), self.delta)}
        own, others = spent.max(axis=1, initial=0)
        found = {EPSILON: epsilon(float(own), self.delta)}
        return found if own == others else {**found, OUTSIDE: epsilon(float(others), self.delta)}


def epsilon(loss: float, delta: float) -> float:
    """The epsilon of Gaussian mechanisms with this sum of squared lengths over deviations."""
    if loss in (0, inf):
        return loss
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1 / sqrt(loss), delta))


def shares(up: Mixing, clients: int, liars: frozenset[int] = frozenset()) -> Floats:
    """(C,) how much the sums that each client's message goes into reveal about it.

    If `n` clients count alike, a sum reveals 1/n of each: n - 1 others' noise hides it, too. Liars
    add none.
    """
    sums = np.zeros((len(up.rows), clients))
    for n, (_, sources, weights) in enumerate(up):
        own = sources >= 0
        sums[n, sources[own]] = weights[own]
    sums[:, list(liars)] = 0
    return revealed(sums)


def revealed(seen: Floats) -> Floats:
    """(C,) how much rows that are sums of independent noises reveal about each of the noises.

    The diagonal of the projection on the rows: 1 where a noise can be isolated, 0 where it is not
    in any sum.

    >>> revealed(np.array([[1.0, 1.0, 2.0]])).round(3).tolist()
    [0.167, 0.167, 0.667]
    """
    seen = seen[np.abs(seen).sum(axis=1) > 0]
    if not len(seen):
        return floats(np.zeros(seen.shape[1]))
    _, sizes, rows = np.linalg.svd(seen, full_matrices=False)
    kept = rows[sizes > sizes.max() * 1e-9]
    return floats(np.minimum(np.square(kept).sum(axis=0), 1.0))
