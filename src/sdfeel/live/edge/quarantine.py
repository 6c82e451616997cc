"""What a model must satisfy before it is used, and which nodes are left out for a bad one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import torch
from torch import Tensor

from sdfeel.live.store import Store
from sdfeel.live.transport.errors import Rejected

FACT = "quarantine"
MOST_DOUBLINGS = 6


@dataclass(frozen=True)
class Bounds:
    """How far a model may be from the one that it started from, or is mixed with.

    Near the initial model it is always accepted: an honest client may bring a model back that
    others have led astray, however far that is.
    """

    initial: Tensor
    scale: float  # the initial model's norm, but at least that of a model of ones
    max_change: float

    @classmethod
    def of(cls, initial: Tensor, max_change: float) -> "Bounds":
        return cls(initial, max(_norm(initial), sqrt(initial.numel())), max_change)

    def check(self, model: Tensor, start: Tensor, share: float = 1.0) -> None:
        """`Rejected` unless finite and near `start`; `share` is the sum of an average's weights."""
        # The difference of two finite numbers may overflow; then it is too large anyway.
        change = _norm(model - start)
        most = self.max_change * self.scale * max(share, 1.0)
        if not isfinite(change):
            raise Rejected("the model is not finite, or too far from where it started")
        if change > most and _norm(model - self.initial) > self.max_change * self.scale:
            raise Rejected(
                f"the model is {change:.3g} away from where it started, but may be "
                f"{most:.3g} away: if that is how this experiment learns, raise max_change under "
                f"[policy] of the edge servers' node files"
            )


def _norm(row: Tensor) -> float:
    return float(torch.linalg.vector_norm(row, dtype=torch.float64))


class Quarantine:
    """Nodes that sent what no honest node sends: each is left out for some rounds, durably.

    Each further offence doubles that time.
    """

    def __init__(self, store: Store, rounds: int, tell: Callable[[str], None]) -> None:
        self._store, self._rounds, self._tell = store, rounds, tell
        self._cases: dict[str, dict[str, Any]] = store.fact(FACT) or {}

    def holds(self, name: str, k: int) -> bool:
        """Is this node left out in round `k`?"""
        case = self._cases.get(name)
        return case is not None and k < case["until"]

    def reason(self, name: str) -> str:
        """A sentence: what a node did, and until which round it is left out."""
        case = self._cases[name]
        return f"{name} is left out until round {case['until'] + 1}: {case['reason']}"

    def add(self, name: str, k: int, reason: str) -> None:
        """Leave a node out from round `k` on. Do not call it inside a commit."""
        times = min(self._cases.get(name, {"times": 0})["times"], MOST_DOUBLINGS)
        until = k + self._rounds * 2**times
        self._cases[name] = {"until": until, "times": times + 1, "reason": reason[:500]}
        self._save()
        self._tell(self.reason(name))

    def pardon(self, names: Iterable[str]) -> None:
        """Let these nodes take part again."""
        for name in names:
            if name in self._cases:
                self._cases[name]["until"] = 0
        self._save()

    def names(self, k: int) -> list[str]:
        """The nodes that are left out in round `k`."""
        return sorted(name for name in self._cases if self.holds(name, k))

    def offences(self) -> dict[str, int]:
        """How often each node was left out, ever."""
        return {name: case["times"] for name, case in sorted(self._cases.items())}

    def _save(self) -> None:
        with self._store.commit():
            self._store.remember(FACT, self._cases)
