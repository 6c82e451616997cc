"""A simulation between two rounds: where its lanes are, and everything that is saved."""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.decide import Begun, mean_iterations
from sdfeel.core.events import Crew
from sdfeel.core.network import Network
from sdfeel.core.scheme import Estimates, Lane, Memory
from sdfeel.core.staleness import Clocks
from sdfeel.engine.base import Task
from sdfeel.sim.rows import ModelRows


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
    memory: Memory = field(default_factory=dict)  # the scheme's
    measured: Estimates | None = None
    crew: Crew = ()  # as last listed in the lane's events
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
    # Of all lanes, and how many these count for.
    _iterations: tuple[int | Fraction, int] | None = None

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
            steps = sum((_exactly(each.steps) * len(each.lane) for each in self.lanes), 0)
            self._iterations = steps, sum(len(each.lane) for each in self.lanes)
        steps, lanes = self._iterations
        return mean_iterations(float(steps), lanes)

    def took(self, each: LaneState, steps: float) -> None:
        """A lane has taken this many more steps; sums over lanes are kept, exactly."""
        before, each.steps = each.steps, each.steps + steps
        if self._iterations is not None:
            total, lanes = self._iterations
            more = (_exactly(each.steps) - _exactly(before)) * len(each.lane)
            self._iterations = total + more, lanes


def _exactly(number: float) -> int | Fraction:
    """The same number, to be added without rounding; most are whole."""
    return int(number) if number.is_integer() else Fraction(number)
