"""Shannon rates: what a channel carries where a client stands.

rate = B log2(1 + SNR),    SNR = P - N0 - 10 log10(B) - loss(distance)    (in decibels)
loss(distance) = loss at 1 km + 10 n log10(distance / 1 km)
"""

from dataclasses import dataclass

import numpy as np

from sdfeel.core.arrays import Floats, floats

NEAREST = 10.0  # metres: nobody stands nearer to the antenna


@dataclass(frozen=True)
class Cell:
    """What the radio of every cell is like: by default a macro cell's outdoors, near 2 GHz."""

    bandwidth_hz: float = 1e6  # of each client's own channel
    power_dbm: float = 23.0  # radiated by a client
    noise_dbm_per_hz: float = -174.0
    loss_db: float = 128.1  # of the path, at one kilometre
    exponent: float = 3.76  # how the loss grows with distance

    def snr(self, metres: Floats) -> Floats:
        """Mean signal to noise at so many metres.

        >>> (10 * np.log10(Cell().snr(np.array([100.0, 1000.0])))).round(2)
        array([46.5,  8.9])
        """
        noise = self.noise_dbm_per_hz + 10 * np.log10(self.bandwidth_hz)
        loss = self.loss_db + 10 * self.exponent * np.log10(metres / 1000)
        return floats(10 ** ((self.power_dbm - noise - loss) / 10))


def efficiency(snr: Floats) -> Floats:
    """Bits per second and hertz.

    >>> efficiency(np.array([10**1.5])).round(4)
    array([5.0278])
    """
    return floats(np.log2(1 + snr))


def snr_of(bits_per_second: Floats, bandwidth_hz: float) -> Floats:
    """The signal to noise at which a band carries so much."""
    return floats(np.expm1(bits_per_second / bandwidth_hz * np.log(2)))


def scattered(clients: int, radius: float, draws: np.random.Generator) -> Floats:
    """(C,) metres to the antenna of clients that stand anywhere in a round cell."""
    near = min(NEAREST, radius)
    return floats(np.sqrt(near**2 + (radius**2 - near**2) * draws.random(clients)))
