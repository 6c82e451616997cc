"""Synchronous servers exchange models: each pulls (round, hop) from those it listens to.

Hop 0 is this server's average of its clients. Every hop is durable before it is served, so a pull
can be repeated without harm, and nothing that was served is ever computed anew.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from sdfeel.core.errors import RunError, SdfeelError
from sdfeel.core.mixing import Mixing
from sdfeel.live.edge.absent_servers import Absent
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.edge.round_end import Behind, Closed, Ended, averaged
from sdfeel.live.edge.state import Known
from sdfeel.live.federation import Turn, blended, grown, heavier, without
from sdfeel.live.protocol import HERE, LONG_POLL, Answer, Header, Link, seconds, whole
from sdfeel.live.transport.errors import NotTrusted, Refused, Rejected
from sdfeel.live.transport.tensors import digest

CLOSED = "closed"


@dataclass
class Gossip:
    """One server's exchanges with the others, in step."""

    cluster: Cluster
    peers: Mapping[int, Link]
    _waiting: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._federation, self._me = self.cluster.federation, self.cluster.server
        self._store, self._bell = self.cluster.store, self.cluster.bell
        self._policy = self.cluster.policy
        self.absent = Absent(self._back)

    async def finish(self, known: Known, turn: Turn, closed: Closed) -> Ended:
        mix = self._federation.decisions.mix(turn.view, turn.done(closed.steps))
        if not self._store.has("hop", turn.k, 0):
            start = self._model("start", turn.k, 0)
            arrived = self.cluster.results(turn, closed)
            self._keep(turn.k, 0, averaged(self._me, turn, mix, arrived, start, start), closed)
        model = self._model("hop", turn.k, 0)
        met: tuple[int, ...] = ()
        if mix.exchange is not None:
            for hop in range(mix.exchange.hops - 1):
                await self._hop(turn, hop, mix.exchange)
            # The last hop is not asked for by anyone: it becomes durable with the round's commit.
            model = await self._mixed(turn, mix.exchange.hops - 1, mix.exchange)
            met = tuple(mix.exchange.rows.tolist()) if mix.exchange.crossings else ()
        return Ended(model, mix, met, self._needed(known, mix.exchange))

    def _keep(self, k: int, hop: int, model: Tensor, closed: Closed | None = None) -> None:
        with self._store.commit():
            self._store.put("hop", k, hop, self._federation.body(model))
            if closed is not None:
                self._store.remember(CLOSED, closed.record(k))
        self._bell.ring()

    def _model(self, kind: str, k: int, part: int) -> Tensor:
        saved = self._store.get("start" if kind == "start" else "hop", k, part)
        assert saved is not None  # the open round's models are never pruned
        return self._federation.own_model(saved.body)

    async def _hop(self, turn: Turn, hop: int, across: Mixing) -> None:
        if not self._store.has("hop", turn.k, hop + 1):
            self._keep(turn.k, hop + 1, await self._mixed(turn, hop, across))

    async def _mixed(self, turn: Turn, hop: int, across: Mixing) -> Tensor:
        """This server's model after one more hop."""
        own = self._model("hop", turn.k, hop)
        if self._me not in across.rows:
            return own
        row = across.row(self._me)
        others = [source for source in row if source != self._me]
        models = await self._gather(turn.k, hop, others)
        models[self._me] = own
        row = without(row, self._me, [source for source in row if source not in models])
        return blended(heavier(row, self._me, self._share(turn)), models)

    def _share(self, turn: Turn) -> float:
        """How much of the cluster is this server's own."""
        net = self._federation.net
        return grown(net, self._me, ()) / grown(net, self._me, turn.guests)

    def _needed(self, known: Known, across: Mixing | None) -> int:
        """The oldest round whose hops another server may still ask for.

        A server that answered in this round has finished its earlier ones. Where somebody takes
        from us who gives us nothing, there is no such sign, and everything is kept.
        """
        if across is None:
            return known.met
        takers = set(across.receivers(self._me)) - {self._me}
        gave = set(across.senders(self._me)) if self._me in across.rows else set()
        return known.k if takers <= gave else known.met

    async def serve(self, server: int, kind: str, header: Header, body: bytes | None) -> Answer:
        """This server's model of (round, hop), as soon as there is one."""
        if kind == "adopt":
            known = Known.load(self._store)
            assert known is not None  # a server that answers has begun
            body = self.current()
            return {**known.common(), "sha256": digest(body)}, body
        if kind != "model":
            raise Refused(f"a synchronous server does not answer '{kind}'")
        k, hop = whole(header, "round"), whole(header, "hop")

        def look() -> Answer | None:
            saved = self._store.get("hop", k, hop)
            if saved is None and k < self._newest():
                return {"gone": True, "round": self._newest()}, None
            self.absent.discard(server)  # whoever is in step takes part again
            return None if saved is None else ({"sha256": saved.sha256}, saved.body)

        found = await self._bell.wait_for(look, seconds(header, "wait"))
        return found if found is not None else ({"early": True}, None)

    async def _gather(self, k: int, hop: int, others: Iterable[int]) -> dict[int, Tensor]:
        """The others' models of (k, hop). Who stays silent too long is left out, if so decided."""
        asked = [server for server in others if server not in self.absent]
        self._waiting = set(asked)
        models = await asyncio.gather(*(self._pull(server, k, hop) for server in asked))
        self._waiting = set()
        return {s: model for s, model in zip(asked, models, strict=True) if model is not None}

    async def _pull(self, server: int, k: int, hop: int) -> Tensor | None:
        """Its model, or None if it is given up: silent for too long, and not for others' sake."""
        drop = self._policy.dead_edge == "drop"
        try:
            for _ in self._federation.net.servers:  # no chain of waiting servers is longer
                try:
                    async with asyncio.timeout(self._policy.edge_deadline if drop else None):
                        return await self._insist(server, k, hop)
                except TimeoutError:
                    if not await self._waits(server):
                        break
                except (NotTrusted, Rejected) as error:  # it was revoked, or sends nonsense
                    if not drop:
                        raise
                    self.cluster.counts.last_error = f"edge-{server}: {error}"
                    self.cluster.counts.rejected += isinstance(error, Rejected)
                    break
            self.absent.add(server)
            return None
        finally:
            self._waiting.discard(server)

    async def _waits(self, server: int) -> bool:
        """Is a server late because it waits for another one?"""
        try:
            header, _ = await self.peers[server].ask("here", {}, seconds=HERE)
        except SdfeelError:
            return False
        return header.get("waiting") is True

    async def _insist(self, server: int, k: int, hop: int) -> Tensor:
        question = {"round": k, "hop": hop, "wait": LONG_POLL}
        while True:
            header, body = await self.peers[server].insist("model", question)
            if body is not None:
                bound = self._policy.max_server_norm
                return self._federation.model(body, header.get("sha256"), bound)
            if header.get("gone"):
                raise Behind(server, whole(header, "round"))

    async def _back(self, server: int) -> bool:
        """Can a server that was given up take part? One that is behind comes by itself."""
        header, _ = await self.peers[server].insist("here", {})
        return whole(header, "round") >= self._newest()

    def committed(self) -> None:
        """Others pull what they need."""

    async def settle(self) -> None:
        """Others pull what they need."""

    def settled(self) -> bool:
        return True

    async def adopted(self, known: Known, behind: Behind) -> Known:
        """Go on in the round of a server that went on without us, from its model.

        Only where servers may be dropped: else nobody goes on without anybody.
        """
        if self._policy.dead_edge == "wait":
            raise RunError(
                f"edge-{behind.server} is in round {behind.round} and has forgotten round "
                f"{known.k}: one of the two lost its state; start the federation anew"
            )
        try:
            async with asyncio.timeout(self._policy.edge_deadline):
                header, body = await self.peers[behind.server].insist("adopt", {})
        except TimeoutError:
            self.absent.add(behind.server)
            return known
        if body is None:
            raise Refused(f"edge-{behind.server} has no model to go on from")
        self._federation.model(body, header.get("sha256"), self._policy.max_server_norm)
        try:
            after = replace(Known.of({**header, "taken": {}}), taken=known.taken)
        except (KeyError, TypeError, ValueError):
            raise Refused(f"what edge-{behind.server} tells of itself cannot be read") from None
        with self._store.commit():
            self._store.put("start", after.k, 0, body, replace=True)
            after.save(self._store)
        return after

    def _newest(self) -> int:
        (newest,) = self._store.newest("start", 1)
        return newest

    def current(self) -> bytes:
        saved = self._store.get("start", self._newest())
        assert saved is not None
        return saved.body

    def waiting(self) -> list[str]:
        return [f"edge-{server}" for server in sorted(self._waiting)]

    def traffic(self) -> int:
        return sum(link.sent + link.received for link in self.peers.values())

    def last_error(self) -> str:
        return next((link.last_error for link in self.peers.values() if link.last_error), "")
