"""Asynchronous servers exchange models: one leads, its neighbours hold still for a moment.

The leader locks itself and its neighbours in ascending order of their numbers, so that no two
leaders can wait for each other. Under the locks it reads all models, decides, commits its own new
model together with what the others must apply, and then has them apply it. Locks and everything
built on them are durable: whoever is killed in between goes on where it was. All exchanges have
an order in which they could have happened one after another, which a simulation can repeat.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from sdfeel.core.scheme import Mix
from sdfeel.core.staleness import Clocks
from sdfeel.live.cluster import Cluster
from sdfeel.live.ending import Behind, Closed, Ended, averaged
from sdfeel.live.errors import Refused
from sdfeel.live.federation import Turn, blended, without
from sdfeel.live.memory import Known
from sdfeel.live.protocol import LONG_POLL, Answer, Header, Link, seconds, whole
from sdfeel.live.wire import digest

FACT = "meeting"
Lock = tuple[int, int]  # who leads, in which of its rounds


@dataclass(frozen=True)
class Seen:
    """A server as its leader sees it, held still."""

    model: Tensor
    version: int  # changes of its model so far
    heard: list[int]  # (D,) the stamp of each server's last round, as it has heard it
    stamp: int


@dataclass
class Meeting:
    """One server's exchanges with the others, out of step."""

    cluster: Cluster
    peers: Mapping[int, Link]
    absent: set[int] = field(default_factory=set)
    version: int = 0
    heard: list[int] = field(default_factory=list)
    stamp: int = 0
    lock: Lock | None = None
    applied: dict[int, int] = field(default_factory=dict)  # each leader's last round applied here
    outbox: dict[int, Header] = field(default_factory=dict)  # what others must still apply
    _delivery: "asyncio.Future[None] | None" = None
    _waiting: set[int] = field(default_factory=set)
    _locked_at: float = 0.0

    def __post_init__(self) -> None:
        self._federation, self._me = self.cluster.federation, self.cluster.server
        self._store, self._bell = self.cluster.store, self.cluster.bell
        self._policy = self.cluster.policy
        self.heard = [0] * len(self._federation.net.servers)
        saved: dict[str, Any] | None = self._store.fact(FACT)
        if saved is not None:
            self.version, self.heard, self.stamp = saved["version"], saved["heard"], saved["stamp"]
            self.lock = None if saved["lock"] is None else (saved["lock"][0], saved["lock"][1])
            self.applied = {int(d): k for d, k in saved["applied"].items()}
            self.outbox = {int(d): header for d, header in saved["outbox"].items()}
        self._locked_at = self.cluster.clock()

    async def finish(self, known: Known, turn: Turn, closed: Closed) -> Ended:
        await self.settle()
        done = turn.done(closed.steps)
        plan = self._federation.scheme.mix(turn.view, done)
        others = [] if plan.across is None else plan.across.rows.tolist()
        seen = await self._lock_all(turn.k, sorted({*others, self._me}))
        clocks = self._clocks(seen)
        view = self._federation.view(turn.view.lane, turn.k, clocks, known.memory)
        mix = self._federation.scheme.mix(view, done)
        saved = self._store.get("start", turn.k)
        assert saved is not None  # the open round's model is never pruned
        start = self._federation.model(saved.body)
        arrived = self.cluster.results(turn, closed)
        up = averaged(self._me, turn, mix, arrived, start, seen[self._me].model)
        model, met = self._mixed(mix, up, seen)
        after = clocks.after(np.array([self._me]), np.array(met, dtype=int))
        versions = {str(d): each.version for d, each in seen.items()}
        return Ended(
            model,
            mix,
            met,
            turn.k,
            {"versions": versions},
            lambda: self._commit(turn.k, mix, up, model, met, after),
        )

    async def adopted(self, known: Known, behind: Behind) -> Known:
        """Out of step there is no round to catch up with."""
        raise AssertionError("an asynchronous server is never behind") from behind

    def _mixed(
        self, mix: Mix, up: Tensor, seen: Mapping[int, Seen]
    ) -> tuple[Tensor, tuple[int, ...]]:
        if mix.across is None:
            return up, ()
        row = mix.across.row(self._me)
        row = without(row, self._me, [source for source in row if source not in seen])
        models = {d: each.model for d, each in seen.items()} | {self._me: up}
        return blended(row, models), tuple(d for d in mix.across.rows.tolist() if d in seen)

    def _commit(
        self, k: int, mix: Mix, up: Tensor, model: Tensor, met: tuple[int, ...], after: Clocks
    ) -> None:
        """This server's part of the exchange, and what the others must do. Inside a commit."""
        self.version, self.lock = self.version + 1, None
        self.heard = after.heard[self._me].tolist()
        self.stamp = int(after.stamp[self._me])
        body = self._federation.body(up)
        self.outbox = {}
        for d in met:
            if d != self._me:
                assert mix.across is not None
                row = mix.across.row(d)
                self.outbox[d] = {
                    "round": k,
                    "sources": list(row),
                    "weights": list(row.values()),
                    "heard": after.heard[d].tolist(),
                    "stamp": int(after.stamp[d]),
                    "sha256": digest(body),
                }
        self._store.put("hop", k, 0, body, replace=True)
        self._store.put("own", 0, 0, self._federation.body(model), replace=True)
        self._save()

    def _save(self) -> None:
        self._store.remember(
            FACT,
            {
                "version": self.version,
                "heard": self.heard,
                "stamp": self.stamp,
                "lock": self.lock,
                "applied": {str(d): k for d, k in self.applied.items()},
                "outbox": {str(d): header for d, header in self.outbox.items()},
            },
        )

    def committed(self) -> None:
        """Have the others apply what they owe to this server's last round."""
        if self.outbox and (self._delivery is None or self._delivery.done()):
            self._delivery = asyncio.ensure_future(self._deliver())

    async def settle(self) -> None:
        self.committed()
        if self._delivery is not None:
            await self._delivery

    async def _deliver(self) -> None:
        async def one(d: int, header: Header) -> None:
            saved = self._store.get("hop", header["round"], 0)
            assert saved is not None
            try:
                await self.peers[d].insist("apply", header, saved.body)
            except Refused as error:  # it has given the lock up: then it goes on without us
                self.peers[d].last_error = str(error)

        await asyncio.gather(*(one(d, header) for d, header in self.outbox.items()))
        self.outbox = {}
        with self._store.commit():
            self._save()
        self._bell.ring()

    async def _lock_all(self, k: int, servers: list[int]) -> dict[int, Seen]:
        """Hold everyone still, in ascending order."""
        seen = {}
        for d in servers:
            self._waiting = {d}
            found = await (self._lock_self(k) if d == self._me else self._lock_other(d, k))
            if found is not None:
                seen[d] = found
        self._waiting = set()
        return seen

    async def _lock_self(self, k: int) -> Seen:
        while True:
            found = await self._bell.wait_for(lambda: self._hold(self._me, k), LONG_POLL)
            if found is not None:
                model = self._federation.model(self.current())
                return Seen(model, self.version, self.heard, self.stamp)

    async def _lock_other(self, d: int, k: int) -> Seen | None:
        if d in self.absent:
            return None
        drop = self._policy.dead_edge == "drop"
        try:
            async with asyncio.timeout(self._policy.edge_deadline if drop else None):
                while True:
                    question = {"round": k, "wait": LONG_POLL}
                    header, body = await self.peers[d].insist("lock", question)
                    if body is not None:
                        model = self._federation.model(body, header.get("sha256", ""))
                        return Seen(
                            model,
                            whole(header, "version"),
                            self._numbers(header),
                            whole(header, "stamp"),
                        )
        except TimeoutError:
            self.absent.add(d)
            return None

    def _hold(self, leader: int, k: int) -> bool | None:
        """Give the lock, durably, if it is free or already given to the same."""
        if self.lock is not None and self._policy.dead_edge == "drop":
            held = self.cluster.clock() - self._locked_at
            if self.lock[0] != self._me and held > self._policy.edge_deadline:
                self.absent.add(self.lock[0])
                self.lock = None
        if self.lock == (leader, k):
            return True
        if self.lock is not None:
            return None
        self.lock, self._locked_at = (leader, k), self.cluster.clock()
        with self._store.commit():
            self._save()
        return True

    async def serve(self, server: int, kind: str, header: Header, body: bytes | None) -> Answer:
        self.absent.discard(server)
        if kind == "lock":
            return await self._serve_lock(server, header)
        if kind == "apply":
            return self._serve_apply(server, header, body)
        raise Refused(f"an asynchronous server does not answer '{kind}'")

    async def _serve_lock(self, server: int, header: Header) -> Answer:
        k = whole(header, "round")
        if k <= self.applied.get(server, -1):
            raise Refused(f"round {k} of edge-{server} was applied before")
        given = await self._bell.wait_for(lambda: self._hold(server, k), seconds(header, "wait"))
        if given is None:
            return {"busy": True}, None
        body = self.current()
        told = {"version": self.version, "heard": self.heard, "stamp": self.stamp}
        return {**told, "sha256": digest(body)}, body

    def _serve_apply(self, server: int, header: Header, body: bytes | None) -> Answer:
        k = whole(header, "round")
        if k <= self.applied.get(server, -1):
            return {"known": True}, None
        if self.lock != (server, k):
            raise Refused(f"edge-{self._me} is not held by round {k} of edge-{server} any more")
        row = self._row(server, header)
        if body is None:
            raise Refused("the message carries no model")
        theirs = self._federation.model(body, header.get("sha256", ""))
        own = self._federation.model(self.current())
        model = blended(row, {server: theirs, self._me: own})
        self.version, self.lock = self.version + 1, None
        self.heard, self.stamp = self._numbers(header), whole(header, "stamp")
        self.applied[server] = k
        with self._store.commit():
            self._store.put("own", 0, 0, self._federation.body(model), replace=True)
            self._save()
        self._bell.ring()
        return {"applied": True}, None

    def _row(self, server: int, header: Header) -> dict[int, float]:
        """What this server takes from itself and from the leader."""
        try:
            row = dict(zip(header["sources"], map(float, header["weights"]), strict=True))
        except (KeyError, TypeError, ValueError):
            raise Refused("the message's weights cannot be read") from None
        if not set(row) <= {server, self._me} or abs(sum(row.values()) - 1) > 1e-9:
            raise Refused("the weights of an exchange must be of the two servers and sum to 1")
        return row

    def _numbers(self, header: Header) -> list[int]:
        found = header.get("heard")
        size = len(self._federation.net.servers)
        if not isinstance(found, list) or len(found) != size:
            raise Refused(f"the message's 'heard' must be {size} numbers")
        if not all(isinstance(n, int) and n >= 0 for n in found):
            raise Refused("the message's 'heard' must be whole numbers from 0")
        return found

    def _clocks(self, seen: Mapping[int, Seen]) -> Clocks:
        """What the servers that are held still know together."""
        size = len(self._federation.net.servers)
        clocks = Clocks.fresh(size)
        heard, stamp = clocks.heard.copy(), clocks.stamp.copy()
        for d, each in seen.items():
            heard[d], stamp[d] = each.heard, each.stamp
        return Clocks(0, clocks.led, clocks.touched, heard, stamp)

    def settled(self) -> bool:
        return not self.outbox

    def current(self) -> bytes:
        saved = self._store.get("own", 0)
        assert saved is not None  # written when the node began
        return saved.body

    def waiting(self) -> list[str]:
        return [f"edge-{server}" for server in sorted(self._waiting)]

    def traffic(self) -> int:
        return sum(link.sent + link.received for link in self.peers.values())

    def last_error(self) -> str:
        return next((link.last_error for link in self.peers.values() if link.last_error), "")
