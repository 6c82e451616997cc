"""Theorem 2 and its lemmas: how fast asynchronous SD-FEEL converges.

It is a guide, not a guarantee: the analysis moves all clusters at every event, while the algorithm
moves one, and it needs products of mixing matrices to shrink, which is observed but not proven. It
is good for ranking settings; do not expect it to be tight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import InputError, at_least
from sdfeel.theory.problem import Problem


@dataclass(frozen=True)
class ClusterPace:
    """How unevenly clusters advance."""

    theta_min: float  # fewest local steps of a client in one round of its cluster
    theta_max: float  # most
    age: float  # delta_max: rounds of others that a model may miss
    rho: float  # factor by which one event shrinks disagreement, on average

    def __post_init__(self) -> None:
        at_least("theta_min", self.theta_min, 1)
        at_least("theta_max", self.theta_max, self.theta_min)
        if not 0 <= self.rho < 1:
            raise InputError(f"rho must be at least 0 and below 1, got {self.rho:g}")

    @property
    def echo(self) -> float:
        """The sum of rho over all earlier events, under the geometric envelope rho ** events."""
        return self.rho / (1 - self.rho)

    @property
    def echo_squared(self) -> float:
        """The sum of rho squared over all earlier events."""
        return self.rho**2 / (1 - self.rho**2)


def oldest(round_seconds: Sequence[float], printed: bool = False) -> int:
    """delta_max of Lemma 4: how many rounds of others can pass between two of the slowest.

    The printed sum is too small: for equal clusters it gives 0 where all the others pass once.

    >>> oldest([1.0, 1.0, 1.0]), oldest([1.0, 1.0, 1.0], printed=True)
    (2, 0)
    """
    slowest = int(np.argmax(round_seconds))
    longest = round_seconds[slowest]
    counts = [ceil(longest / each * (1 - 1e-12)) for each in round_seconds]
    if printed:
        return sum(count - 1 for count in counts)
    return sum(count for d, count in enumerate(counts) if d != slowest)


def envelope(mixings: Sequence[Floats]) -> float:
    """rho: the mean factor by which each of these mixings, one after another, shrinks disagreement.

    `mixings[n][dst, src]` are whole (D, D) matrices in the order of the events.
    """
    servers = len(mixings[0])
    product = np.eye(servers)
    for each in mixings:
        product = each @ product
    left = float(np.linalg.norm(product - product.mean(axis=0), 2))
    return float(left ** (1 / len(mixings)))


def _y(rate: float, smoothness: float, pace: ClusterPace) -> float:
    """eta^2 L^2 U_2, which must stay below one half."""
    return (rate * smoothness) ** 2 * pace.theta_max * (pace.theta_max - 1)


def u1(y: float, printed: bool = False) -> float:
    """U_1: what is left of the descent; the paper prints 14 where its own lemmas give 50."""
    return (1 - (14 if printed else 50) * y) / (1 - 2 * y)


def u3(y: float) -> float:
    """U_3: how local drift enlarges the spread between clusters."""
    return (1 + 4 * y) / (1 - 2 * y)


def u4(y: float) -> float:
    """U_4: how local drift enlarges staleness."""
    return (1 + 22 * y) / (1 - 2 * y)


def staleness(
    problem: Problem, rate: float, pace: ClusterPace, gradient: float, printed: bool = False
) -> float:
    """Lemma 7: squared error from models that are old. `gradient` is Q.

    The paper divides kappa^2 by theta as if it were noise; clients' differences do not average out.
    """
    shared = 4 if not printed else 4 / pace.theta_min
    inside = (
        2 * problem.noise / pace.theta_min + shared * problem.divergence + 4 * gradient
    ) * pace.theta_max**2
    return rate**2 * pace.age**2 * inside


def spread(
    problem: Problem, rate: float, pace: ClusterPace, gradient: float, printed: bool = False
) -> float:
    """Lemma 8: squared distance between the clusters' models. `gradient` is Q.

    kappa^2 is again divided by theta in print, by the same step as in Lemma 7.
    """
    shared = 4 if not printed else 4 / pace.theta_min
    inside = (
        2 * problem.noise / pace.theta_min * pace.echo_squared
        + shared * problem.divergence * pace.echo**2
        + 4 * gradient * pace.echo**2
    )
    return rate**2 * pace.theta_max**2 * inside


def local_drift(
    problem: Problem, rate: float, pace: ClusterPace, slope: float, staleness: float, spread: float
) -> float:
    """Lemma 9: squared distance that clients move away from their server's model in a round.

    `slope` is the squared gradient at the mean model.
    """
    smooth = problem.smoothness
    y = _y(rate, smooth, pace)
    pulled = 3 * smooth**2 * spread + 3 * problem.divergence + 6 * slope + 6 * smooth**2 * staleness
    inside = (pace.theta_max - 1) * problem.noise + 2 * pace.theta_max * (
        pace.theta_max - 1
    ) * pulled
    return rate**2 * inside / (1 - 2 * y)


def descent(
    problem: Problem, rate: float, pace: ClusterPace, slope: float, gradient: float, error: float
) -> float:
    """Lemma 5: the most by which one event raises the loss.

    `slope` is the squared gradient at the mean model, `gradient` Q, `error` the squared error of
    the averaged old gradients.
    """
    smooth, least, most = problem.smoothness, pace.theta_min, pace.theta_max
    return (
        -rate * least / 2 * slope
        + rate**2 * smooth * most**2 / (2 * least) * problem.floor
        - rate / 2 * (least - rate * smooth * most**2) * gradient
        + rate * least / 2 * error
    )


@dataclass(frozen=True)
class Weights:
    """Lemma 6: the error is at most a sigma^2 + b kappa^2 + c Q + d |grad F|^2."""

    a: float
    b: float
    c: float
    d: float


def weights(problem: Problem, rate: float, pace: ClusterPace, printed: bool = False) -> Weights:
    """A, B and C of Lemma 6, and the weight of the gradient that the paper leaves out."""
    y = _y(rate, problem.smoothness, pace)
    scale = (rate * problem.smoothness) ** 2
    least, most = pace.theta_min, pace.theta_max
    shared = most**2 / least if printed else most**2
    old, apart = pace.age**2 * u4(y), u3(y)
    return Weights(
        a=4 * scale * most**2 / least * old
        + 4 * scale * (most - 1) / (1 - 2 * y)
        + 8 * scale * most**2 / least * apart * pace.echo_squared,
        b=8 * scale * shared * old
        + 24 * y / (1 - 2 * y)
        + 16 * scale * shared * apart * pace.echo**2,
        c=8 * scale * (most if printed else most**2) * old
        + 16 * scale * most**2 * apart * pace.echo**2,
        d=0.0 if printed else 48 * y / (1 - 2 * y),
    )


def admissible(problem: Problem, rate: float, pace: ClusterPace, printed: bool = False) -> bool:
    """Do the conditions of Theorem 2 hold, and is anything left of the descent (U_1 above 0)?"""
    y = _y(rate, problem.smoothness, pace)
    if 1 - 2 * y <= 0 or u1(y, printed) <= 0:
        return False
    step = rate * problem.smoothness * pace.theta_max**2 / pace.theta_min
    return 1 - step - weights(problem, rate, pace, printed).c >= 0


def largest_step(problem: Problem, pace: ClusterPace, printed: bool = False) -> float:
    """The largest learning rate for which Theorem 2 holds: conditions only get harder with it."""
    low, high = 0.0, 1 / problem.smoothness
    while (middle := (low + high) / 2) not in (low, high):
        fits = admissible(problem, middle, pace, printed)
        low, high = (middle, high) if fits else (low, middle)
    return low


def bound(
    problem: Problem, rate: float, events: float, pace: ClusterPace, printed: bool = False
) -> float:
    """Theorem 2: the mean squared gradient after `events`; infinite outside the regime."""
    if not admissible(problem, rate, pace, printed):
        return inf
    left = u1(_y(rate, problem.smoothness, pace), printed)
    found = weights(problem, rate, pace, printed)
    least, most = pace.theta_min, pace.theta_max
    return (
        2 * problem.gap / (rate * least * events)
        + rate * problem.smoothness * most**2 / least**2 * problem.floor
        + found.a * problem.noise
        + found.b * problem.divergence
    ) / left
