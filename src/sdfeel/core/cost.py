"""What a round costs, in seconds, bytes and joules.

The simulator's clock, the planner's objective and the traffic table all read these numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, isinf
from typing import Protocol

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError
from sdfeel.core.link_times import Link, LinkTimes
from sdfeel.core.mixing import Mixing
from sdfeel.core.scheme import Lane, Mix, Work


@dataclass(frozen=True)
class Power:
    """Watts while a device is busy. These are our assumptions, not figures from the paper."""

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
    energy: Mapping[str, float]  # joules of computing, of sending, and of servers' transmitters
    busy: Floats  # (R,) seconds that each client computed
    sending: Floats  # (R,) seconds that each client sent

    @property
    def seconds(self) -> float:
        return self.compute + self.upload + self.mix

    @property
    def joules(self) -> float:
        return sum(self.energy.values())


class Channel(Protocol):
    """How the clients' channels change from round to round (`radio.channel`)."""

    def at(self, k: int, seconds: float) -> tuple[Floats, Floats]:
        """`client_rates` and `snr`, both (C,), of a round that begins at `seconds`; pure."""
        ...

    def chance(self, needed: Floats) -> Floats:
        """(C,) how often each client's rate is at least `needed`."""
        ...


@dataclass(frozen=True, eq=False)
class Cost:
    """Prices: each client's speed, each kind of link's rate, the size of a model."""

    step_seconds: Floats  # (C,) one local iteration at each client
    model_bits: float
    rates: Mapping[Link, float]  # bits per second
    downlink: bool = False  # does sending models down take time? (the paper: no)
    cell_edge_rate: float | None = None  # bits per second of a client that serves several servers
    power: Power = Power()
    packed: Mapping[Link, int] = field(default_factory=dict)  # bits where models are compressed
    client_rates: Floats | None = None  # (C,) each client's rate over its kind of link's; None: 1
    snr: Floats | None = None  # (C,) signal to noise at an equal share of the bandwidth
    channel: Channel | None = None  # what changes the two above; None: they stay constant
    server_rates: Floats | None = None  # (D, D) each server link's rate over its kind's; None: 1
    cloud_rates: Floats | None = None  # (D,) each server's rate to the cloud over its kind's

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_seconds", floats(self.step_seconds))
        for link, rate in self.rates.items():
            if not rate > 0:
                raise InputError(f"the {link} rate must be above 0 bits per second, got {rate:g}")

    def at(self, lane: Lane, k: int, seconds: float) -> "Cost":
        """The prices of round `k` of a lane that begins at `seconds`."""
        if self.channel is None:
            return self
        rates, snr = self.channel.at(k, seconds)
        return replace(self, client_rates=rates, snr=snr)

    @property
    def link_times(self) -> LinkTimes:
        """What schemes may know about the links."""
        transfer = {via: self.transfer(via) for via in self.rates}
        return LinkTimes(
            transfer, self.client_rates, self.snr, self.server_rates, self.channel is not None
        )

    def transfer(self, via: Link) -> float:
        """Seconds to move one model up or across one link."""
        return self.packed.get(via, self.model_bits) / self.rates[via]

    def done(self, work: Work) -> Ints:
        """(C,) steps that each client finishes; 0 for those that take no part."""
        done = np.zeros(len(self.step_seconds), dtype=np.int64)
        who = work.down.rows
        if work.each is not None:
            done[who] = work.each
        elif isinf(work.deadline):
            done[who] = work.steps
        else:
            # The tolerance keeps rounding from costing a deadline of exactly n steps its n-th step.
            fits = np.floor(work.deadline / self.step_seconds[who] * (1 + 1e-12))
            done[who] = np.minimum(work.steps, fits).astype(np.int64)
        return done

    def bill(self, work: Work, mix: Mix, done: Ints) -> Bill:
        """The whole price of a round in which clients took `done` steps."""
        who = work.down.rows
        busy = done[who] * self.step_seconds[who]
        compute = float(busy.max(initial=0)) if isinf(work.deadline) else work.deadline
        sending = self.uploads(mix.up, work)[who]
        begins = busy if isinf(work.deadline) else compute
        ends = begins + sending if work.ends is None else work.ends
        ready = float(ends.max(initial=0)) if work.lasts is None else work.lasts
        compute = min(compute, ready)
        down = self.model_bits / self.rates[mix.up.via]  # broadcasts are never compressed
        told = work.down.sources[work.down.sources >= 0]
        # A server's broadcast reaches all its clients at once.
        broadcasts = len(np.unique(told)) if work.broadcasts is None else work.broadcasts
        bills = [self.across(stage) for stage in mix.stages]
        seconds, joules = sum(each[0] for each in bills), sum(each[2] for each in bills)
        return Bill(
            compute=compute,
            upload=float(ready - compute) + (down if self.downlink else 0.0),
            mix=seconds,
            bytes=mix.up.messages * self.packed_bytes(mix.up.via)
            + broadcasts * self.model_bytes
            + sum(each[1] for each in bills),
            energy={
                "computing": float(busy.sum()) * self.power.computing,
                "sending": float(sending.sum()) * self.power.sending,
                "backhaul": broadcasts * down * self.power.backhaul + joules,
            },
            busy=floats(busy),
            sending=floats(sending),
        )

    def uploads(self, up: Mixing, work: Work) -> Floats:
        """(C,) seconds that each client sends; one message reaches all its servers."""
        senders = up.sources[up.sources >= 0] if up.sent is None else up.sent[:, 0]
        copies = np.bincount(senders, minlength=len(self.step_seconds))
        seconds = np.where(copies > 0, self.transfer(up.via), 0.0)
        if self.cell_edge_rate is not None:
            bits = self.packed.get(up.via, self.model_bits)
            seconds = np.where(copies > 1, bits / self.cell_edge_rate, seconds)
        if self.client_rates is not None:
            seconds = seconds / self.client_rates
        if work.share is not None:
            who = work.down.rows
            seconds[who] /= self.link_times.speedup(work.share, who)
        return floats(seconds)

    def across(self, mixing: Mixing) -> tuple[float, int, float]:
        """Seconds, bytes and joules of all hops between servers.

        One exchange takes one transfer, however many neighbours there are: links work in parallel,
        and the slowest link that is used decides.
        """
        slow = self._slowness(mixing)
        one = self.transfer(mixing.via)
        ways = 2 if self.downlink and mixing.via == "server-cloud" else 1
        crossings = mixing.crossings
        transfers = crossings if mixing.relay is None else mixing.relay.transfers
        busy = transfers * one * float(slow.mean())
        seconds = mixing.legs * ways * one * float(slow.max())
        return seconds, crossings * self.packed_bytes(mixing.via), busy * self.power.backhaul

    def _slowness(self, mixing: Mixing) -> Floats:
        """How many times as long as a nominal link each link that is used takes."""
        if mixing.via == "server-cloud" and self.cloud_rates is not None:
            return 1 / self.cloud_rates[mixing.rows[mixing.rows >= 0]]
        if mixing.via != "server-server" or self.server_rates is None or mixing.relay is not None:
            return np.ones(1)  # a relay between servers has already counted its links' rates
        rows = np.repeat(mixing.rows, np.diff(mixing.starts))
        sent = (rows != mixing.sources) & (rows >= 0) & (mixing.sources >= 0)
        used = self.server_rates[rows[sent], mixing.sources[sent]]
        return 1 / used if used.size else np.ones(1)

    @property
    def model_bytes(self) -> int:
        """Bytes of one whole model on the wire."""
        return ceil(self.model_bits / 8)

    def packed_bytes(self, via: Link) -> int:
        """Bytes of one model as it goes up or across, compressed or not."""
        return ceil(self.packed.get(via, self.model_bits) / 8)
