"""The rows that a server holds in one round: its model and what the scheme keeps besides it.

A row is computed by its holder, from rows that it holds or was sent. Changed rows stay in memory
until the round's commit writes them, together with everything else that the round did.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.mixing import Mixing
from sdfeel.core.partial_mixing import restricted
from sdfeel.core.scheme import Mix
from sdfeel.engine.combine import combined, weighted
from sdfeel.engine.messages import Codec, Packing
from sdfeel.live.edge.quarantine import Bounds
from sdfeel.live.edge.results import Results
from sdfeel.live.federation import Federation, Weights
from sdfeel.live.store import Store

Keep = Callable[[Callable[[], Tensor], Tensor], Tensor]  # the new row, or the old if it is rejected


def place(n: int) -> int:
    """A row's place in the store and its number in messages: 0 is a server's model.

    >>> [place(n) for n in (2, -1, -4)]
    [0, 1, 4]
    """
    return 0 if n >= 0 else -n


@dataclass
class ServerRows:
    """One server's rows, as its open round has changed them so far."""

    federation: Federation
    store: Store
    server: int
    model: Tensor  # the server's own, when the round began to end
    changed: dict[int, Tensor] = field(default_factory=dict)

    def holds(self, n: int) -> bool:
        return self.federation.holder(n) == self.server

    def __getitem__(self, n: int) -> Tensor:
        if n in self.changed:
            return self.changed[n]
        return self.model if n == self.server else kept_row(self.federation, self.store, n)

    def own(self, mixing: Mixing) -> Iterator[tuple[int, int]]:
        """The rows of a mixing that this server computes: the position of each, and its number.

        Rows without sources are left out, as they stay what they are.
        """
        mine = self.federation.net.holder(mixing.rows) == self.server
        for n in np.flatnonzero(mine & (np.diff(mixing.starts) > 0)).tolist():
            yield n, int(mixing.rows[n])

    def near(self, n: int) -> Tensor:
        """Our row of the same shelf, from which another server's row must not be far."""
        if n >= 0:
            return self[self.server]
        shelves = self.federation.net.shelves
        same = next(rows for s in shelves if n in (rows := self.federation.net.shelf(s.name)))
        ours = [int(m) for m in same if self.holds(int(m))]
        return self[ours[0]] if ours else self.federation.fresh(n)

    def save(self) -> None:
        """Save the changed rows other than the model. Call it inside a commit."""
        for n, row in self.changed.items():
            if n < 0:
                self.store.put("row", 0, place(n), self.federation.body(row), replace=True)


@dataclass
class PublicCopies:
    """Servers' models as the receivers of their compressed messages know them.

    Every holder of a copy gets every message, so all copies of a model are the same
    (`engine/messages.py`).
    """

    federation: Federation
    store: Store
    changed: dict[int, Tensor] = field(default_factory=dict)

    def __getitem__(self, server: int) -> Tensor:
        if server in self.changed:
            return self.changed[server]
        saved = self.store.get("row", 0, self._place(server))
        return self.federation.initial if saved is None else self.federation.own_model(saved.body)

    def told(self, server: int, update: Tensor) -> None:
        """Apply a message of this server to its copy."""
        across = self._across
        trust = across.fidelity(self._packing.sizes) if across.unbiased else 1.0
        self.changed[server] = self[server] + trust * update

    def moved(self, server: int, model: Tensor, row: Weights) -> Tensor:
        """A server's model after a hop that mixes with the weights in `row`."""
        step = self._across.fidelity(self._packing.sizes)
        mean = weighted((weight, self[source]) for source, weight in row.items())
        return model + step * (mean - self[server])

    def save(self) -> None:
        """Call it inside a commit."""
        for server, copy in self.changed.items():
            body = self.federation.body(copy)
            self.store.put("row", 0, self._place(server), body, replace=True)

    def _place(self, server: int) -> int:
        return 1 + self.federation.net.kept + server  # after the scheme's own rows

    @property
    def _packing(self) -> Packing:
        assert self.federation.packing is not None
        return self.federation.packing

    @property
    def _across(self) -> Codec:
        assert self._packing.across is not None
        return self._packing.across


def kept_row(federation: Federation, store: Store, n: int) -> Tensor:
    """A shelf's row as the last commit left it."""
    saved = store.get("row", 0, place(n))
    return federation.fresh(n) if saved is None else federation.own_model(saved.body)


def returned(federation: Federation, store: Store, server: int, own: bytes) -> bytes:
    """A server's part of the run's result: its `own` model, or its rows of the shelf it returns."""
    net = federation.net
    rows, weights = net.returned
    mine = np.flatnonzero((rows < 0) & (net.holder(rows) == server))
    if not mine.size:
        return own
    share = weights[mine] / weights[mine].sum()
    kept = (kept_row(federation, store, int(n)) for n in rows[mine])
    return federation.body(weighted(zip(share.tolist(), kept, strict=True)))


def averaged(
    rows: ServerRows,
    mix: Mix,
    arrived: Results,
    start: Callable[[int], Tensor],  # what each client began from
    bounds: Bounds,
    keep: Keep,
) -> None:
    """Apply this server's rows of `up` to the models that arrived, in the simulator's order.

    The weight of clients that did not answer goes to the others in proportion. A row whose average
    fails a check stays as it was.
    """
    there = np.zeros(len(rows.federation.net.samples), dtype=bool)
    there[list(arrived)] = True
    up, model = restricted(mix.up, there), mix.payload == "model"
    secret = rows.federation.sums

    def summed() -> Tensor:
        assert arrived.total is not None
        return arrived.total()

    def came(source: int) -> Tensor:
        if source < 0:
            return rows[source]
        if rows.federation.updates:
            return start(source) + arrived[source] if model else arrived[source]
        return arrived[source] if model else arrived[source] - start(source)

    def made(n: int, dst: int) -> Tensor:
        span = slice(up.starts[n], up.starts[n + 1])
        sources, weights = up.sources[span].tolist(), up.weights[span].tolist()
        before = rows[dst]
        if secret is not None:
            total = weighted(
                (w if model else 0.0, start(s)) for s, w in zip(sources, weights, strict=True)
            )
            total += secret.opened(up, n, summed()).to(total.dtype)
        elif up.rule is not None:
            own = before if model else torch.zeros_like(before)
            total = combined(up, n, own, {source: came(source) for source in sources})
        else:
            total = weighted((w, came(s)) for s, w in zip(sources, weights, strict=True))
        outcome = total if model else before + total
        bounds.check(outcome, before, sum(map(abs, weights)))
        return outcome

    rows.changed |= {dst: keep(partial(made, n, dst), rows[dst]) for n, dst in rows.own(up)}


def mixed(
    rows: ServerRows, stage: Mixing, heard: Mapping[int, Tensor], bounds: Bounds, keep: Keep
) -> None:
    """Apply one hop of a stage to this server's rows, with the rows that others sent."""

    def row(n: int, dst: int) -> Tensor:
        span = slice(stage.starts[n], stage.starts[n + 1])
        sources, weights = stage.sources[span].tolist(), stage.weights[span].tolist()
        found = {s: heard[s] if s in heard else rows[s] for s in sources}
        if stage.rule is not None:
            outcome = combined(stage, n, rows[dst], found)
        else:
            outcome = weighted(zip(weights, found.values(), strict=True))
        bounds.check(outcome, rows[dst], sum(map(abs, weights)))
        return outcome

    rows.changed |= {dst: keep(partial(row, n, dst), rows[dst]) for n, dst in rows.own(stage)}
