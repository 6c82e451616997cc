"""A simulation between two rounds: its models, its lanes, and everything that is saved."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.cost import Bill
from sdfeel.core.decide import Begun, mean_iterations
from sdfeel.core.events import Crew
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network
from sdfeel.core.partial_mixing import selected
from sdfeel.core.scheme import Estimates, Lane, Memory, Mix
from sdfeel.core.staleness import Clocks
from sdfeel.engine.base import Task
from sdfeel.engine.combine import combined, first_alike
from sdfeel.engine.native.rows import NativeRows

UNIT = 1 << 1074  # how often the smallest float fits into 1
FEW = 64  # rows or sources that one call of compiled code mixes, at most


@dataclass(eq=False)
class ModelRows:
    """Models by number: servers from 0 up, the rows on shelves from -1 down.

    A row on a shelf takes up memory only once it has been written: if a hundred of a million
    clients are drawn, only what they touched takes up memory.
    """

    servers: Tensor  # (D, P)
    first: Tensor  # (P,) the model with which everything began
    shelves: tuple[tuple[int, bool], ...] = ()  # rows of each shelf, and whether they begin as zero
    written: dict[int, Tensor] = field(default_factory=dict)  # (P,) each

    def __post_init__(self) -> None:
        self._zero = torch.zeros_like(self.first)
        self.writes = 0  # of servers' rows
        self.last_written = np.zeros(len(self.servers), dtype=np.int64)  # the write of each row
        self._copies: dict[int, Tensor] = {}  # (1, P) of servers' rows, until they are written
        self._in_place: dict[int, Tensor] = {}  # (1, P) these rows themselves, once asked for

    @classmethod
    def fresh(cls, initial: Tensor, net: Network) -> "ModelRows":
        """Everybody has the first model."""
        return cls(initial.repeat(len(net.servers), 1), initial.clone(), _starts(net))

    @classmethod
    def of(cls, models: Tensor, servers: int) -> "ModelRows":
        """A matrix of all rows, the shelves' after the servers'."""
        kept = len(models) - servers
        written = {n: models[n].clone() for n in range(-kept, 0)}
        return cls(models[:servers].clone(), models[0].clone(), ((kept, True),), written)

    @property
    def kept(self) -> int:
        """Rows on all shelves, written or not."""
        return sum(count for count, _ in self.shelves)

    def __getitem__(self, n: int) -> Tensor:
        """(P,) one row, to be read only."""
        if n >= 0:
            return self.servers[n]
        found = self.written.get(n)
        return self._begun(n) if found is None else found

    def taken(self, rows: Sequence[int]) -> Tensor:
        """(R, P) copies of some rows, to be read only: all who take one row have the same copy."""
        if not rows:
            return self.servers[:0].clone()
        if len(rows) > 1:
            return torch.stack([self[n] for n in rows])
        n = rows[0]
        if n < 0:
            return self[n].clone()[None]
        copy = self._copies.get(n)
        if copy is None:
            row = self._in_place.get(n)
            if row is None:
                row = self._in_place[n] = self.servers[n : n + 1]
            copy = self._copies[n] = row.clone()
        return copy

    def put(self, rows: Sequence[int], values: Tensor | Sequence[Tensor]) -> None:
        """Replace some rows by (R, P) values, which nobody else changes from now on."""
        if len(rows) == 1:
            self._put(rows[0], values[0])
            return
        joined = isinstance(values, Tensor)  # keeping a row of it would keep all its rows
        for n, value in zip(rows, values, strict=True):
            self._put(n, value.clone() if joined and n < 0 else value)

    def _put(self, n: int, value: Tensor) -> None:
        if n >= 0:
            self.servers[n] = value
            self.touch(n)
        else:
            self.written[n] = value

    def add(self, rows: Sequence[int], values: Tensor | Sequence[Tensor]) -> None:
        """Add (R, P) values to some rows."""
        for n, value in zip(rows, values, strict=True):
            if n >= 0:
                self.servers[n].add_(value)
                self.touch(n)
            else:
                self.written[n] = self[n] + value

    def mix(self, mixing: Mixing, compiled: NativeRows) -> bool:
        """Mix rows as `combine.mixed` does, servers' in place; False if that cannot be done."""
        rows, sources = mixing.places
        if mixing.rule is not None or not rows or self.servers.dtype is not torch.float32:
            return False
        if len(sources) <= FEW:
            return self._mix(mixing, compiled)
        first = first_alike(mixing)  # each row that is the same is mixed once
        differ = [n == same for n, same in enumerate(first)]
        if sum(differ) > FEW or not self._mix(selected(mixing, np.array(differ)), compiled):
            return False
        shared: dict[int, Tensor] = {}
        for n, same in zip(rows, first, strict=True):
            if n != rows[same]:
                if same not in shared:
                    shared[same] = self[rows[same]].clone()
                self._put(n, shared[same])
        return True

    def _mix(self, mixing: Mixing, compiled: NativeRows) -> bool:
        rows, sources = mixing.places
        shelved = {n: self[n] for n in sources if n < 0}
        if not self.servers.is_contiguous() or not all(
            [row.is_contiguous() for row in shelved.values()]
        ):
            return False
        fresh = {n: torch.empty_like(self.first) for n in rows if n < 0}
        size = self.servers.shape[1]
        begin, wide = self.servers.data_ptr(), 4 * size
        terms = [begin + n * wide if n >= 0 else shelved[n].data_ptr() for n in sources]
        places = [begin + n * wide if n >= 0 else fresh[n].data_ptr() for n in rows]
        compiled.mix(terms, mixing.weights, mixing.starts, places, size)
        self.written.update(fresh)
        self.touch(*[n for n in rows if n >= 0])
        return True

    def ruled(self, mix: Mix, came: dict[int, Tensor]) -> Tensor:
        """(R, P) what a rule makes of what arrived; for updates, the server's own row is zero."""
        shelves = {int(n): self[n] for n in np.unique(mix.up.sources) if n < 0}
        fresh = []
        for n, dst in enumerate(mix.up.rows.tolist()):
            own = self[dst]
            if mix.payload == "model":
                fresh.append(combined(mix.up, n, own, came | shelves))
            else:
                fresh.append(own + combined(mix.up, n, torch.zeros_like(own), came | shelves))
        return torch.stack(fresh)

    def touch(self, *rows: int) -> None:
        """Servers' rows, or what others know of them, have been written."""
        self.writes += 1
        for n in rows:
            self.last_written[n] = self.writes
            self._copies.pop(n, None)

    def begin(self, net: Network) -> None:
        """All shelves begin again: as zero, or as copies of their servers' models."""
        for n, server in net.first_rows():
            if server is None:
                self.written.pop(n, None)
                if not self._zeroed(n):
                    self.written[n] = self._zero
            else:
                self.written[n] = self.servers[server].clone()

    def dense(self) -> Tensor:
        """(D + S, P) all rows, the shelves' last one first."""
        rows = [self[n] for n in range(-self.kept, 0)]
        return torch.cat([self.servers, torch.stack(rows)]) if rows else self.servers.clone()

    def _begun(self, n: int) -> Tensor:
        return self._zero if self._zeroed(n) else self.first

    def _zeroed(self, n: int) -> bool:
        """Is row `n` of a shelf that begins as zero?"""
        behind = -1 - n
        for count, zero in self.shelves:
            if behind < count:
                return zero
            behind -= count
        raise IndexError(f"there is no row {n}")


