"""What a round's clients receive: the model that they start from, and rows that come with it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from sdfeel.engine.combine import weighted
from sdfeel.live.edge.rows import ServerRows, place
from sdfeel.live.federation import Federation, Turn, Weights, as_array
from sdfeel.live.protocol import Header
from sdfeel.live.store import Saved, Store
from sdfeel.live.transport.tensors import MODEL, digest, pack

TOLD = "told"  # the fact: how clients update their rows when they get the open round's model


@dataclass
class Handout:
    """The models that one server hands out in one round. Each is read from the disk once."""

    federation: Federation
    server: int
    store: Store
    lane: int
    turn: Turn
    _start: Tensor | None = field(default=None, init=False)  # the round's model, once it is needed
    _saved: Saved | None = field(default=None, init=False)  # the same model as bytes to send

    def rows(self) -> ServerRows:
        """The rows that this server holds when the round begins."""
        if self._start is None:
            self._start = self.federation.own_model(self._read().body)
        return ServerRows(self.federation, self.store, self.server, self._start)

    def started(self, client: int) -> Tensor:
        """The model that a client begins from, or our part of it if other servers give theirs."""
        rows, sources = self.rows(), self.turn.sources(client)
        if self.shared(client) or sources == {self.server: 1.0}:
            return rows[self.server]
        return weighted((weight, rows[n]) for n, weight in sources.items())

    def shared(self, client: int) -> bool:
        """Does a client begin from models of other servers, too?"""
        return self._elsewhere(self.turn.sources(client))

    def model(self, client: int) -> tuple[Weights, bytes, str]:
        """The weights with which a client blends models, and the body and hash of our part."""
        sources = self.turn.sources(client)
        if self._elsewhere(sources) or sources == {self.server: 1.0}:
            if self._saved is None:
                self._saved = self._read()
            return sources, self._saved.body, self._saved.sha256
        body = self.federation.body(self.started(client))
        return {self.server: 1.0}, body, digest(body)

    def with_rows(self, client: int, body: bytes) -> tuple[Header, bytes]:
        """Add our rows that a client needs to the body, and to the header how to use them."""
        net, turn = self.federation.net, self.turn
        if not net.shelves or all(each.held != "client" for each in net.shelves):
            return {}, body
        shift, (kept, payload) = turn.shift(client), turn.kept(client)
        used = {*shift, *(n for row in kept.values() for n in row)}
        ours = sorted(n for n in used if n < 0 and self.federation.holder(n) == self.server)
        rows, more = self.rows(), {}
        told = self.store.fact(TOLD)
        if told is not None and told["k"] == turn.k:
            more["told"] = told["rows"].get(str(client), [])
        if ours:
            named = {f"row{place(n)}": as_array(rows[n]) for n in ours}
            body = pack({MODEL: as_array(self.federation.own_model(body)), **named})
        if shift:
            more["shift"] = _listed(shift)
        return {
            **more,
            "rows": [place(n) for n in ours],
            "kept": [[n, _listed(row)] for n, row in kept.items()],
            "payload": payload,
        }, body

    def _read(self) -> Saved:
        saved = self.store.kept("start", self.turn.k, self.lane)
        return saved

    def _elsewhere(self, sources: Iterable[int]) -> bool:
        """Are some of these rows held by other servers?"""
        return any(self.federation.holder(n) != self.server for n in sources)


def _listed(row: Weights) -> list[list[float]]:
    return [[n, weight] for n, weight in row.items()]
