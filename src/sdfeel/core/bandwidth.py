"""Sharing a cell's bandwidth so that all its clients finish together."""

import numpy as np

from sdfeel.core.arrays import Floats, floats

HALVINGS = 50  # of the interval in which the common end lies: almost to the last bit


def needed(efficiency: Floats, snr: Floats) -> Floats:
    """The share of bandwidth that gives each client so many bits per second and (equal) hertz.

    Solves b log2(1 + snr/b) = efficiency; infinite where no bandwidth is enough.

    >>> needed(np.array([5.0]), np.array([10**1.5])).round(5)
    array([0.99235])
    """
    nats = efficiency * np.log(2)
    gap = nats / snr
    reachable = gap < 1
    safe = np.where(reachable, gap, 0.5)
    share = -nats / (_lower_lambert(-safe * np.exp(-safe)) + safe)
    return floats(np.where(reachable, share, np.inf))


def _lower_lambert(x: Floats) -> Floats:
    """W(x) exp(W(x)) = x on the lower branch, for -1/e < x < 0: Halley's method."""
    near = np.sqrt(2 * np.maximum(1 + np.e * x, 0))
    far = np.log(-x) - np.log(-np.log(-x))
    w = np.where(x < -0.25, -1 - near - near**2 / 3, far)
    for _ in range(5):  # each triples the digits
        error = w * np.exp(w) - x
        slope = np.exp(w) * (w + 1) - (w + 2) * error / (2 * w + 2)
        w = w - np.divide(error, slope, out=np.zeros_like(error), where=slope != 0)
    return floats(w)


def equalised(busy: Floats, sending: Floats, snr: Floats, total: float) -> tuple[float, Floats]:
    """When all can finish at once; (R,) their shares of the bandwidth, `total` together.

    `busy` (R,) seconds of computing come first; `sending` (R,) are at a share of 1.

    >>> equalised(np.array([1.0, 1.0]), np.array([2.0, 2.0]), np.array([30.0, 30.0]), 2.0)
    (3.0, array([1., 1.]))
    """
    efficiency = np.log2(1 + snr)

    def shares(end: float) -> Floats:
        return needed(efficiency * sending / (end - busy), snr)

    low, high = float(busy.max()), float((busy + sending).max())
    while not shares(high).sum() <= total:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if shares(middle).sum() <= total else (middle, high)
    return high, shares(high)
