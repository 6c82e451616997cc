"""What a server knows between two rounds, as one durable record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdfeel.core.scheme import Memory
from sdfeel.live.store import Damaged, Store

STATE = "state"


@dataclass(frozen=True)
class Lap:
    """How far one of several lanes of a server is."""

    k: int = 0  # the lane's open round
    steps: float = 0.0  # local iterations that the lane counts
    memory: Memory = field(default_factory=dict)  # the scheme's
    began: int = 0  # how many rounds all lanes had done when the open one began


@dataclass(frozen=True)
class ServerState:
    """How far a server is. The models themselves are tensors in the store."""

    taken: Mapping[int, int] = field(default_factory=dict)  # local iterations of its clients
    k: int = 0  # the open round
    steps: float = 0.0  # local iterations that this server counts
    memory: Memory = field(default_factory=dict)  # the scheme's
    over: bool = False
    met: int = 0  # nobody can ask any more for hops of rounds before this one
    guests: tuple[int, ...] = ()  # clients of other servers that work here in this round
    laps: tuple[Lap, ...] = ()  # if several lanes share the server; `k` counts all rounds

    def save(self, store: Store) -> None:
        """Write this to the store. Call it inside a commit."""
        record = {
            "taken": {str(client): count for client, count in self.taken.items()},
            "guests": list(self.guests),
            "k": self.k,
            "steps": self.steps,
            "memory": _listed(self.memory),
            "over": self.over,
            "met": self.met,
        }
        if self.laps:
            record["laps"] = [{**vars(lap), "memory": _listed(lap.memory)} for lap in self.laps]
        store.remember(STATE, record)

    @classmethod
    def load(cls, store: Store) -> "ServerState | None":
        """The last state saved; None at the very beginning."""
        saved: dict[str, Any] | None = store.fact(STATE)
        try:
            return None if saved is None else cls.of(saved)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise Damaged(store.directory, f"{type(error).__name__}: {error}") from None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "ServerState":
        """The state, from the form in which it is saved."""
        return cls(
            taken={int(client): int(count) for client, count in record["taken"].items()},
            k=int(record["k"]),
            steps=float(record["steps"]),
            memory=_arrays(record["memory"]),
            over=bool(record["over"]),
            met=int(record["met"]),
            guests=tuple(int(client) for client in record.get("guests", ())),
            laps=tuple(
                Lap(**{**lap, "memory": _arrays(lap["memory"])}) for lap in record.get("laps", ())
            ),
        )


def _listed(memory: Memory) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in memory.items()}


def _arrays(saved: Mapping[str, Any]) -> Memory:
    return {name: np.array(value) for name, value in saved.items()}