def _starts(net: Network) -> tuple[tuple[int, bool], ...]:
    return tuple((len(net.shelf(each.name)), each.start == "zero") for each in net.shelves)


@dataclass(eq=False)
class LaneState:
    """Where one lane is: its round, when that ends, and the models it began from."""

    number: int  # among the scheme's lanes
    lane: Lane
    k: int = 0
    ends: float = 0.0
    held: float | None = None  # seconds spent on waiting for servers; None: not its turn yet
    base: Tensor | None = None  # (S, P) of `sources` when the round began; None: unchanged
    sources: list[int] = field(default_factory=list)
    steps: float = 0.0  # local iterations finished by this lane, a mean over its clients
    began: int = 0  # rounds that all lanes had finished when this one began
    since: float = 0.0  # the time when it began
    was: tuple[int, float] = (0, 0.0)  # the same of the round before
    memory: Memory = field(default_factory=dict)  # the scheme's
    measured: Estimates | None = None
    crew: Crew = ()  # as last listed in the lane's events
    billed: Bill | None = None  # the bill that the crew was read from; None after a resume
    begun: Begun | None = None  # the round, as it was decided; None after a resume
    tasks: list[Task] | None = None  # its clients', once they were asked for

    @property
    def order(self) -> tuple[float, int]:
        """Rounds end in this order; the lower lane wins a tie."""
        return self.ends, self.number


@dataclass
class State:
    """A simulation between two rounds."""

    rows: ModelRows  # the servers' models, and the rows on the scheme's shelves
    taken: Ints  # (C,) local iterations of each client so far
    clocks: Clocks
    lanes: list[LaneState] = field(default_factory=list)
    seconds: float = 0.0
    bytes: int = 0
    joules: float = 0.0
    owed: dict[int, Tensor] = field(default_factory=dict)  # what clients' messages have lost
    public: Tensor | None = None  # (D, P) the servers' models as their neighbours know them
    own: dict[int, Tensor] = field(default_factory=dict)  # what stays with clients that trained
    over: str | None = None  # why the scheme has ended the run
    spent: Floats = field(default_factory=lambda: np.zeros((2, 0)))  # (2, C): `privacy.Budget`
    average: Tensor | None = None  # (P,) of the models so far, where one is returned
    # Local iterations of all lanes, in `UNIT`s, and the servers that they are added up over.
    _iterations: tuple[int, int] | None = None

    @classmethod
    def fresh(cls, initial: Tensor, net: Network, hearsay: bool = True) -> "State":
        return cls(
            rows=ModelRows.fresh(initial, net),
            taken=np.zeros(len(net.samples), dtype=np.int64),
            clocks=Clocks.fresh(len(net.servers), hearsay),
        )

    @property
    def servers(self) -> Tensor:
        """(D, P) the servers' models."""
        return self.rows.servers

    @property
    def models(self) -> Tensor:
        """(D + S, P) all rows written out, shelves last one first: to look at, not to work with."""
        return self.rows.dense()

    @property
    def number(self) -> int:
        """Rounds of all lanes so far."""
        return self.clocks.number

    @property
    def iterations(self) -> int:
        """Local iterations per server: exact when synchronous, a mean when not."""
        if self._iterations is None:
            steps = sum(_units(each.steps) * len(each.lane) for each in self.lanes if each.steps)
            self._iterations = steps, sum(len(each.lane) for each in self.lanes)
        steps, lanes = self._iterations
        return mean_iterations(steps / UNIT, lanes)

    def took(self, each: LaneState, steps: float) -> None:
        """A lane has taken this many more steps; sums over lanes are kept, exactly."""
        before, each.steps = each.steps, each.steps + steps
        if self._iterations is not None:
            total, lanes = self._iterations
            more = (_units(each.steps) - _units(before)) * len(each.lane)
            self._iterations = total + more, lanes


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: there is none in what ten thousand lanes begin with."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _units(number: float) -> int:
    """The same number as a multiple of the smallest float: sums of these are exact."""
    above, below = number.as_integer_ratio()
    return above * (UNIT // below)
