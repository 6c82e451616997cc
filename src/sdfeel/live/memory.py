"""What a server knows between two rounds, as one durable record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdfeel.core.scheme import Memory
from sdfeel.core.staleness import Clocks
from sdfeel.live.store import Store

STATE = "state"


@dataclass
class Known:
    """Where a server is. The models themselves are tensors of the store."""

    taken: list[int]  # (C,) local iterations of each client so far, as far as known here
    clocks: Clocks
    k: int = 0  # the round that is open
    steps: float = 0.0  # local iterations that this server counts
    memory: Memory = field(default_factory=dict)
    over: bool = False
    met: int = 0  # hops of earlier rounds can no longer be asked for

    @classmethod
    def fresh(cls, clients: int, servers: int) -> "Known":
        return cls([0] * clients, Clocks.fresh(servers))

    def save(self, store: Store) -> None:
        """Remember this. Call it inside a commit."""
        clocks = self.clocks
        arrays = ("led", "touched", "heard", "stamp")
        store.remember(
            STATE,
            {
                "taken": self.taken,
                "clocks": {name: getattr(clocks, name).tolist() for name in arrays},
                "number": clocks.number,
                "k": self.k,
                "steps": self.steps,
                "memory": {name: np.asarray(v).tolist() for name, v in self.memory.items()},
                "over": self.over,
                "met": self.met,
            },
        )

    @classmethod
    def load(cls, store: Store) -> "Known | None":
        """What was remembered last; None at the very beginning."""
        saved: dict[str, Any] | None = store.fact(STATE)
        return None if saved is None else cls.of(saved)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Known":
        """From the form in which it is saved."""
        saved = dict(record)
        arrays = {n: np.array(v, dtype=np.int64) for n, v in saved.pop("clocks").items()}
        clocks = Clocks(saved.pop("number"), **arrays)
        memory = {name: np.array(v) for name, v in saved.pop("memory").items()}
        return cls(clocks=clocks, memory=memory, **saved)
