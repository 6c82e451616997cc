"""Everything that a simulation must remember between two rounds."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from sdfeel.core.arrays import Ints
from sdfeel.core.events import Crew
from sdfeel.core.network import Network
from sdfeel.core.scheme import Estimates, Lane, Memory
from sdfeel.core.staleness import Clocks


@dataclass(eq=False)
class LaneState:
    """Where one lane is: its round, when that ends, and the models it began from."""

    number: int  # among the scheme's lanes
    lane: Lane
    k: int = 0
    ends: float = 0.0
    base: Tensor | None = None  # (S, P) of `sources` when the round began; None: unchanged
    sources: list[int] = field(default_factory=list)
    steps: float = 0.0  # local iterations finished by this lane, a mean over its clients
    began: int = 0  # rounds that all lanes had finished when this one began
    since: float = 0.0  # the time when it began
    memory: Memory = field(default_factory=dict)  # the scheme's
    measured: Estimates | None = None
    crew: Crew = ()  # as last listed in the lane's events


@dataclass
class State:
    """A simulation between two rounds."""

    models: Tensor  # (D + S, P) the servers' models, then the scheme's shelves, last one first
    taken: Ints  # (C,) local iterations of each client so far
    clocks: Clocks
    lanes: list[LaneState] = field(default_factory=list)
    seconds: float = 0.0
    bytes: int = 0
    joules: float = 0.0
    owed: dict[int, Tensor] = field(default_factory=dict)  # what clients' messages have lost
    public: Tensor | None = None  # (D, P) the servers' models as their neighbours know them
    over: str | None = None  # why the scheme has ended the run

    @classmethod
    def fresh(cls, initial: Tensor, net: Network) -> "State":
        servers = len(net.servers)
        models = initial.repeat(servers + net.kept, 1)
        for shelf in net.shelves:
            if shelf.start == "zero":
                models[net.shelf(shelf.name).tolist()] = 0
        return cls(
            models=models,
            taken=np.zeros(len(net.samples), dtype=np.int64),
            clocks=Clocks.fresh(servers),
        )

    @property
    def servers(self) -> Tensor:
        """(D, P) the servers' models."""
        return self.models[: len(self.clocks.led)]

    @property
    def number(self) -> int:
        """Rounds of all lanes so far."""
        return self.clocks.number

    @property
    def iterations(self) -> int:
        """Local iterations per server: exact when synchronous, a mean when not."""
        total = sum(each.steps * len(each.lane) for each in self.lanes)
        return int(total / sum(len(each.lane) for each in self.lanes))
