"""What sending costs, as far as a decision may depend on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.portable import log2

Link = Literal["client-server", "client-cloud", "server-server", "server-cloud"]
SNR = 10**1.5  # the paper's 15 dB


@dataclass(frozen=True, eq=False)
class LinkTimes:
    """How long a model takes to arrive, and how good each client's channel is."""

    transfer: Mapping[Link, float] = field(default_factory=dict)  # seconds of one model
    client_rates: Floats | None = None  # (C,) each client's rate, in those of its link; None: 1
    snr: Floats | None = None  # (C,) signal to noise at an equal share; None: the paper's
    server_rates: Floats | None = None  # (D, D) each server link's rate over its kind's; None: 1
    vary: bool = False  # do the clients' channels change from round to round?
    delays: Mapping[Link, float] = field(default_factory=dict)  # seconds under way
    server_delays: Floats | None = None  # (D, D) the same for each server link; None: as above

    def exchange(self, links: Floats) -> float:
        """Seconds of one exchange over all of `links` (D, D): the slowest of them decides."""
        one, used = self.transfer["server-server"], links > 0
        slow = np.ones(1) if self.server_rates is None else 1 / self.server_rates[used]
        away = self.delays.get("server-server", 0.0)
        under_way = np.full(1, away) if self.server_delays is None else self.server_delays[used]
        return float((one * slow + under_way).max(initial=0.0))

    def uploads(self, clients: int, via: Link = "client-server") -> Floats:
        """(C,) seconds until what each client sends has arrived, at an equal share of the band."""
        slow = np.ones(clients) if self.client_rates is None else 1 / self.client_rates
        return floats(self.transfer[via] * slow + self.delays.get(via, 0.0))

    def speedup(self, share: Floats, clients: Ints | slice) -> Floats:
        """How much faster the `clients` send with these shares of the bandwidth.

        A narrower band has less noise in it, so half the band carries more than half the rate.

        >>> LinkTimes().speedup(np.array([0.5, 1.0, 2.0]), slice(3)).round(3)
        array([0.597, 1.   , 1.62 ])
        """
        snr = self.snrs(len(share), clients)
        return floats(share * log2(1 + snr / share) / log2(1 + snr))

    def snrs(self, count: int, clients: Ints | slice) -> Floats:
        """(count,) signal to noise of `clients` at an equal share."""
        return np.full(count, SNR) if self.snr is None else self.snr[clients]
