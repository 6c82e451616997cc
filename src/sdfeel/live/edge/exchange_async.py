"""Asynchronous servers exchange models: one leads, and locks its neighbours for a moment.

The leader locks itself and its neighbours in ascending order of their numbers, so that no two
leaders can wait for each other. Then it reads all models, asks the scheme, commits its own new
model together with what the others must apply, and has them apply it. A server that is killed in
between continues where it was. The exchanges have the same outcome as if they had happened one
after another in some order, and a simulation can repeat that order.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from sdfeel.core.errors import SdfeelError
from sdfeel.core.scheme import Mix
from sdfeel.core.staleness import Clocks
from sdfeel.live.edge.absent_servers import Absent
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.edge.locked_model import LockedModel, PeerModel
from sdfeel.live.edge.neighbours import Neighbours
from sdfeel.live.edge.round_end import Behind, Closed, Ended
from sdfeel.live.edge.rows import ServerRows, averaged, mixed
from sdfeel.live.edge.state import ServerState
from sdfeel.live.federation import Turn, without
from sdfeel.live.protocol import HERE, LONG_POLL, Answer, Header, Link, whole
from sdfeel.live.transport.errors import NotTrusted, Refused
from sdfeel.live.transport.tensors import digest

MUTE = 10.0  # seconds until we ask again how far a server is that did not answer
AGAIN = 0.1  # seconds until we ask all servers again how many rounds they have done
BUSY = 0.02  # seconds until we ask again a busy server that should have waited


@dataclass
class AsyncExchange:
    """One asynchronous server's exchanges with the others."""

    cluster: Cluster
    peers: Mapping[int, Link]
    _delivery: "asyncio.Future[None] | None" = None
    _waiting: set[int] = field(default_factory=set)
    _inquired: float = -AGAIN  # when we last asked all how many rounds they have done
    _silent: dict[int, float] = field(default_factory=dict)  # until when not to ask a server

    def __post_init__(self) -> None:
        self._federation, self._me = self.cluster.federation, self.cluster.server
        self._store, self._policy = self.cluster.store, self.cluster.policy
        self._others = Neighbours(self.cluster, self.peers, self._back)
        self._own = LockedModel(self.cluster, self._others)

    @property
    def absent(self) -> Absent:
        return self._others.absent

    async def finish(self, known: ServerState, turn: Turn, closed: Closed) -> Ended:
        await self.settle()
        done = turn.done(closed.steps)
        plan = self._federation.decisions.mix(turn.view, done)
        others = [] if plan.exchange is None else plan.exchange.rows.tolist()
        seen = await self._hold_all(turn.k, sorted({*others, self._me}))
        clocks = self._clocks(seen)
        view = replace(turn.view, clocks=clocks, began=clocks.number)
        mix = self._federation.decisions.mix(view, done)
        rows = ServerRows(self._federation, self._store, self._me, seen[self._me].model)
        start, arrived = self.cluster.handout(turn).started, self.cluster.results(turn, closed)
        averaged(rows, mix, arrived, start, self.cluster.bounds, self.cluster.kept)
        up = rows[self._me]
        model, met = self._mixed(mix, up, seen)
        after = clocks.after(np.array([self._me]), np.array(met, dtype=int))
        versions = {str(d): each.version for d, each in seen.items()}
        return Ended(
            model,
            mix,
            met,
            turn.k,
            {"versions": versions},
            lambda: self._commit(turn.k, up, model, met, after),
        )

    async def caught_up(self, known: ServerState, behind: Behind) -> ServerState:
        """An asynchronous server has no round to catch up with."""
        raise AssertionError("an asynchronous server is never behind") from behind

    def _mixed(
        self, mix: Mix, up: Tensor, seen: Mapping[int, PeerModel]
    ) -> tuple[Tensor, tuple[int, ...]]:
        if mix.exchange is None:
            return up, ()
        missing = [d for d in mix.exchange.row(self._me) if d not in seen]
        across = without(self._federation.net, mix.exchange, self._me, missing)
        rows = ServerRows(self._federation, self._store, self._me, up)
        heard = {d: each.model for d, each in seen.items() if d != self._me}
        mixed(rows, across, heard, self.cluster.bounds, self.cluster.kept)
        return rows[self._me], tuple(d for d in mix.exchange.rows.tolist() if d in seen)

    def _commit(
        self, k: int, up: Tensor, model: Tensor, met: tuple[int, ...], after: Clocks
    ) -> None:
        """Save our part of the exchange, and what the others must do. Call it inside a commit.

        Each of them works out its own weights, from what we had heard before the exchange.
        """
        own, body = self._own, self._federation.body(up)
        before = {"heard": own.heard, "stamp": own.stamp}
        own.version, own.lock, own.outbox = own.version + 1, None, {}
        own.heard, own.stamp = after.hearsay[self._me].tolist(), int(after.stamp[self._me])
        for d in met:
            if d != self._me:
                own.outbox[d] = {
                    "round": k,
                    "before": before,
                    "heard": after.hearsay[d].tolist(),
                    "stamp": int(after.stamp[d]),
                    "steps": own.tally.told,
                    "sha256": digest(body),
                }
        self._store.put("hop", k, 0, body, replace=True)
        self._store.put("own", 0, 0, self._federation.body(model), replace=True)
        own.save()

    def committed(self) -> None:
        """Have the others apply the exchange of this server's last round."""
        if self._own.outbox and (self._delivery is None or self._delivery.done()):
            self._delivery = asyncio.ensure_future(self._deliver())

    async def settle(self) -> None:
        self.committed()
        if self._delivery is not None:
            await self._delivery

    def settled(self) -> bool:
        return not self._own.outbox

    async def _back(self, server: int) -> bool:
        """Is a server that was given up back? Asynchronous servers are never behind."""
        await self.peers[server].insist("here", {})
        return True

    def _patience(self) -> asyncio.Timeout:
        """The time to wait for another server; without end if none may be dropped."""
        drop = self._policy.dead_edge == "drop"
        return asyncio.timeout(self._policy.edge_deadline if drop else None)

    async def _deliver(self) -> None:
        async def one(d: int, header: Header) -> None:
            saved = self._store.kept("hop", header["round"], 0)
            try:
                async with self._patience():
                    await self.peers[d].insist("apply", header, saved.body)
            except (NotTrusted, Refused) as error:  # it continues without this exchange
                self.peers[d].last_error = str(error)
                await self._release(d, header["round"])
            except TimeoutError:
                self._others.give_up(d, header["round"])

        await asyncio.gather(*(one(d, header) for d, header in self._own.outbox.items()))
        self._own.outbox = {}
        with self._store.commit():
            self._own.save()
        self.cluster.bell.ring()

    async def _hold_all(self, k: int, servers: list[int]) -> dict[int, PeerModel]:
        """Lock these servers in ascending order; without those that are silent or refuse."""
        seen = {}
        for d in servers:
            self._waiting = {d}
            found = await (self._hold_own(k) if d == self._me else self._hold_other(d, k))
            if found is not None:
                seen[d] = found
        self._waiting = set()
        return seen

    async def _hold_own(self, k: int) -> PeerModel:
        while await self._own.held_by(self._me, k, LONG_POLL) is None:
            pass
        return self._own.seen()

    async def _hold_other(self, d: int, k: int) -> PeerModel | None:
        if d in self.absent:
            return None
        try:
            async with self._patience():
                return await self._held(d, k)
        except TimeoutError:
            self._others.give_up(d, k)
        except (NotTrusted, Refused) as error:
            self._others.offended(d, k, error)
            await self._release(d, k)
        return None

    async def _release(self, d: int, k: int) -> None:
        """Unlock a server, as the exchange will not happen."""
        with suppress(SdfeelError):  # if this is lost, it finds out when we ask for it again
            await self.peers[d].ask("apply", {"round": k, "release": True}, seconds=HERE)

    async def _held(self, d: int, k: int) -> PeerModel:
        while True:
            try:
                found = await self._asked(d, k)
            except (NotTrusted, Refused) as error:
                if self._policy.dead_edge == "drop":
                    raise
                await self._others.denied(d, error)
            else:
                if found is not None:
                    self._others.heard(d)
                    return found

    async def _asked(self, d: int, k: int) -> PeerModel | None:
        """Another server's model, locked for us; None if it is busy."""
        question = {"round": k, "wait": LONG_POLL}
        header, body = await self.peers[d].insist("lock", question)
        if body is None:
            if not header.get("busy"):
                raise Refused("it neither sends a model nor says that it is busy")
            await asyncio.sleep(BUSY)
            return None
        model = self._federation.model(body, header.get("sha256"), self._policy.max_server_norm)
        self.cluster.bounds.check(model, self._federation.own_model(self._own.body()))
        self._own.count.heard(d, header.get("round"))
        await self._inquire(header)
        heard, stamp = self._own.claimed(header)
        self._own.tally.learn(d, header.get("steps"))
        self._own.tally.ended(d, header.get("over"))
        return PeerModel(model, whole(header, "version"), heard, stamp)

    def offended(self, server: int, k: int, error: SdfeelError) -> None:
        self._others.offended(server, k, error)

    async def serve(self, server: int, kind: str, header: Header, body: bytes | None) -> Answer:
        self._others.welcome(server)
        if kind == "lock":
            return await self._own.serve_lock(server, header)
        if kind == "apply":
            self._own.count.heard(server, header.get("round"))
            await self._inquire(header)
            return self._own.serve_apply(server, header, body)
        raise Refused(f"an asynchronous server does not answer '{kind}'")

    def _clocks(self, seen: Mapping[int, PeerModel]) -> Clocks:
        """What the locked servers know together."""
        clocks = self._federation.in_step(0)
        heard, stamp = clocks.hearsay.copy(), clocks.stamp.copy()
        for d, each in seen.items():
            heard[d], stamp[d] = each.heard, each.stamp
        return Clocks(0, clocks.led, clocks.touched, heard, stamp)

    def current(self) -> bytes:
        return self._own.body()

    def leapt(self) -> bool:
        return False  # every server has rounds of its own

    def waiting(self) -> list[str]:
        return [f"edge-{server}" for server in sorted(self._waiting)]

    async def finished(self, steps: float) -> bool:
        """Is the run over? Before others' hearsay ends it, each server confirms its own count."""
        tally = self._own.tally
        tally.took(steps)
        asked = tally.doubtful(set(self.absent))
        answers = await asyncio.gather(*(self._confirmed(d) for d in asked))
        silent = {d for d, answered in zip(asked, answers, strict=True) if not answered}
        return tally.over(set(self.absent), silent)

    async def _inquire(self, header: Header) -> None:
        """Ask all servers how many rounds they have done, if a message claims more than we know."""
        now = self.cluster.clock()
        if "heard" in header and self._own.doubts(header) and now >= self._inquired + AGAIN:
            self._inquired = now
            others = [d for d in self.peers if d not in self.absent]
            answers = await asyncio.gather(*(self._confirmed(d) for d in others))
            known = {d for d, answered in zip(others, answers, strict=True) if answered}
            self._own.silent = set(self.peers) - known

    async def _confirmed(self, server: int) -> bool:
        """Ask a server how far it is; False if it does not answer, and then leave it a while."""
        if self.cluster.clock() < self._silent.get(server, 0.0):
            return False
        try:
            header, _ = await self.peers[server].ask("here", {}, seconds=HERE)
        except SdfeelError:
            self._silent[server] = self.cluster.clock() + MUTE
            return False
        self._own.tally.heard(server, header.get("steps"))
        self._own.tally.ended(server, header.get("over"))
        self._own.count.heard(server, header.get("round"))
        return True

    def traffic(self) -> int:
        return sum(link.sent + link.received for link in self.peers.values())

    def last_error(self) -> str:
        return next((link.last_error for link in self.peers.values() if link.last_error), "")
