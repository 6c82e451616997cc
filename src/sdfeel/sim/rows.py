"""The models of a simulation: one per server, and whatever rows a scheme keeps beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sdfeel.core.network import Network


@dataclass(eq=False)
class ModelRows:
    """Models by number: servers from 0 up, the rows on shelves from -1 down.

    A row on a shelf takes up memory only once it has been written, so that a million clients of
    whom a hundred are drawn cost what was touched.
    """

    servers: Tensor  # (D, P)
    first: Tensor  # (P,) the model with which everything began
    shelves: tuple[tuple[int, bool], ...] = ()  # rows of each shelf, and whether they begin as zero
    written: dict[int, Tensor] = field(default_factory=dict)  # (P,) each

    def __post_init__(self) -> None:
        self._zero = torch.zeros_like(self.first)

    @classmethod
    def fresh(cls, initial: Tensor, net: Network) -> "ModelRows":
        """Everybody has the first model."""
        return cls(initial.repeat(len(net.servers), 1), initial.clone(), _starts(net))

    @classmethod
    def of(cls, models: Tensor, servers: int) -> "ModelRows":
        """A matrix of all rows, the shelves' behind the servers'."""
        kept = len(models) - servers
        written = {n: models[n].clone() for n in range(-kept, 0)}
        return cls(models[:servers].clone(), models[0].clone(), ((kept, True),), written)

    @property
    def kept(self) -> int:
        """Rows on all shelves, written or not."""
        return sum(count for count, _ in self.shelves)

    def __getitem__(self, n: int) -> Tensor:
        """(P,) one row, to be read only."""
        if n >= 0:
            return self.servers[n]
        found = self.written.get(n)
        return self._begun(n) if found is None else found

    def taken(self, rows: Sequence[int]) -> Tensor:
        """(R, P) copies of some rows."""
        if not rows:
            return self.servers[:0].clone()
        if len(rows) == 1:
            return self[rows[0]].clone()[None]
        return torch.stack([self[n] for n in rows])

    def put(self, rows: Sequence[int], values: Tensor) -> None:
        """Replace some rows by (R, P) values, which nobody else changes from now on."""
        if len(rows) == 1:
            self._put(rows[0], values[0])
            return
        for n, value in zip(rows, values, strict=True):
            self._put(n, value if n >= 0 else value.clone())  # or it would keep all the others

    def _put(self, n: int, value: Tensor) -> None:
        if n >= 0:
            self.servers[n] = value
        else:
            self.written[n] = value

    def add(self, rows: Sequence[int], values: Tensor) -> None:
        """Add (R, P) values to some rows."""
        for n, value in zip(rows, values, strict=True):
            if n >= 0:
                self.servers[n] += value
            else:
                self.written[n] = self[n] + value

    def begin(self, net: Network) -> None:
        """All shelves begin again: as zero, or as the model of a client's server."""
        for n, server in net.first_rows():
            if server is None:
                self.written.pop(n, None)
                if not self._zeroed(n):
                    self.written[n] = self._zero
            else:
                self.written[n] = self.servers[server].clone()

    def dense(self) -> Tensor:
        """(D + S, P) all rows, the shelves' last one first."""
        rows = [self[n] for n in range(-self.kept, 0)]
        return torch.cat([self.servers, torch.stack(rows)]) if rows else self.servers.clone()

    def _begun(self, n: int) -> Tensor:
        return self._zero if self._zeroed(n) else self.first

    def _zeroed(self, n: int) -> bool:
        """Is row `n` of a shelf that begins as zero?"""
        behind = -1 - n
        for count, zero in self.shelves:
            if behind < count:
                return zero
            behind -= count
        raise IndexError(f"there is no row {n}")


def _starts(net: Network) -> tuple[tuple[int, bool], ...]:
    return tuple((len(net.shelf(each.name)), each.start == "zero") for each in net.shelves)
