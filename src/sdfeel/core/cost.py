"""What a round costs, in seconds, bytes and joules.

The simulator's clock, the planner's objective and the traffic table all read these numbers.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cached_property
from math import ceil, inf, isinf
from numbers import Real
from typing import Any, Protocol, get_args

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats, ints
from sdfeel.core.errors import InputError, of_kind, said
from sdfeel.core.link_times import Link, LinkTimes
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network
from sdfeel.core.scheme import Lane, Mix, Work, check_kinds


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


@dataclass(frozen=True, eq=False)
class Overheads:
    """What the paper's latency leaves out. By default, all of it is 0."""

    delays: Mapping[Link, float] = field(default_factory=dict)  # seconds under way
    server_delays: Floats | None = None  # (D, D) the same for each server link; None: as above
    cloud_delays: Floats | None = None  # (D,) for each server's link to the cloud
    message: float = 0.0  # seconds that a node needs for each message that it takes, one by one
    round: float = 0.0  # seconds of every round
    connect: float = 0.0  # seconds of a lane's first round
    header_bytes: int = 0  # of every message, in addition to the model
    cells: Ints | None = None  # (C,) each client's cell; -1: none
    cell_rate: float | None = None  # bits per second that the clients of a cell share
    common_rate: float | None = None  # bits per second that all clients share

    def record(self) -> dict[str, Any]:
        """What differs from the default, for JSON; `Overheads.of` reads it."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        usual = {each.name: getattr(Overheads(), each.name) for each in fields(self)}
        charged = {k for k, v in found.items() if k != "cells" and _differs(v, usual[k])}
        kept = charged | {"cells"} if charged else set()
        return {
            key: value.tolist() if isinstance(value, np.ndarray) else value
            for key, value in found.items()
            if key in kept
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Overheads":
        """The overheads that `record` wrote down."""
        arrays = {"server_delays": np.float64, "cloud_delays": np.float64, "cells": np.int64}
        read: dict[str, Any] = dict(record)
        for key in arrays.keys() & read.keys():
            if read[key] is not None:
                read[key] = np.asarray(read[key], dtype=arrays[key])
        return cls(**read)

    @property
    def has_delays(self) -> bool:
        """Do messages take time to travel, in addition to being sent?"""
        own = self.server_delays, self.cloud_delays
        return bool(self.delays) or any(each is not None for each in own)

    @property
    def has_shared_lines(self) -> bool:
        """Do clients share a line?"""
        return self.cell_rate is not None or self.common_rate is not None

    def shared(self, rates: Floats) -> Floats:
        """(C,) bits per second if all clients with a rate above 0 send at the same time."""
        if self.cell_rate is not None and self.cells is not None:
            rates = rates.copy()
            for d in np.unique(self.cells[self.cells >= 0]):
                rates[self.cells == d] = fair_shares(rates[self.cells == d], self.cell_rate)
        return rates if self.common_rate is None else fair_shares(rates, self.common_rate)

    def copies(self, clients: Ints, bits: float) -> float:
        """Seconds until each of `clients` has a copy of what all of them are sent."""
        seconds = 0.0
        if self.cell_rate is not None and self.cells is not None:
            counts = np.bincount(self.cells[clients][self.cells[clients] >= 0])
            seconds = float(counts.max(initial=0)) * bits / self.cell_rate
        if self.common_rate is not None:
            seconds = max(seconds, len(clients) * bits / self.common_rate)
        return seconds


def _with_counts(numbers: Ints) -> tuple[Ints, Ints]:
    """Each number once, ascending, and how often it occurs."""
    if (numbers[1:] > numbers[:-1]).all():  # as in a single sum: nothing has to be sorted
        return numbers, np.ones(len(numbers), dtype=np.int64)
    found, counts = np.unique(numbers, return_counts=True)
    return ints(found), ints(counts)


def _at_cloud(mixing: Mixing) -> Ints:
    """The servers whose links to the cloud are used: a server that plays it needs none."""
    if len(mixing.rows) == 1:
        others: Ints = mixing.sources[(mixing.sources >= 0) & (mixing.sources != mixing.rows[0])]
        return others
    own: Ints = mixing.rows[mixing.rows >= 0]
    return own


def _values_at(wanted: Ints, numbers: Ints, values: Floats) -> Floats:
    """The values of the `wanted` numbers; 0 for those that are not among `numbers` (ascending)."""
    if len(wanted) == len(numbers) and wanted.tobytes() == numbers.tobytes():
        return values
    places = np.searchsorted(numbers, wanted)
    places[places == len(numbers)] = -1
    found = np.append(numbers, -1)[places] == wanted
    return np.where(found, np.append(values, 0.0)[places], 0.0)


def _differs(one: object, other: object) -> bool:
    return one is not other if isinstance(one, np.ndarray) else one != other


def fair_shares(rates: Floats, capacity: float) -> Floats:
    """What each gets of a line that all share: nobody gets less than another unless it wants less.

    >>> fair_shares(np.array([1.0, 4.0, 9.0]), 9.0)
    array([1., 4., 4.])
    >>> fair_shares(np.array([1.0, 4.0]), 9.0)
    array([1., 4.])
    """
    found, left, count = rates.copy(), capacity, int((rates > 0).sum())
    for n in np.argsort(rates, kind="stable"):
        if rates[n] > 0:
            found[n] = min(float(rates[n]), left / count)
            left, count = left - float(found[n]), count - 1
    return floats(found)


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
    calls: bool = False  # does each node request its own copy? (the paper: broadcasts)
    holds: bool = False  # do asynchronous exchanges that share a server wait for one another?
    cell_edge_rate: float | None = None  # bits per second of a client that serves several servers
    power: Power = Power()
    packed: Mapping[Link, int] = field(default_factory=dict)  # bits where models are compressed
    client_rates: Floats | None = None  # (C,) each client's rate, in those of its link; None: 1
    snr: Floats | None = None  # (C,) signal to noise at an equal share of the bandwidth
    channel: Channel | None = None  # what changes the two above; None: they stay constant
    server_rates: Floats | None = None  # (D, D) each server link's rate over its kind's; None: 1
    cloud_rates: Floats | None = None  # (D,) each server's rate to the cloud over its kind's
    overheads: Overheads = field(default_factory=Overheads)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_seconds", floats(self.step_seconds))
        for link, rate in self.rates.items() if isinstance(self.rates, Mapping) else ():
            if not rate > 0:
                raise InputError(f"the {link} rate must be above 0 bits per second, got {rate:g}")

    def check(self, net: Network) -> None:
        """Refuse a program's own prices that do not fit the network, or are no prices at all."""
        clients, servers = len(net.samples), len(net.servers)
        for name, shape in {
            "step_seconds": (clients,),
            "client_rates": (clients,),
            "snr": (clients,),
            "server_rates": (servers, servers),
            "cloud_rates": (servers,),
        }.items():
            given = getattr(self, name)
            if given is None:
                continue
            values = np.asarray(given)
            if values.shape != shape:
                size, needed = (" x ".join(map(str, each)) or "1" for each in (values.shape, shape))
                raise InputError(
                    f"cost.{name} has {size} numbers, but this network needs {needed}: "
                    f"{clients} clients, {servers} servers"
                )
            used = values[net.links > 0] if values.ndim == 2 else values  # no link, no rate
            if wrong := [value for value in used.tolist() if not 0 < value < inf]:
                raise InputError(f"cost.{name} must be finite and above 0, got {wrong[0]:g}")
        if not isinstance(self.model_bits, Real) or not 0 < self.model_bits < inf:
            raise InputError(
                f"cost.model_bits must be a number of bits above 0, got {said(self.model_bits)}"
            )
        of_kind("cost.rates", self.rates, Mapping, "a mapping of links to bits per second")
        if set(self.rates) != set(get_args(Link)):
            raise InputError(
                f"cost.rates must give bits per second for {', '.join(get_args(Link))}, "
                f"got {said(self.rates)}"
            )
        of_kind("cost.power", self.power, Power, "a Power")
        check_kinds(self.power, "cost.power")
        if not all(0 <= watts < inf for watts in astuple(self.power)):
            raise InputError(f"cost.power must be at least 0 watts each, got {said(self.power)}")
        check_kinds(self, "cost")
        of_kind("cost.packed", self.packed, Mapping, "a mapping of links to bits")
        if self.cell_edge_rate is not None and not 0 < self.cell_edge_rate < inf:
            raise InputError(f"cost.cell_edge_rate must be above 0, got {self.cell_edge_rate:g}")
        if self.channel is not None and not hasattr(self.channel, "at"):
            of_kind("cost.channel", self.channel, (), "an object with the methods of Channel")

    def at(self, lane: Lane, k: int, seconds: float) -> "Cost":
        """The prices of round `k` of a lane that begins at `seconds`."""
        own = self if k or not self.overheads.connect else self._connecting()
        if own.channel is None:
            return own
        rates, snr = own.channel.at(k, seconds)
        return replace(own, client_rates=rates, snr=snr)

    def in_cells(self, cells: Ints) -> "Cost":
        """The same prices where clients are in these cells."""
        if self.overheads.cell_rate is None:
            return self
        return replace(self, overheads=replace(self.overheads, cells=cells))

    def as_before(self, k: int) -> bool:
        """Does round `k` of a lane have the prices of the one before it?"""
        return self.channel is None and (k > 1 or not self.overheads.connect)

    def _connecting(self) -> "Cost":
        """The prices of a first round, in which nodes find one another."""
        first = replace(self.overheads, round=self.overheads.round + self.overheads.connect)
        return replace(self, overheads=first)

    @cached_property
    def link_times(self) -> LinkTimes:
        """What schemes may know about the links."""
        transfer = {via: self.transfer(via) for via in self.rates}
        vary = self.channel is not None
        return LinkTimes(
            transfer,
            self.client_rates,
            self.snr,
            self.server_rates,
            vary,
            self.overheads.delays,
            self.overheads.server_delays,
        )

    def transfer(self, via: Link) -> float:
        """Seconds to move one model up or across one link."""
        return self._bits(via) / self.rates[via]

    def delay(self, via: Link) -> float:
        """Seconds that a message travels, in addition to the time that sending it takes."""
        return self.overheads.delays.get(via, 0.0)

    def _bits(self, via: Link) -> float:
        return self.packed.get(via, self.model_bits) + 8 * self.overheads.header_bytes

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
        sending = _values_at(who, *self._sending(mix.up, work))
        begins = busy if isinf(work.deadline) else compute
        arrives = begins + sending + np.where(sending > 0, self.delay(mix.up.via), 0.0)
        ends = arrives if work.ends is None else work.ends
        ready = float(ends.max(initial=0)) if work.lasts is None else work.lasts
        compute = min(compute, ready)
        whole = self.model_bits + 8 * self.overheads.header_bytes  # broadcasts are never compressed
        down = whole / self.rates[mix.up.via]
        broadcasts = self._sent_down(work)
        bills = [self.across(stage) for stage in mix.stages]
        seconds, joules = sum(each[0] for each in bills), sum(each[2] for each in bills)
        told_in = max(down, self.overheads.copies(who, whole)) + self.delay(mix.up.via)
        handled = 0.0
        if self.overheads.message:
            handled = self.overheads.message * self._most_taken(mix.up)
        if self.downlink:
            handled += self.overheads.message  # every client takes one, all at the same time
        if self.calls and self._some_report_to_several(mix.up):
            handled += 2 * self.delay(mix.up.via)  # it asks again when all servers are done
        return Bill(
            compute=compute + self.overheads.round,
            upload=float(ready - compute) + (told_in if self.downlink else 0.0) + handled,
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

    def _sent_down(self, work: Work) -> int:
        """Models that go down: a server's broadcast reaches all its clients at once, unless each
        is sent one of its own."""
        if self.calls and work.copies is not None:
            return work.copies
        told = work.down.sources[work.down.sources >= 0]
        return len(np.unique(told)) if work.broadcasts is None else work.broadcasts

    def uploads(self, up: Mixing, work: Work) -> Floats:
        """(C,) seconds that each client sends; one message reaches all its servers."""
        found, (senders, seconds) = np.zeros(len(self.step_seconds)), self._sending(up, work)
        found[senders] = seconds
        return floats(found)

    def _sending(self, up: Mixing, work: Work) -> tuple[Ints, Floats]:
        """The clients that send, ascending, and for how many seconds. The others are left out, so
        that ten thousand lanes need not each look at all clients."""
        each = up.sources[up.sources >= 0] if up.sent is None else up.sent[:, 0]
        senders, copies = _with_counts(each)
        seconds, bits = np.full(len(senders), self.transfer(up.via)), self._bits(up.via)
        if self.cell_edge_rate is not None:
            seconds = np.where(copies > 1, bits / self.cell_edge_rate, seconds)
        if self.client_rates is not None:
            seconds = seconds / self.client_rates[senders]
        if work.share is not None:
            speedup = np.ones(len(self.step_seconds))
            speedup[work.down.rows] = self.link_times.speedup(work.share, work.down.rows)
            seconds = seconds / speedup[senders]
        if self.overheads.has_shared_lines:
            rates = np.zeros(len(self.step_seconds))
            rates[senders] = np.divide(bits, seconds, out=np.zeros(len(seconds)), where=seconds > 0)
            slow = self.overheads.shared(rates)[senders]
            seconds = np.divide(bits, slow, out=np.zeros(len(slow)), where=slow > 0)
        return senders, seconds

    @staticmethod
    def _some_report_to_several(up: Mixing) -> bool:
        """Does a client report to several servers?"""
        senders = up.sources[up.sources >= 0] if up.sent is None else up.sent[:, 0]
        return bool(np.bincount(senders).max(initial=0) > 1) if len(senders) else False

    @staticmethod
    def _most_taken(mixing: Mixing) -> int:
        """How many messages of one hop the busiest node takes."""
        if mixing.sent is not None:
            to = mixing.sent[:, 1]
        else:
            owners = np.repeat(mixing.rows, np.diff(mixing.starts))
            away = owners != mixing.sources if mixing.via.startswith("server") else owners >= 0
            to = owners[away & (owners >= 0) & (mixing.sources >= 0)]
        if mixing.via == "server-cloud" and len(mixing.rows) > 1:
            return len(np.unique(to))  # the cloud takes one from each
        return int(np.bincount(to).max(initial=0)) if len(to) else 0

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
        if self.overheads.has_delays:
            delays = self._delays(mixing)
            seconds = mixing.legs * ways * float((one * slow + delays).max())
            if self.calls and mixing.legs and mixing.relay is None:
                # A request has to arrive first; a hub, which ends first, has asked already.
                seconds += mixing.hops * float(delays.max())
        if self.overheads.message and mixing.legs:
            seconds += self.overheads.message * self._most_taken(mixing) * mixing.hops
        return seconds, crossings * self.packed_bytes(mixing.via), busy * self.power.backhaul

    def _slowness(self, mixing: Mixing) -> Floats:
        """How many times longer than a nominal link each link that is used takes."""
        if mixing.via == "server-cloud" and self.cloud_rates is not None:
            return 1 / self.cloud_rates[_at_cloud(mixing)]
        if mixing.via != "server-server" or self.server_rates is None or mixing.relay is not None:
            return np.ones(1)  # a relay between servers has already counted its links' rates
        rows = np.repeat(mixing.rows, np.diff(mixing.starts))
        sent = (rows != mixing.sources) & (rows >= 0) & (mixing.sources >= 0)
        used = self.server_rates[rows[sent], mixing.sources[sent]]
        return 1 / used if used.size else np.ones(1)

    def _delays(self, mixing: Mixing) -> Floats:
        """Seconds that messages are under way, on each link that is used, like `_slowness`."""
        usual, own = self.delay(mixing.via), self.overheads
        if mixing.via == "server-cloud" and own.cloud_delays is not None:
            return floats(own.cloud_delays[_at_cloud(mixing)])
        if mixing.via != "server-server" or own.server_delays is None or mixing.relay is not None:
            return floats([usual])
        rows = np.repeat(mixing.rows, np.diff(mixing.starts))
        sent = (rows != mixing.sources) & (rows >= 0) & (mixing.sources >= 0)
        used = own.server_delays[rows[sent], mixing.sources[sent]]
        return floats(used) if used.size else floats([usual])

    @property
    def model_bytes(self) -> int:
        """Bytes of one whole model on the wire."""
        return ceil(self.model_bits / 8) + self.overheads.header_bytes

    def packed_bytes(self, via: Link) -> int:
        """Bytes of one model as it goes up or across, compressed or not."""
        packed = ceil(self.packed.get(via, self.model_bits) / 8)
        return packed + self.overheads.header_bytes
