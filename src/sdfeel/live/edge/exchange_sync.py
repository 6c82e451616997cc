"""Synchronous servers exchange models: each pulls its sources' rows by (round, hop).

Hop 0 is a server's average of its clients. Every hop is on disk before it is served, so a pull can
be repeated without harm, and nothing that was served is ever computed again.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import Ints
from sdfeel.core.decide import length, mean_iterations
from sdfeel.core.errors import SdfeelError
from sdfeel.core.mixing import Mixing
from sdfeel.core.seeds import rng
from sdfeel.engine.messages import senders
from sdfeel.live.edge.absent_servers import AGAIN, Absent
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.edge.neighbours import Neighbours
from sdfeel.live.edge.round_end import Behind, Closed, Ended, Left, PeerAhead
from sdfeel.live.edge.rows import PublicCopies, ServerRows, averaged, mixed, place
from sdfeel.live.edge.state import ServerState
from sdfeel.live.federation import Federation, Turn, as_array, grown, heavier, without
from sdfeel.live.protocol import HASTY, HERE, LONG_POLL, Answer, Header, Link, seconds, whole
from sdfeel.live.transport.errors import NotTrusted, Refused
from sdfeel.live.transport.tensors import CODE, digest, pack

CLOSED = "closed"
MOST_HOPS = 1_000_000  # of all stages of a round


@dataclass
class SyncExchange:
    """One synchronous server's exchanges with the others."""

    cluster: Cluster
    peers: Mapping[int, Link]
    _waiting: set[int] = field(default_factory=set)
    _owed: set[tuple[int, int]] | None = None  # (server, round): it may still ask for these hops
    _missed: set[int] = field(default_factory=set)  # servers whose rows did not arrive this round

    def __post_init__(self) -> None:
        self._me = self.cluster.server
        self._store, self._bell = self.cluster.store, self.cluster.bell
        self._policy = self.cluster.policy
        self._others = Neighbours(self.cluster, self.peers, self._back)

    @property
    def _federation(self) -> Federation:
        return self.cluster.federation  # of the epoch in force

    @property
    def absent(self) -> Absent:
        return self._others.absent

    async def finish(self, known: ServerState, turn: Turn, closed: Closed) -> Ended:
        self._missed = set()
        mix = self._federation.decisions.mix(turn.view, turn.done(closed.steps))
        handout = self.cluster.handout(turn)
        rows = handout.rows()
        arrived, bounds = self.cluster.results(turn, closed), self.cluster.bounds
        averaged(rows, mix, arrived, handout.started, bounds, self.cluster.kept)
        hops = [stage for stage in mix.stages for _ in range(stage.hops)]
        copies = PublicCopies(self._federation, self._store)
        for hop, stage in enumerate(hops):
            sent = stage.via == "server-server" and stage.crossings > 0
            if self._federation.backhaul is not None and sent:
                await self._compressed_hop(turn.k, hop, stage, rows, copies, closed)
            else:
                await self._plain_hop(turn, hop, stage, rows, closed, last=hop + 1 == len(hops))
        meetings = [stage for stage in mix.stages if stage.crossings]
        met = sorted({d for stage in meetings for d in stage.rows.tolist() if d >= 0})
        away = {"away": sorted(self._missed | set(self.absent))}
        keep = self._needed(known, turn.k, meetings)

        def save() -> None:
            rows.save()
            copies.save()

        return Ended(rows[self._me], mix, tuple(met), keep, away, save)

    async def _compressed_hop(
        self,
        k: int,
        hop: int,
        stage: Mixing,
        rows: ServerRows,
        copies: PublicCopies,
        closed: Closed,
    ) -> None:
        """One hop with compressed messages, which tell how a model differs from its public copy.

        Everything follows from what is on disk, messages included, so nothing else is written.
        """
        coding, me = self._federation.backhaul, self._me
        assert coding is not None
        talking = senders(stage)
        if me in talking:
            draws = rng(coding.seed, "backhaul", me, k, hop)
            code = coding.encode(as_array(rows[me] - copies[me]), draws)
            self._publish(k, {self._part(hop, me): pack({CODE: code})}, closed)
            copies.told(me, torch.from_numpy(coding.decode(code)))
        # Listen to all neighbours, not only to this hop's sources: a copy must not miss a message.
        near = set(self._listened(stage)) | set(self._federation.net.neighbours(me).tolist())
        heard = await self._gather(k, hop, [d for d in talking if d in near], rows, copies)
        for d, update in sorted(heard.items()):
            copies.told(d, update)
        if me not in stage.rows:
            return
        before, row = rows[me], stage.row(me)

        def mixed_in() -> Tensor:
            outcome = copies.moved(me, before, row)
            self.cluster.bounds.check(outcome, before, sum(map(abs, row.values())))
            return outcome

        rows.changed[me] = self.cluster.kept(mixed_in, before)

    async def _plain_hop(
        self, turn: Turn, hop: int, stage: Mixing, rows: ServerRows, closed: Closed, last: bool
    ) -> None:
        """One hop. The rows that others take are on disk before they get them.

        Nobody asks for the outcome of the last hop: it is written with the round's commit.
        """
        k, mine = turn.k, [dst for _, dst in rows.own(stage)]
        self._offer(k, hop, {n: rows[n] for n in self._taken(stage)}, closed)
        others = self._listened(stage)
        if others and not last and all(self._has(k, hop + 1, n) for n in mine):
            rows.changed |= {n: self._saved(k, hop + 1, n) for n in mine}
            return
        heard = await self._gather(k, hop, others, rows)
        missing = {self._federation.holder(n) for n in others if n not in heard}
        self._missed.update(missing)
        left = without(self._federation.net, stage, self._me, missing)
        if turn.guests:
            left = heavier(left, self._me, self._share(turn))
        mixed(rows, left, heard, self.cluster.bounds, self.cluster.kept)
        if others and not last:  # after a crash, those others might be gone
            self._offer(k, hop + 1, {n: rows[n] for n in mine}, closed)

    def _offer(self, k: int, hop: int, rows: Mapping[int, Tensor], closed: Closed) -> None:
        """Write rows as they are before a hop, so that others may ask for them."""
        fresh = {n: row for n, row in rows.items() if not self._has(k, hop, n)}
        bodies = {self._part(hop, n): self._federation.body(row) for n, row in fresh.items()}
        self._publish(k, bodies, closed)

    def _publish(self, k: int, bodies: Mapping[int, bytes], closed: Closed) -> None:
        if bodies:
            with self._store.commit():
                for part, body in bodies.items():
                    self._store.put("hop", k, part, body)
                self._store.remember(CLOSED, closed.record(k))
                if self.cluster.recorder is not None:
                    self.cluster.recorder.durable(k)
        self._bell.ring()

    def _part(self, hop: int, n: int) -> int:
        return hop * (1 + self._federation.net.kept) + place(n)

    def _has(self, k: int, hop: int, n: int) -> bool:
        return self._store.has("hop", k, self._part(hop, n))

    def _saved(self, k: int, hop: int, n: int) -> Tensor:
        saved = self._store.kept("hop", k, self._part(hop, n))
        return self._federation.own_model(saved.body)

    def _taken(self, stage: Mixing) -> list[int]:
        """Our rows that other servers take in this stage."""
        to, of = self._ends(stage)
        return [
            int(n)
            for n in np.unique(stage.sources[(of == self._me) & (to != self._me) & (to >= 0)])
        ]

    def _listened(self, stage: Mixing) -> list[int]:
        """Other servers' rows that we take in this stage."""
        to, of = self._ends(stage)
        return [int(n) for n in np.unique(stage.sources[(to == self._me) & (of != self._me)])]

    def _ends(self, stage: Mixing) -> tuple[Ints, Ints]:
        """The holders of each entry's destination and of its source."""
        holder = self._federation.net.holder
        return holder(np.repeat(stage.rows, np.diff(stage.starts))), holder(stage.sources)

    def _share(self, turn: Turn) -> float:
        """The share of this server's own clients in its cluster with guests, by examples."""
        net = self._federation.net
        return grown(net, self._me, ()) / grown(net, self._me, turn.guests)

    def _needed(self, known: ServerState, k: int, meetings: list[Mixing]) -> int:
        """The oldest round whose hops another server may still ask for.

        A server that answered us in this round has finished its earlier ones. If a server takes
        from us without giving us anything, we cannot know that, and keep everything.
        """
        if self._federation.net.peers is not None:
            return self._owed_since(known, k, meetings)
        takers: set[int] = set()
        gave: set[int] = set()
        for stage in meetings:
            to, of = self._ends(stage)
            takers |= set(to[of == self._me].tolist()) - {self._me}
            gave |= set(of[to == self._me].tolist())
        return known.k if meetings and takers <= gave else known.met

    def _owed_since(self, known: ServerState, k: int, meetings: list[Mixing]) -> int:
        """The same for schemes in which servers take from others in every round: they have finished
        a round when they ask about a later one."""
        if self._owed is None:  # since we started, nobody has asked
            self._owed = set()
            for r in range(known.met, k):
                turn = Turn.of(self._federation, self._me, r, {})
                stages = self._federation.decisions.mix(turn.view, turn.planned).stages
                self._owed |= {(d, r) for d in self._takers(stages)}
        self._owed |= {(d, k) for d in self._takers(meetings)}
        return min((r for _, r in self._owed), default=k)

    def _takers(self, stages: Iterable[Mixing]) -> set[int]:
        found: set[int] = set()
        for stage in stages:
            to, of = self._ends(stage)
            found |= set(to[of == self._me].tolist()) - {self._me}
        return found

    def offended(self, server: int, k: int, error: SdfeelError) -> None:
        self._others.offended(server, k, error)

    async def serve(self, server: int, kind: str, header: Header, body: bytes | None) -> Answer:
        """This server's row before a hop of a round, as soon as there is one."""
        if kind != "model":
            raise Refused(f"a synchronous server does not answer '{kind}'")
        k, hop, row = whole(header, "round"), whole(header, "hop"), 0
        if "row" in header:
            row = whole(header, "row")
        if row > self._federation.net.kept or hop > MOST_HOPS:
            raise Refused(f"no server sends row {row} after {hop} hops")
        if self._owed is not None:
            self._owed = {each for each in self._owed if each[0] != server or each[1] >= k}

        def look() -> Answer | None:
            if k <= self._newest() and not self._federation.at(k).has(server):
                return {"left": True}, None
            saved = self._store.get("hop", k, self._part(hop, -row))
            if saved is None and k < self._newest():
                return {"gone": True, "round": self._newest(), "leapt": self.leapt()}, None
            if k <= self._newest():
                self._others.welcome(server)  # a server that is in step takes part again
            else:
                self._others.announced(server, k)
            if saved is None:
                return None
            recorder, sha256, body = self.cluster.recorder, saved.sha256, saved.body
            if row == 0 and self._federation.lies(self._me):
                body = self._lie(k, body)
                sha256 = digest(body)
            signed = {} if recorder is None else recorder.hop(k, hop, row, sha256)
            return {"sha256": sha256, **signed}, body

        found = await self._bell.wait_for(look, seconds(header, "wait"))
        return found if found is not None else ({"early": True}, None)

    def _lie(self, k: int, body: bytes) -> bytes:
        """In a trial of attacks: what we send to others instead of our model."""
        start = self._store.get("start", k)
        return body if start is None else self._federation.lie(body, start.body)

    async def _gather(
        self,
        k: int,
        hop: int,
        rows: list[int],
        own: ServerRows,
        copies: PublicCopies | None = None,  # if messages are compressed updates
    ) -> dict[int, Tensor]:
        """Others' rows before a hop. A server that is silent for too long may be left out."""
        holder = self._federation.holder
        self._others.reached(k)
        asked = [n for n in rows if holder(n) not in self.absent]
        self._waiting = {holder(n) for n in asked}
        found = await asyncio.gather(*(self._pull(n, k, hop, own, copies) for n in asked))
        self._waiting = set()
        heard = {n: row for n, row in zip(asked, found, strict=True) if row is not None}
        gone = {holder(n) for n in rows if n not in heard}
        return {n: row for n, row in heard.items() if holder(n) not in gone}

    async def _pull(
        self, n: int, k: int, hop: int, own: ServerRows, copies: PublicCopies | None
    ) -> Tensor | None:
        """A row; None if its holder is given up, as it is silent and does not wait for others."""
        server, drop = self._federation.holder(n), self._policy.dead_edge == "drop"
        seen = -1
        try:
            for _ in self._federation.net.servers:  # servers that wait for one another are no more
                try:
                    async with asyncio.timeout(self._policy.edge_deadline if drop else None):
                        return await self._insist(n, k, hop, own, copies)
                except TimeoutError:
                    waits, there = await self._whereabouts(server)
                    if not waits and not seen < there < k:  # nor is it catching up with this round
                        break
                    seen = there
                except PeerAhead as ahead:
                    self._others.expect(server, ahead.round)
                    return None
                except (NotTrusted, Refused) as error:  # it was revoked, or sends invalid rows
                    self._others.offended(server, k, error)
                    return None
            self._others.give_up(server, k)
            return None
        finally:
            self._waiting.discard(server)

    async def _whereabouts(self, server: int) -> tuple[bool, int]:
        """Whether a server waits for another one, which explains its silence; and its round."""
        try:
            header, _ = await self.peers[server].ask("here", {}, seconds=HERE)
            return header.get("waiting") is True, whole(header, "round")
        except SdfeelError:
            return False, -1

    async def _insist(
        self, n: int, k: int, hop: int, own: ServerRows, copies: PublicCopies | None
    ) -> Tensor:
        """Ask for a row until it arrives; if no server may be left out, even after a bad row."""
        while True:
            try:
                return await self._asked(n, k, hop, own, copies)
            except (NotTrusted, Refused) as error:
                if self._policy.dead_edge == "drop":
                    raise
                await self._others.denied(self._federation.holder(n), error)

    async def _asked(
        self, n: int, k: int, hop: int, own: ServerRows, copies: PublicCopies | None
    ) -> Tensor:
        server = self._federation.holder(n)
        question = {"round": k, "hop": hop, "wait": LONG_POLL}
        if n < 0:
            question["row"] = place(n)
        while True:
            header, body = await self.peers[server].insist("model", question)
            if body is not None:
                if self.cluster.recorder is not None:
                    self.cluster.recorder.heard(server, k, hop, place(n), header, body)
                row = self._read(n, body, header.get("sha256"), own, copies)
                self._others.heard(server)
                return row
            if header.get("left") is True:
                raise Left(server)
            if header.get("gone"):
                leapt = header.get("leapt") is True and self._policy.dead_edge == "drop"
                raise (PeerAhead if leapt else Behind)(server, whole(header, "round"))
            await asyncio.sleep(HASTY)

    def _read(
        self, n: int, body: bytes, sha256: object, own: ServerRows, copies: PublicCopies | None
    ) -> Tensor:
        """Another server's row or update, or `Rejected` if it fails a check."""
        federation = self._federation
        if copies is None or federation.backhaul is None:
            row = federation.model(body, sha256, self._policy.max_server_norm)
            self.cluster.bounds.check(row, own.near(n))
            return row
        update = federation.update(federation.backhaul, body, sha256)
        self.cluster.bounds.check(copies[n] + update, own.near(n))
        return update

    async def _back(self, server: int) -> bool:
        """Can a server that was given up take part again? One that is behind catches up on its own.

        One that has leapt ahead waits for us. If we leapt as well, it would be behind us, leap in
        turn, and so on.
        """
        header, _ = await self.peers[server].insist("here", {})
        there, newest = whole(header, "round"), self._newest()
        return there == newest or (there > newest and header.get("leapt") is not True)

    def committed(self) -> None:
        """Nothing to do: others pull what they need."""

    async def settle(self) -> None:
        """Nothing to do: others pull what they need."""

    def settled(self) -> bool:
        return True

    async def caught_up(self, known: ServerState, behind: Behind) -> ServerState:
        """Continue in the others' round, with the model that we have, as in a simulation.

        Only if servers may be dropped: otherwise no server continues without the others, so the one
        that claims it must have lost its state, and we wait until that is restored. A server whose
        claim cannot be true is left out.
        """
        if self._policy.dead_edge == "wait":
            self.cluster.complain(
                f"edge-{behind.server}: it says that it is in round {behind.round + 1} and no "
                f"longer has round {known.k + 1}, in which we are: one of us lost its state, or "
                f"lies; restore or reseed that server (docs/deploy.md, 6)"
            )
            await asyncio.sleep(AGAIN)
            return known
        k = await self._believed(known, behind)
        if k is None:
            return known
        after = await self._moved(known, k + self._others.lead())
        saved = self._store.kept("start", known.k)
        with self._store.commit():
            self._store.put("start", after.k, 0, saved.body, replace=True)
            after.save(self._store)
        # Servers in that round will wait for us again from the next exchange on.
        await asyncio.gather(*(self._announce(d, after.k) for d in self.peers))
        return after

    async def _announce(self, server: int, k: int) -> None:
        with suppress(SdfeelError):
            await self.peers[server].ask("model", {"round": k, "hop": 0, "wait": 0}, seconds=HERE)

    async def _believed(self, known: ServerState, behind: Behind) -> int | None:
        """The round to continue in; None if we stay in ours, for now or without the other server.

        An impossible claim is an offence; a claim that nobody confirms is not, as it may be true.
        """
        server, claim = behind.server, behind.round
        possible = claim > known.k and (await self._moved(known, claim)).k == claim
        if possible:
            k = await self._others.agreed_round(known.k, server, claim)
            if k is not None:
                return k
            if self._others.doubts(server):
                await asyncio.sleep(AGAIN / 2)
                return None
            # It may be honest: much faster than we are, with a witness that is silent or lies.
            self._others.unconfirmed(server, known.k, claim)
            return None
        text = f"it says that it is in round {claim + 1}, which is impossible"
        self._others.offended(server, known.k, Refused(text))
        return None

    async def _moved(self, known: ServerState, k: int) -> ServerState:
        """Our state in round `k` (at most the last) if we take no part in the rounds before it."""
        federation, steps, at = self._federation, known.steps, known.k
        while at < k and int(steps) < federation.iterations:
            turn = Turn.of(federation, self._me, at, known.memory)
            steps += length(federation.net, turn.work, turn.planned)
            at += 1
            await asyncio.sleep(0)  # thousands of rounds take a while, and others ask
        over = int(steps) >= federation.iterations
        return replace(known, k=at, steps=steps, over=over, met=at, guests=())

    def _newest(self) -> int:
        return next(iter(self._store.newest("start", 1)), -1)

    def leapt(self) -> bool:
        newest, last = self._newest(), self._store.last_record()
        return newest > 0 and (last is None or last["k"] != newest - 1)

    def current(self) -> bytes:
        return self._store.kept("start", self._newest()).body

    def waiting(self) -> list[str]:
        return [f"edge-{server}" for server in sorted(self._waiting)]

    async def finished(self, steps: float) -> bool:
        return mean_iterations(steps, 1) >= self._federation.iterations  # all are in step

    def traffic(self) -> int:
        return sum(link.sent + link.received for link in self.peers.values())

    def last_error(self) -> str:
        return next((link.last_error for link in self.peers.values() if link.last_error), "")
