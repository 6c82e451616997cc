"""What a round costs, in seconds, bytes and joules.

The simulator's clock, the planner's objective and the traffic table all read these numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isinf

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError
from sdfeel.core.mixing import Link, Mixing
from sdfeel.core.scheme import Mix, Work


@dataclass(frozen=True)
class Power:
    """Watts while a device is busy. Assumptions of ours, not figures of the paper."""

    computing: float = 1.0  # one client
    sending: float = 0.5  # one client's radio
    backhaul: float = 5.0  # one server's or the cloud's transmitter


@dataclass(frozen=True)
class Bill:
    """What one round costs. `compute`, `upload` and `mix` are consecutive seconds."""

    compute: float
    upload: float
    mix: float
    bytes: int
    joules: float

    @property
    def seconds(self) -> float:
        return self.compute + self.upload + self.mix


@dataclass(frozen=True, eq=False)
class Cost:
    """Prices: each client's speed, each kind of link's rate, the size of a model."""

    step_seconds: Floats  # (C,) one local iteration at each client
    model_bits: float
    rates: Mapping[Link, float]  # bits per second
    downlink: bool = False  # does sending models down take time? (the paper: no)
    cell_edge_rate: float | None = None  # bits per second of a client that serves several servers
    power: Power = Power()

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_seconds", floats(self.step_seconds))
        for link, rate in self.rates.items():
            if not rate > 0:
                raise InputError(f"the {link} rate must be above 0 bits per second, got {rate:g}")

    def transfer(self, via: Link) -> float:
        """Seconds to move one model over one link."""
        return self.model_bits / self.rates[via]

    def done(self, work: Work) -> Ints:
        """(C,) steps that each client finishes; 0 for those who take no part."""
        done = np.zeros(len(self.step_seconds), dtype=np.int64)
        who = work.down.rows
        if work.each is not None:
            done[who] = work.each
        elif isinf(work.deadline):
            done[who] = work.steps
        else:
            # The tolerance keeps a deadline of exactly n steps from losing the n-th to rounding.
            fits = np.floor(work.deadline / self.step_seconds[who] * (1 + 1e-12))
            done[who] = np.minimum(work.steps, fits).astype(np.int64)
        return done

    def bill(self, work: Work, mix: Mix, done: Ints) -> Bill:
        """The whole price of a round in which clients took `done` steps."""
        who = work.down.rows
        busy = done[who] * self.step_seconds[who]
        compute = float(busy.max()) if isinf(work.deadline) else work.deadline
        sending = self._uploads(mix.up)  # (C,) seconds of each client's radio
        ready = busy + sending[who] if isinf(work.deadline) else compute + sending[who]
        radio = self.transfer(mix.up.via)
        broadcasts = len(np.unique(work.down.sources))  # a server's reach all its clients at once
        seconds, crossed, joules = (0.0, 0, 0.0) if mix.across is None else self.across(mix.across)
        return Bill(
            compute=compute,
            upload=float(ready.max()) - compute + (radio if self.downlink else 0.0),
            mix=seconds,
            bytes=(len(mix.up.sources) + broadcasts) * self.model_bytes + crossed,
            joules=float(busy.sum()) * self.power.computing
            + float(sending.sum()) * self.power.sending
            + broadcasts * radio * self.power.backhaul
            + joules,
        )

    def _uploads(self, up: Mixing) -> Floats:
        """(C,) seconds that each client sends; one message reaches all its servers."""
        copies = np.bincount(up.sources, minlength=len(self.step_seconds))
        seconds = np.where(copies > 0, self.transfer(up.via), 0.0)
        if self.cell_edge_rate is not None:
            seconds = np.where(copies > 1, self.model_bits / self.cell_edge_rate, seconds)
        return floats(seconds)

    def across(self, mixing: Mixing) -> tuple[float, int, float]:
        """Seconds, bytes and joules of all hops between servers.

        One exchange takes one transfer whatever the number of neighbours: links are parallel.
        """
        one = self.transfer(mixing.via)
        ways = 2 if self.downlink and mixing.via == "server-cloud" else 1
        seconds = mixing.legs * ways * one
        crossings = mixing.crossings
        return seconds, crossings * self.model_bytes, crossings * one * self.power.backhaul

    @property
    def model_bytes(self) -> int:
        """Bytes of one model on the wire."""
        return ceil(self.model_bits / 8)
