"""Synchronous servers exchange models: each pulls (round, hop) from those it listens to.

Hop 0 is this server's average of its clients. Every hop is durable before it is served, so a pull
can be repeated without harm, and nothing that was served is ever computed anew.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from torch import Tensor

from sdfeel.core.decide import length
from sdfeel.core.errors import SdfeelError
from sdfeel.core.mixing import Mixing
from sdfeel.live.edge.absent_servers import AGAIN, Absent
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.edge.neighbours import Neighbours
from sdfeel.live.edge.round_end import Behind, Closed, Ended, averaged
from sdfeel.live.edge.state import ServerState
from sdfeel.live.federation import Turn, blended, grown, heavier, row_without
from sdfeel.live.protocol import HERE, LONG_POLL, Answer, Header, Link, seconds, whole
from sdfeel.live.transport.errors import NotTrusted, Refused

CLOSED = "closed"


@dataclass
class SyncExchange:
    """One server's exchanges with the others, in step."""

    cluster: Cluster
    peers: Mapping[int, Link]
    _waiting: set[int] = field(default_factory=set)
    _missed: set[int] = field(default_factory=set)  # servers whose models did not come this round

    def __post_init__(self) -> None:
        self._federation, self._me = self.cluster.federation, self.cluster.server
        self._store, self._bell = self.cluster.store, self.cluster.bell
        self._policy = self.cluster.policy
        self._others = Neighbours(self.cluster, self.peers, self._back)

    @property
    def absent(self) -> Absent:
        return self._others.absent

    async def finish(self, known: ServerState, turn: Turn, closed: Closed) -> Ended:
        self._missed = set()
        mix = self._federation.decisions.mix(turn.view, turn.done(closed.steps))
        if not self._store.has("hop", turn.k, 0):
            start = self._model("start", turn.k, 0)
            arrived, bounds = self.cluster.results(turn, closed), self.cluster.bounds
            model = self.cluster.kept(
                lambda: averaged(self._me, turn, mix, arrived, start, start, bounds), start
            )
            self._keep(turn.k, 0, model, closed)
        model = self._model("hop", turn.k, 0)
        met: tuple[int, ...] = ()
        if mix.exchange is not None:
            for hop in range(mix.exchange.hops - 1):
                await self._hop(turn, hop, mix.exchange)
            # The last hop is not asked for by anyone: it becomes durable with the round's commit.
            model = await self._mixed(turn, mix.exchange.hops - 1, mix.exchange)
            met = tuple(mix.exchange.rows.tolist()) if mix.exchange.crossings else ()
        away = {"away": sorted(self._missed | set(self.absent))}
        return Ended(model, mix, met, self._needed(known, mix.exchange), away)

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
        others = [source for source in across.row(self._me) if source != self._me]
        models = await self._gather(turn.k, hop, others, own)
        missing = [source for source in others if source not in models]
        self._missed.update(missing)
        row = row_without(across, self._me, missing)
        row = heavier(row, self._me, self._share(turn))

        def mixed() -> Tensor:
            outcome = blended(row, models | {self._me: own})
            self.cluster.bounds.check(outcome, own, sum(map(abs, row.values())))
            return outcome

        return self.cluster.kept(mixed, own)

    def _share(self, turn: Turn) -> float:
        """How much of the cluster is this server's own."""
        net = self._federation.net
        return grown(net, self._me, ()) / grown(net, self._me, turn.guests)

    def _needed(self, known: ServerState, across: Mixing | None) -> int:
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
        if kind != "model":
            raise Refused(f"a synchronous server does not answer '{kind}'")
        k, hop = whole(header, "round"), whole(header, "hop")

        def look() -> Answer | None:
            saved = self._store.get("hop", k, hop)
            if saved is None and k < self._newest():
                return {"gone": True, "round": self._newest()}, None
            self._others.welcome(server)  # whoever is in step takes part again
            return None if saved is None else ({"sha256": saved.sha256}, saved.body)

        found = await self._bell.wait_for(look, seconds(header, "wait"))
        return found if found is not None else ({"early": True}, None)

    async def _gather(self, k: int, hop: int, others: list[int], own: Tensor) -> dict[int, Tensor]:
        """The others' models of (k, hop). Who stays silent too long is left out, if so decided."""
        asked = [server for server in others if server not in self.absent]
        self._waiting = set(asked)
        models = await asyncio.gather(*(self._pull(server, k, hop, own) for server in asked))
        self._waiting = set()
        return {s: model for s, model in zip(asked, models, strict=True) if model is not None}

    async def _pull(self, server: int, k: int, hop: int, own: Tensor) -> Tensor | None:
        """Its model, or None if it is given up: silent for too long, and not for others' sake."""
        drop = self._policy.dead_edge == "drop"
        try:
            for _ in self._federation.net.servers:  # no chain of waiting servers is longer
                try:
                    async with asyncio.timeout(self._policy.edge_deadline if drop else None):
                        return await self._insist(server, k, hop, own)
                except TimeoutError:
                    if not await self._waits(server):
                        break
                except (NotTrusted, Refused) as error:  # it was revoked, or sends nonsense
                    self._others.offended(server, k, error)
                    return None
            self._others.give_up(server, k)
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

    async def _insist(self, server: int, k: int, hop: int, own: Tensor) -> Tensor:
        """Its model, asked for until it comes; where nobody may be left out, a bad one, too."""
        while True:
            try:
                return await self._asked(server, k, hop, own)
            except (NotTrusted, Refused) as error:
                if self._policy.dead_edge == "drop":
                    raise
                await self._others.denied(server, error)

    async def _asked(self, server: int, k: int, hop: int, own: Tensor) -> Tensor:
        question = {"round": k, "hop": hop, "wait": LONG_POLL}
        while True:
            header, body = await self.peers[server].insist("model", question)
            if body is not None:
                bound = self._policy.max_server_norm
                model = self._federation.model(body, header.get("sha256"), bound)
                self.cluster.bounds.check(model, own)
                self._others.heard(server)
                return model
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

    async def caught_up(self, known: ServerState, behind: Behind) -> ServerState:
        """Go on in the round of the others, with the model that we have, as in a simulation.

        Only where servers may be dropped: else nobody goes on without anybody, and we wait for who
        says so to find its state again. A claim that cannot be true costs the other its place.
        """
        if self._policy.dead_edge == "wait":
            self.cluster.complain(
                f"edge-{behind.server}: it says that it is in round {behind.round} and has "
                f"forgotten round {known.k}: one of the two lost its state, or it is not honest"
            )
            await asyncio.sleep(AGAIN)
            return known
        k = await self._believed(known, behind)
        if k is None:
            return known
        after = await self._moved(known, k)
        saved = self._store.get("start", known.k)
        assert saved is not None  # the open round's model is never pruned
        with self._store.commit():
            self._store.put("start", after.k, 0, saved.body, replace=True)
            after.save(self._store)
        # Whoever is in that round still waits for us from the next exchange on.
        await asyncio.gather(*(self._announce(d, after.k) for d in self.peers))
        return after

    async def _announce(self, server: int, k: int) -> None:
        with suppress(SdfeelError):
            await self.peers[server].ask("model", {"round": k, "hop": 0, "wait": 0}, seconds=HERE)

    async def _believed(self, known: ServerState, behind: Behind) -> int | None:
        """The round to go on in; None if we stay, for now or because the other one lied."""
        server, claim = behind.server, behind.round
        possible = claim > known.k and (await self._moved(known, claim)).k == claim
        if possible:
            k = await self._others.agreed_round(known.k, server, claim)
            if k is not None:
                return k
            if self._others.doubts(server):
                await asyncio.sleep(AGAIN / 2)
                return None
        text = f"it says that it is in round {claim}, which cannot be or nobody else confirms"
        self._others.offended(server, known.k, Refused(text))
        return None

    async def _moved(self, known: ServerState, k: int) -> ServerState:
        """What we would know in round `k` had we done nothing until then; not beyond the last."""
        federation, steps, at = self._federation, known.steps, known.k
        while at < k and int(steps) < federation.iterations:
            turn = Turn.of(federation, self._me, at, known.memory)
            steps += length(federation.net, turn.work, turn.planned)
            at += 1
            await asyncio.sleep(0)  # thousands of rounds take a while, and others ask
        over = int(steps) >= federation.iterations
        return replace(known, k=at, steps=steps, over=over, met=at, guests=())

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
