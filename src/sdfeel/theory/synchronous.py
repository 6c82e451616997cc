"""Theorem 1 and its lemmas: how fast synchronous SD-FEEL converges.

All depend on `period` = tau1 * tau2 (local iterations between two gossips) and on
`contraction` = zeta ** alpha (the disagreement that one gossip leaves). A cloud that averages
everything is contraction 0: HierFAVG, and FedAvg with tau2 = 1.
"""

from math import inf, sqrt

from sdfeel.core.errors import InputError, at_least
from sdfeel.theory.problem import Problem


def _check(period: float, contraction: float) -> None:
    at_least("tau1 * tau2", period, 1)
    if not 0 <= contraction < 1:
        raise InputError(
            f"zeta ** alpha must be at least 0 and below 1, got {contraction:g}: "
            f"with 1, servers never agree"
        )


def lag(contraction: float) -> float:
    """Capital Lambda of Lemma 2: how long old disagreement lives on.

    >>> lag(0.0), round(lag(0.5), 4)
    (0.0, 3.3333)
    """
    z = contraction
    return z**2 / (1 - z**2) + 2 * z / (1 - z) + z**2 / (1 - z) ** 2


def v3(period: float, contraction: float) -> float:
    """V_3 of Lemma 2: how clients' differences add up between and across gossips."""
    _check(period, contraction)
    z = contraction
    return period * (period * lag(z) + (period - 1) / 2 * (2 - z) / (1 - z))


def denominator(rate: float, smoothness: float, period: float, contraction: float) -> float:
    """1 - 16 eta^2 L^2 V_3, which Lemma 2 divides by; it must be above 0."""
    return 1 - 16 * (rate * smoothness) ** 2 * v3(period, contraction)


def v1(rate: float, smoothness: float, period: float, contraction: float) -> float:
    """V_1 of Lemma 2: what the noise of mini-batches adds up to; infinite outside the regime."""
    z, below = contraction, denominator(rate, smoothness, period, contraction)
    return (period * z**2 / (1 - z**2) + (period - 1) / 2) / below if below > 0 else inf


def v2(rate: float, smoothness: float, period: float, contraction: float) -> float:
    """V_2 of Lemma 2: what the clients' differences add up to; infinite outside the regime."""
    below = denominator(rate, smoothness, period, contraction)
    return v3(period, contraction) / below if below > 0 else inf


def drift(problem: Problem, rate: float, period: float, contraction: float) -> float:
    """Phi of Theorem 1: the price of training apart, 2 V_1 sigma^2 + 8 V_2 kappa^2."""
    arguments = rate, problem.smoothness, period, contraction
    if denominator(*arguments) <= 0:
        return inf
    return 2 * v1(*arguments) * problem.noise + 8 * v2(*arguments) * problem.divergence


def deviation(
    problem: Problem, rate: float, period: float, contraction: float, gradient: float
) -> float:
    """Lemma 2: how far clients are from their mean model, squared and averaged over a run.

    `gradient` is the run's mean of J_k, the squared length of the clients' averaged gradient.
    """
    pull = 8 * v2(rate, problem.smoothness, period, contraction) * gradient
    return rate**2 * (drift(problem, rate, period, contraction) + pull)


def descent(
    problem: Problem, rate: float, slope: float, gradient: float, deviation: float
) -> float:
    """Lemma 3: the most by which one step raises the loss (negative: lowers it).

    `slope` is the squared gradient at the mean model, `gradient` J_k, `deviation` the clients'
    mean squared distance from the mean model.
    """
    smooth = problem.smoothness
    return (
        -rate / 2 * slope
        + rate**2 * smooth / 2 * problem.floor
        - rate / 2 * (1 - rate * smooth) * gradient
        + rate * smooth**2 / 2 * deviation
    )


def admissible(rate: float, smoothness: float, period: float, contraction: float) -> bool:
    """Do both conditions of Theorem 1 on the learning rate hold?"""
    product = rate * smoothness
    if denominator(rate, smoothness, period, contraction) <= 0:
        return False
    return 1 - product - 8 * product**2 * v2(rate, smoothness, period, contraction) >= 0


def largest_step(smoothness: float, period: float, contraction: float) -> float:
    """The largest learning rate for which Theorem 1 holds.

    With x = eta L, both conditions say that 16 V_3 x^3 - 24 V_3 x^2 - x + 1 is not below 0; it
    falls all the way from x = 0 to x = 1, so halving the interval finds its only root there.

    >>> largest_step(2.0, 1, 0.0)
    0.5
    """
    spread = v3(period, contraction)
    low, high = 0.0, 1.0 if spread == 0 else min(1.0, 1 / (4 * sqrt(spread)))
    if spread == 0:
        return high / smoothness
    while (middle := (low + high) / 2) not in (low, high):
        value = (16 * spread * middle - 24 * spread) * middle**2 - middle + 1
        low, high = (middle, high) if value >= 0 else (low, middle)
    return low / smoothness


def bound(
    problem: Problem, rate: float, iterations: float, period: float, contraction: float
) -> float:
    """Theorem 1: the mean squared gradient after `iterations`; infinite outside the regime."""
    smooth = problem.smoothness
    if not admissible(rate, smooth, period, contraction):
        return inf
    return (
        2 * problem.gap / (rate * iterations)
        + rate * smooth * problem.floor
        + (rate * smooth) ** 2 * drift(problem, rate, period, contraction)
    )


def corollary(problem: Problem, iterations: float, period: float, contraction: float) -> float:
    """Corollary 1: the bound at eta = 1 / (L sqrt K), of order 1 / sqrt K."""
    return bound(
        problem, 1 / (problem.smoothness * sqrt(iterations)), iterations, period, contraction
    )
