"""How long it takes until the bound falls below a target: what a planner minimises."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, inf, isfinite, log

import numpy as np

from sdfeel.theory import asynchronous, synchronous
from sdfeel.theory.asynchronous import ClusterPace
from sdfeel.theory.problem import Problem

GOLDEN = (5**0.5 - 1) / 2
SECTIONS = 20  # golden sections: log eta to four digits, and the cost is flat there
LOOKS = 33


@dataclass(frozen=True)
class Best:
    """The learning rate that reaches the target first, and when."""

    rate: float
    steps: float  # local iterations, or events when asynchronous; infinite: never


def needed(problem: Problem, epsilon: float, rate: float, period: int, contraction: float) -> float:
    """K: iterations after which Theorem 1 promises a mean squared gradient of `epsilon`."""
    # With infinitely many iterations only the part of the bound that never vanishes is left.
    left = epsilon - synchronous.bound(problem, rate, inf, period, contraction)
    return 2 * problem.gap / (rate * left) if left > 0 else inf


def fastest(problem: Problem, epsilon: float, period: int, contraction: float) -> Best:
    """K*: the fewest iterations over all admissible learning rates, in whole periods."""
    top = synchronous.largest_step(problem.smoothness, period, contraction)
    best = _least(lambda rate: needed(problem, epsilon, rate, period, contraction), top)
    whole = ceil(best.steps / period) * period if isfinite(best.steps) else inf
    return Best(best.rate, whole)


def seconds(
    problem: Problem, epsilon: float, period: int, contraction: float, per_iteration: float
) -> float:
    """The planner's objective: K* iterations at `per_iteration` seconds each."""
    return fastest(problem, epsilon, period, contraction).steps * per_iteration


def fastest_asynchronous(
    problem: Problem, epsilon: float, pace: ClusterPace, printed: bool = False
) -> Best:
    """The fewest events over all admissible learning rates, by Theorem 2."""

    def events(rate: float) -> float:
        left = epsilon - asynchronous.bound(problem, rate, inf, pace, printed)
        if left <= 0:
            return inf
        return asynchronous.bound(problem, rate, 1, pace, printed) / left - (epsilon - left) / left

    return _least(events, asynchronous.largest_step(problem, pace, printed))


def _least(cost: Callable[[float], float], top: float) -> Best:
    """The least cost over rates up to `top`: a coarse scan, then golden sections around the best.

    The scan comes first because the cost is infinite, and flat, where a rate is too large.
    """
    rates = np.geomspace(top * 1e-8, top, LOOKS).tolist()
    costs = [cost(rate) for rate in rates]
    lowest = int(np.argmin(costs))
    if not isfinite(costs[lowest]):
        return Best(top, inf)
    low, high = log(rates[max(lowest - 1, 0)]), log(rates[min(lowest + 1, LOOKS - 1)])
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = cost(exp(left)), cost(exp(right))
    for _ in range(SECTIONS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = cost(exp(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = cost(exp(right))
    steps, rate = min((at_left, exp(left)), (at_right, exp(right)), (costs[lowest], rates[lowest]))
    return Best(rate, steps)
