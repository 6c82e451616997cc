"""Shannon rates: how much a channel carries at a client's position.

rate = B log2(1 + SNR),    SNR = P - N0 - 10 log10(B) - loss(distance)    (in decibels)
loss(distance) = loss at 1 km + 10 n log10(distance / 1 km)
"""

import math
from dataclasses import dataclass, field
from math import erfc, gamma

import numpy as np

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.errors import InputError
from sdfeel.core.portable import exp, expm1, log1p, log2, log10, power
from sdfeel.core.seeds import rng
from sdfeel.core.whereabouts import Whereabouts

NEAREST = 10.0  # metres: nobody is closer to the antenna


@dataclass(frozen=True)
class Cell:
    """The radio of every cell: by default, an outdoor macro cell near 2 GHz."""

    bandwidth_hz: float = 1e6  # of each client's own channel
    power_dbm: float = 23.0  # radiated by a client
    noise_dbm_per_hz: float = -174.0
    loss_db: float = 128.1  # of the path, at one kilometre
    exponent: float = 3.76  # how the loss grows with distance

    def snr(self, metres: Floats) -> Floats:
        """Mean signal to noise at this many metres.

        >>> (10 * np.log10(Cell().snr(np.array([100.0, 1000.0])))).round(2)
        array([46.5,  8.9])
        """
        noise = self.noise_dbm_per_hz + 10 * math.log10(self.bandwidth_hz)
        loss = self.loss_db + 10 * self.exponent * log10(metres / 1000)
        return floats(exp((self.power_dbm - noise - loss) / 10 * math.log(10)))


def efficiency(snr: Floats) -> Floats:
    """Bits per second and hertz.

    >>> efficiency(np.array([10**1.5])).round(4)
    array([5.0278])
    """
    return floats(log2(1 + snr))


def snr_of(bits_per_second: Floats, bandwidth_hz: float) -> Floats:
    """The signal to noise at which a band carries this much."""
    return floats(expm1(bits_per_second / bandwidth_hz * math.log(2)))


def scattered(clients: int, radius: float, draws: np.random.Generator) -> Floats:
    """(C,) metres to the antenna for clients placed anywhere in a round cell."""
    near = min(NEAREST, radius)
    return floats(np.sqrt(near**2 + (radius**2 - near**2) * draws.random(clients)))


REMEMBERED = 1024  # rounds whose draws are kept, since lanes are in different rounds


@dataclass(frozen=True, eq=False)
class Fading:
    """Block fading: each client's gain is drawn for a whole round, close to the previous round's.

    The gain |g|^2 is the mean of 2m squared Gaussians, each of which follows
    g(k+1) = r g(k) + sqrt(1 - r^2) n: Nakagami-m fading with mean 1. m = 1 is Rayleigh's.
    """

    client_rates: Floats  # (C,) rates without fading, as multiples of their link's
    snr: Floats  # (C,) mean signal to noise
    m: float = 1.0
    correlation: float = 0.0  # r, from one round to the next
    seed: int = 0
    _known: dict[int, Floats] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not (2 * self.m >= 1 and (2 * self.m).is_integer()):
            raise InputError(f"radio.nakagami_m must be 0.5, 1, 1.5, 2, ..., got {self.m:g}")
        if not 0 <= self.correlation < 1:
            raise InputError(
                f"radio.correlation must be at least 0 and below 1, got {self.correlation:g}"
            )

    def at(self, k: int, seconds: float) -> tuple[Floats, Floats]:
        snr = floats(self.snr * self.gains(k))
        return floats(self.client_rates * efficiency(snr) / efficiency(self.snr)), snr

    def gains(self, k: int) -> Floats:
        """(C,) |g|^2 in round `k`, whoever asks and in whatever order."""
        return floats((self._parts(k) ** 2).mean(axis=1))

    def chance(self, needed: Floats) -> Floats:
        with np.errstate(over="ignore"):
            least = expm1(log1p(self.snr) * needed / self.client_rates) / self.snr
        return at_least(least, self.m)

    def _parts(self, k: int) -> Floats:
        """(C, 2m) the Gaussian parts of g in round `k`."""
        if self.correlation == 0:
            return self._fresh(k)
        begin = k
        while begin > 0 and begin not in self._known:
            begin -= 1
        parts = self._known.get(begin)
        parts = self._fresh(0) if parts is None else parts
        for n in range(begin + 1, k + 1):
            new = np.sqrt(1 - self.correlation**2) * self._fresh(n)
            parts = floats(self.correlation * parts + new)
        self._known.pop(k, None)
        self._known[k] = parts
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        return parts

    def _fresh(self, k: int) -> Floats:
        shape = (len(self.snr), round(2 * self.m))
        return floats(rng(self.seed, "fading", k).standard_normal(shape))


