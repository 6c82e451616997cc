"""Everything that a simulation must remember between two rounds."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from sdfeel.core.arrays import Ints
from sdfeel.core.scheme import Lane
from sdfeel.core.staleness import Clocks


@dataclass
class LaneState:
    """Where one lane is: its round, when that ends, and the models it began from."""

    lane: Lane
    k: int
    ends: float
    base: Tensor | None  # (S, P) the models of `sources` when the round began; None: unchanged
    sources: list[int] = field(default_factory=list)
    steps: float = 0.0  # local iterations finished by this lane, a mean over its clients


@dataclass
class State:
    """A simulation between two rounds."""

    servers: Tensor  # (D, P)
    taken: Ints  # (C,) local iterations of each client so far
    clocks: Clocks
    lanes: list[LaneState] = field(default_factory=list)
    seconds: float = 0.0
    bytes: int = 0
    joules: float = 0.0

    @classmethod
    def fresh(cls, initial: Tensor, servers: int, clients: int) -> "State":
        return cls(
            servers=initial.repeat(servers, 1),
            taken=np.zeros(clients, dtype=np.int64),
            clocks=Clocks.fresh(servers),
        )

    @property
    def number(self) -> int:
        """Rounds of all lanes so far."""
        return self.clocks.number

    @property
    def iterations(self) -> int:
        """Local iterations per server: exact when synchronous, a mean when not."""
        total = sum(each.steps * len(each.lane) for each in self.lanes)
        return int(total / sum(len(each.lane) for each in self.lanes))
