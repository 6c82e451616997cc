"""What a server knows between two rounds, as one durable record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdfeel.core.scheme import Memory
from sdfeel.live.store import Store

STATE = "state"


@dataclass(frozen=True)
class ServerState:
    """Where a server is. The models themselves are tensors of the store."""

    taken: Mapping[int, int] = field(default_factory=dict)  # local iterations of its clients
    k: int = 0  # the round that is open
    steps: float = 0.0  # local iterations that this server counts
    memory: Memory = field(default_factory=dict)  # the scheme's
    over: bool = False
    met: int = 0  # hops of earlier rounds can no longer be asked for
    guests: tuple[int, ...] = ()  # clients of other servers who work here in this round

    def save(self, store: Store) -> None:
        """Remember this. Call it inside a commit."""
        record = {
            "taken": {str(client): count for client, count in self.taken.items()},
            "guests": list(self.guests),
            "k": self.k,
            "steps": self.steps,
            "memory": {name: np.asarray(value).tolist() for name, value in self.memory.items()},
            "over": self.over,
            "met": self.met,
        }
        store.remember(STATE, record)

    @classmethod
    def load(cls, store: Store) -> "ServerState | None":
        """What was remembered last; None at the very beginning."""
        saved: dict[str, Any] | None = store.fact(STATE)
        return None if saved is None else cls.of(saved)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "ServerState":
        """From the form in which it is saved."""
        return cls(
            taken={int(client): int(count) for client, count in record["taken"].items()},
            k=int(record["k"]),
            steps=float(record["steps"]),
            memory={name: np.array(value) for name, value in record["memory"].items()},
            over=bool(record["over"]),
            met=int(record["met"]),
            guests=tuple(int(client) for client in record.get("guests", ())),
        )
