"""What servers saw of their clients in a deployment, and the epsilon that this means.

Servers report to whom they handed out work in a round, also if nothing came of it in time: whoever
had work may have answered, and a late answer is seen as well. So what is counted is an upper bound.
A round without a report counts as if everybody had answered.
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
    iterations: int  # of the run: no client is asked for more steps in a round
    spent: Floats = field(init=False)  # (2, C): `privacy.Budget`
    taken: Ints = field(init=False)  # (C,) local iterations that were used
    _next: dict[tuple[int, int], int] = field(default_factory=dict)  # the round by server and lane
    _of: dict[int, set[int]] = field(default_factory=dict)  # each server's clients, in any epoch

    def __post_init__(self) -> None:
        self.spent, self.taken = np.zeros((2, 0)), np.zeros(0, dtype=np.int64)
        self.move(self.net)

    def move(self, net: Network, k: int = 0) -> None:
        """From round `k` on, the network has changed: clients and servers come and go."""
        self.net = net
        more = max(0, len(net.samples) - self.spent.shape[1])
        self.spent = np.pad(self.spent, ((0, 0), (0, more)))
        self.taken = np.pad(self.taken, (0, more))
        per_pass = self.budget.per_pass
        if per_pass is not None:  # nobody knows how much data those have who come later
            longer = np.pad(per_pass, (0, len(self.taken) - len(per_pass)), constant_values=1)
            self.budget = replace(self.budget, per_pass=ints(longer))
        for d in {d for servers in net.reach for d in servers} - self._of.keys():
            if k:
                self._next[d, 0] = k  # a server that has just come; only those in step may
        for client, servers in enumerate(net.reach):
            for d in servers:
                self._of.setdefault(d, set()).add(client)

    def count(self, records: Iterable[Record]) -> None:
        """Servers have finished rounds."""
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
        """Who may have answered, after how many steps, and how much others see of each."""
        told = record.get("released")
        if told is None:  # it does not say: all who were asked
            unused = {str(n): (self.iterations, 1.0) for n in record["missing"]}
            told = {n: (steps, 1.0) for n, steps in record["steps"].items()} | unused
        found = ((int(name), int(steps), float(share)) for name, (steps, share) in told.items())
        return [each for each in found if each[0] < len(self.taken)]

    def _seen(self, client: int, steps: int, share: float, used: bool) -> Loss:
        """The loss of one message."""
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
        """Rounds of a server without a record: all its clients may have answered in each."""
        key, k = (int(record["server"]), int(record.get("lane", 0))), int(record["k"])
        first, missed = key not in self._next, k - self._next.get(key, 0)
        self._next[key] = k + 1
        # At the very first record nobody knows who was here before.
        clients = range(len(self.taken)) if first else sorted(self._of.get(key[0], ()))
        for client in clients if missed > 0 else ():
            lost = self._passes(client, self.iterations) if self._by_steps else self._single
            self.spent[:, client] += missed * lost
