"""The epsilon of a deployment, from what its servers saw of their clients.

Servers report every client to which they gave work in a round, even if no result came in time: a
late result is seen as well. So the epsilon is an upper bound. In a round without a report, every
client counts as if it had answered.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from sdfeel.core.arrays import Floats, Ints, ints
from sdfeel.core.network import Network
from sdfeel.engine.privacy import Budget

Record = Mapping[str, Any]
Loss = tuple[float, float]  # to a client's own server, and to others


@dataclass
class Releases:
    """The releases of all clients so far, from the records of servers."""

    budget: Budget
    net: Network
    iterations: int  # of the run; in a round, no client is asked for more steps
    spent: Floats = field(init=False)  # (2, C): `privacy.Budget`
    taken: Ints = field(init=False)  # (C,) local iterations that were used
    _next: dict[tuple[int, int], int] = field(default_factory=dict)  # next round by server, lane
    _of: dict[int, set[int]] = field(default_factory=dict)  # each server's clients, in any epoch

    def __post_init__(self) -> None:
        self.spent, self.taken = np.zeros((2, 0)), np.zeros(0, dtype=np.int64)
        self.move(self.net)

    def move(self, net: Network, k: int = 0) -> None:
        """Take over the network that is in force from round `k` on."""
        self.net = net
        more = max(0, len(net.samples) - self.spent.shape[1])
        self.spent = np.pad(self.spent, ((0, 0), (0, more)))
        self.taken = np.pad(self.taken, (0, more))
        per_pass = self.budget.per_pass
        if per_pass is not None:  # it is unknown how much data clients have that come later
            longer = np.pad(per_pass, (0, len(self.taken) - len(per_pass)), constant_values=1)
            self.budget = replace(self.budget, per_pass=ints(longer))
        for d in {d for servers in net.reach for d in servers} - self._of.keys():
            if k:
                self._next[d, 0] = k  # a new server; only synchronous servers can join
        for client, servers in enumerate(net.reach):
            for d in servers:
                self._of.setdefault(d, set()).add(client)

    def count(self, records: Iterable[Record]) -> None:
        """Count what servers saw in the rounds that they have finished."""
        found = dict[tuple[int, int], Loss]()  # by client and round: several may get one message
        for record in records:
            self._gap(record)
            for client, steps, share in self._told(record):
                used, key = str(client) in record["steps"], (client, int(record["k"]))
                if used and self._by_steps and key not in found:
                    self.taken[client] += steps
                own, others = self._seen(client, steps, share, used)
                before = found.get(key, (0.0, 0.0))
                found[key] = max(own, before[0]), max(others, before[1])
        for (client, _), loss in found.items():
            self.spent[:, client] += loss

    def epsilons(self) -> dict[str, float]:
        """The epsilon of the least protected client or example, to be reported by name."""
        return self.budget.epsilons(self.spent, self.taken)

    @property
    def _by_steps(self) -> bool:
        return self.budget.protects == "examples"

    @property
    def _single(self) -> float:
        budget = self.budget
        return (budget.clip / budget.deviation) ** 2 if budget.deviation else inf

    def _told(self, record: Record) -> list[tuple[int, int, float]]:
        """Each client that may have answered, its steps, and the share that others see of it."""
        told = record.get("released")
        if told is None:  # the record does not tell: count all clients that were asked
            unused = {str(n): (self.iterations, 1.0) for n in record["missing"]}
            told = {n: (steps, 1.0) for n, steps in record["steps"].items()} | unused
        found = ((int(name), int(steps), float(share)) for name, (steps, share) in told.items())
        return [each for each in found if each[0] < len(self.taken)]

    def _seen(self, client: int, steps: int, share: float, used: bool) -> Loss:
        """The privacy loss by one message."""
        if client in self.budget.liars:
            return 0.0, 0.0
        if self._by_steps:
            vain = 0.0 if used else self._passes(client, steps)
            return vain, vain
        apart = all(len(servers) <= 1 for servers in self.net.reach)
        outside = self._single * (share if apart else 1.0) if used else 0.0
        return (outside if self.budget.sums else self._single), outside

    def _passes(self, client: int, steps: int) -> float:
        assert self.budget.per_pass is not None
        return float(-(-steps // int(self.budget.per_pass[client])) * self._single)

    def _gap(self, record: Record) -> None:
        """Count a server's rounds without a record as if all its clients had answered in each."""
        key, k = (int(record["server"]), int(record.get("lane", 0))), int(record["k"])
        first, missed = key not in self._next, k - self._next.get(key, 0)
        self._next[key] = k + 1
        # Before a server's very first record, any client may have been there.
        clients = range(len(self.taken)) if first else sorted(self._of.get(key[0], ()))
        for client in clients if missed > 0 else ():
            lost = self._passes(client, self.iterations) if self._by_steps else self._single
            self.spent[:, client] += missed * lost