def at_least(gain: Floats, m: float) -> Floats:
    """How likely it is that a Nakagami-m channel's gain is this or more.

    >>> at_least(np.array([0.0, 1.0]), 1.0).round(6)
    array([1.      , 0.367879])
    """
    scaled = m * np.minimum(gain, 1e6)  # beyond, the chance is 0 in any number format
    order = m % 1
    found = np.array([erfc(x) for x in np.sqrt(scaled)]) if order else np.zeros_like(scaled)
    while order < m:
        found = found + power(scaled, order) * exp(-scaled) / gamma(order + 1)
        order += 1
    return floats(np.minimum(found, 1.0))


@dataclass(frozen=True, eq=False)
class Moving:
    """Rates by how far clients are from their servers when a round begins."""

    trace: Whereabouts
    first: Floats  # (C,) metres where no place is known yet
    cell: Cell
    nominal: float  # bits per second that rates are multiples of
    fading: Fading | None = None  # its gains multiply the signal; None: nothing does

    def at(self, k: int, seconds: float) -> tuple[Floats, Floats]:
        snr = self._snr(k, seconds)
        snr = snr if self.fading is None else floats(snr * self.fading.gains(k))
        return self._rates(snr), snr

    def chance(self, needed: Floats) -> Floats:
        """The share of the time; if a trace does not repeat, its end lasts as long as the rest."""
        begins = np.unique([0.0, *self.trace.when])
        whole = 2 * begins[-1] if self.trace.period is None else self.trace.period
        lasts = np.diff([*begins, whole if whole > begins[-1] else begins[-1] + 1.0])
        found = [self._chance(needed, self._snr(when, when)) for when in begins]
        return floats(np.average(found, axis=0, weights=lasts))

    def _chance(self, needed: Floats, snr: Floats) -> Floats:
        if self.fading is None:
            return floats(self._rates(snr) >= needed)
        with np.errstate(over="ignore"):
            least = expm1(needed * self.nominal / self.cell.bandwidth_hz * math.log(2)) / snr
        return at_least(least, self.fading.m)

    def _snr(self, number: float, seconds: float) -> Floats:
        """(C,) signal to noise without fading."""
        metres = self.trace.distances(self.first, number, seconds)
        return self.cell.snr(np.maximum(metres, NEAREST))

    def _rates(self, snr: Floats) -> Floats:
        return floats(self.cell.bandwidth_hz * efficiency(snr) / self.nominal)


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded rates, a row per round or from given seconds on; after the last it starts again."""

    client_rates: Floats  # (T, C) rates, as multiples of their link's
    nominal: float  # bits per second that `client_rates` are multiples of
    bandwidth_hz: float
    seconds: Floats | None = None  # (T,) when each row begins; None: a row per round

    def at(self, k: int, seconds: float) -> tuple[Floats, Floats]:
        rates = self.client_rates[self._row(k, seconds)]
        return rates, snr_of(rates * self.nominal, self.bandwidth_hz)

    def chance(self, needed: Floats) -> Floats:
        """The share of the rows, or of the time, with such a rate."""
        lasts = np.ones(len(self.client_rates)) if self.seconds is None else np.diff(self._edges())
        return floats(np.average(self.client_rates >= needed, axis=0, weights=lasts))

    def _row(self, k: int, seconds: float) -> int:
        if self.seconds is None:
            return k % len(self.client_rates)
        edges = self._edges()
        since = edges[0] + (max(seconds - edges[0], 0.0) % (edges[-1] - edges[0]))
        return int(np.searchsorted(edges[:-1], since, side="right")) - 1

    def _edges(self) -> Floats:
        """(T + 1,) when rows begin and the last ends, which is as long as the one before."""
        assert self.seconds is not None
        last = self.seconds[-1] - self.seconds[-2] if len(self.seconds) > 1 else 1.0
        return floats([*self.seconds, self.seconds[-1] + last])
