"""Everything that a simulation must remember between two rounds."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.scheme import Lane


@dataclass
class LaneState:
    """Where one lane is: its round, when that ends, and the models it began from."""

    lane: Lane
    k: int
    ends: float
    base: Tensor | None  # (D, P) servers when the round began; None: they cannot have changed
    steps: int = 0  # local iterations finished by this lane


@dataclass
class State:
    """A simulation between two rounds."""

    servers: Tensor  # (D, P)
    taken: Ints  # (C,) local iterations of each client so far
    led: Floats  # (D,) the number of each server's own last round
    lanes: list[LaneState] = field(default_factory=list)
    number: int = 0  # rounds of all lanes so far
    seconds: float = 0.0
    bytes: int = 0
    joules: float = 0.0

    @classmethod
    def fresh(cls, initial: Tensor, servers: int, clients: int) -> "State":
        return cls(
            servers=initial.repeat(servers, 1),
            taken=np.zeros(clients, dtype=np.int64),
            led=np.zeros(servers),
        )

    @property
    def iterations(self) -> int:
        """Local iterations per server: exact when synchronous, a mean when not."""
        total = sum(each.steps * len(each.lane) for each in self.lanes)
        return total // sum(len(each.lane) for each in self.lanes)
