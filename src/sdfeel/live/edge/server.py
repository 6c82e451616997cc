"""An edge server: gives work to its clients, averages their results, and mixes with other servers.

A round ends with one commit that opens the next one. After a crash at any moment, the server
continues from what is on its disk: its clients' results, the models that it served to other
servers, and the last commit.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sdfeel.core.decide import length
from sdfeel.core.errors import RunError, SdfeelError
from sdfeel.live.edge.absent_servers import AGAIN
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.edge.epoch_change import Boundary
from sdfeel.live.edge.exchange_async import AsyncExchange
from sdfeel.live.edge.exchange_sync import CLOSED, SyncExchange
from sdfeel.live.edge.handout import TOLD
from sdfeel.live.edge.journal import Journal, line_of
from sdfeel.live.edge.policy import PATIENT, Policy, check_policy
from sdfeel.live.edge.round_end import Behind, Closed, Ended, Exchange, Left
from sdfeel.live.edge.rows import returned
from sdfeel.live.edge.server_statements import Recorder
from sdfeel.live.edge.shared_lanes import SharedLanes, opened, waiting_for
from sdfeel.live.edge.state import ServerState
from sdfeel.live.epochs import EpochBook
from sdfeel.live.federation import Federation, Turn
from sdfeel.live.protocol import (
    RECORD_BYTES,
    Answer,
    Bell,
    Header,
    Link,
    Who,
    check_federation,
    seconds,
    whole,
)
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import Refused, Unreachable
from sdfeel.live.transport.tensors import digest

RECORDS = 200  # in one answer
FEDERATION = "federation"


class Edge:
    """Server `number` of a federation."""

    def __init__(
        self,
        federation: Federation,
        number: int,
        store: Store,
        peers: Mapping[int, Link],  # the other servers
        policy: Policy = PATIENT,
        tell: Callable[[str], None] = lambda line: None,
        epochs: EpochBook | None = None,  # None: the network stays as it is
        recorder: Recorder | None = None,  # None: nothing is signed
        find: Callable[[int, str], Link] | None = None,  # connects to a server that joins
    ) -> None:
        for version in epochs.adopted if epochs is not None else ():
            federation = federation.renewed(version)
        check_policy(policy, federation.decisions, federation.backhaul is not None)
        self.federation, self.number, self.store = federation, number, store
        self.policy, self.tell = policy, tell
        peers = dict(peers)
        self.bell, self.stopped = Bell(), asyncio.Event()
        self.known = self._opened()
        self.cluster = Cluster(
            federation, number, store, self.bell, policy, recorder=recorder, tell=tell
        )
        self.lanes = self._shared() if federation.shared else None
        self.exchange: Exchange = self.lanes or (
            SyncExchange if federation.synchronous else AsyncExchange
        )(self.cluster, peers)
        self.boundary = None if epochs is None else Boundary(self, epochs, peers, find)
        self.journal: Journal | None = None
        self.opened: Callable[[ServerState], None] = lambda after: None  # called as a round opens
        self._counted = 0
        self._marked: float | None = None  # when the last round ended, by a clock that never jumps

    def _opened(self) -> ServerState:
        """The state on disk; at the very beginning, the initial model is written there first."""
        theirs = self.store.fact(FEDERATION)
        if theirs is not None and theirs != self.federation.digest:
            raise RunError(
                f"the state in {self.store.directory} belongs to another experiment "
                f"({theirs[:12]}, this is {self.federation.digest[:12]}): give this node that "
                f"experiment's files again, or move the state aside to begin anew"
            )
        known = ServerState.load(self.store)
        if known is not None or not self.federation.has(self.number):
            return known or ServerState()  # a server that joins later has nothing yet
        lanes = len(self.federation.decisions.lanes) if self.federation.shared else 1
        known = ServerState(laps=opened(lanes))
        body = self.federation.body(self.federation.initial)
        with self.store.commit():
            self.store.remember(FEDERATION, self.federation.digest)
            for lane in range(lanes):
                self.store.put("start", 0, lane, body)
            self.store.put("own", 0, 0, body)
            known.save(self.store)
        return known

    async def run(self) -> None:
        """Round after round until all iterations are done."""
        self.exchange.committed()
        if self.lanes is not None:
            await self.lanes.run(lambda: self.known)
        here = True
        while here and not self.known.over:
            if self.boundary is not None and self.boundary.out:
                here = await self.boundary.await_place()
            else:
                await self._round()
        for cluster in self.clusters:
            cluster.finish()
        if self.journal is not None and here:
            model = self.federation.own_model(self.returned(self.exchange.current()))
            self.journal.finish(digest(model.contiguous().numpy().tobytes()))
        self.tell(f"finished after {self.known.k} rounds; still answering until it is stopped")
        await self.exchange.settle()

    async def handle(self, who: Who, kind: str, header: Header, body: bytes | None) -> Answer:
        """Answer one call from the node that its certificate names."""
        check_federation(header, self.federation.digest)
        if kind == "here" and who.role in ("client", "edge"):
            found = {"round": self.known.k, "waiting": bool(self.exchange.waiting())}
            found |= {"over": self.known.over, "leapt": self.exchange.leapt()}
            return {**found, "steps": self.known.steps}, None
        if self.boundary is not None and kind == "epoch" and who.role in ("client", "edge"):
            return self.boundary.answer(who, header, body)
        if self.boundary is not None and kind == "start" and who.role == "edge":
            return self.boundary.given(who.number, header)
        if who.role == "client":
            cluster = self._cluster_of(who.number)
            if kind == "work":
                return await cluster.work(who.number, header)
            if kind == "start":
                return await cluster.start(who.number, header)
            if kind == "result":
                return await self._result(cluster, who.number, header, body)
            if kind == "mask" and cluster.sums is not None:
                return await cluster.mask(who.number, header, body)
        # A server with a new number may have begun its epoch before us.
        member = who.number in self.federation.net.servers or self.boundary is not None
        if who.role == "edge" and member:
            return await self.exchange.serve(who.number, kind, header, body)
        if who.role == "operator":
            return await self._operate(kind, header)
        raise Refused(f"{who} may not ask for '{kind}'")

    async def _result(
        self, cluster: Cluster, client: int, header: Header, body: bytes | None
    ) -> Answer:
        """Keep a result. A client that asks for its `next` work as well gets both in one answer."""
        question = header.get("next")
        if not isinstance(question, dict | None):
            raise Refused(f"the message's 'next' must be a request for work, got {question!r:.80}")
        kept, _ = await cluster.result(client, header, body)
        if question is None:
            return kept, None
        told, work = await self._cluster_of(client).work(client, question)
        return {**kept, "next": told}, work

    @property
    def clusters(self) -> list[Cluster]:
        """This server's clients, lane by lane."""
        return [self.cluster] if self.lanes is None else self.lanes.clusters

    def _cluster_of(self, client: int) -> Cluster:
        """The cluster whose open round has this client; if none has it, the first."""
        if self.lanes is None:
            return self.cluster
        turns = ((each, each.turn) for each in self.clusters)
        mine = (each for each, turn in turns if turn is not None and client in turn.clients)
        return next(mine, self.cluster)

    def _shared(self) -> SharedLanes:
        first, clusters = self.cluster, [self.cluster]
        for lane in range(1, len(self.federation.decisions.lanes)):
            each = replace(
                first, lane=lane, absent=set(), visits={}, asked={}, _misses={}, _said={}
            )
            each.quarantine = first.quarantine
            clusters.append(each)
        return SharedLanes(clusters, self._commit)

    async def _operate(self, kind: str, header: Header) -> Answer:
        if kind == "status":
            return self.status(), None
        if kind == "rounds":
            return await self._rounds(whole(header, "first"), seconds(header, "wait"))
        if kind == "measured":
            saved = self.store.get("measured", whole(header, "round"))
            if saved is None:
                return {"gone": True}, None
            return {"sha256": saved.sha256}, saved.body
        if kind == "current":
            body = self.returned(self.exchange.current())
            return {"sha256": digest(body)}, body
        if kind == "stop":
            self.stopped.set()
            return {}, None
        raise Refused(f"an operator cannot ask for '{kind}'")

    async def _rounds(self, first: int, patience: float) -> Answer:
        """The records of finished rounds from `first` on; waits until there are any."""

        def look() -> list[dict[str, Any]] | None:
            over = self.known.over and self.exchange.settled()
            return self.store.records(first, RECORDS) or ([] if over else None)

        found = await self.bell.wait_for(look, patience) or []
        body = json.dumps(found).encode()
        while len(body) > RECORD_BYTES and len(found) > 1:
            found = found[: len(found) // 2]
            body = json.dumps(found).encode()
        last = not self.store.records(first + len(found), 1)
        over = self.known.over and self.exchange.settled() and last
        return {"over": over}, body

    def status(self) -> dict[str, Any]:
        """How far this server is, for people and programs."""
        counts, waiting = self.cluster.counts, waiting_for(self.clusters)
        return {
            "round": self.known.k,
            "iterations": int(self.known.steps),
            "over": self.known.over,
            "waiting_for": [f"client-{client}" for client in waiting] or self.exchange.waiting(),
            "absent": [f"client-{n}" for each in self.clusters for n in sorted(each.absent)]
            + [f"edge-{server}" for server in self.exchange.absent],
            "guests": [f"client-{client}" for client in self.known.guests],
            "results": counts.results,
            "repeated": counts.repeated,
            "rejected": counts.rejected,
            "dropped": counts.dropped,
            "withheld": counts.withheld,
            "quarantined": self.cluster.quarantine.names(self.known.k),
            "offences": self.cluster.quarantine.offences(),
            "bytes": counts.sent + counts.received + self.exchange.traffic(),
            "last_error": counts.last_error or self.exchange.last_error(),
        }

    async def _round(self) -> None:
        if self.boundary is not None:
            await self.boundary.cross()
            if self.boundary.out:
                return
        began = self.cluster.clock()
        known = self.known
        turn = Turn.of(self.federation, self.number, known.k, known.memory, known.guests)
        self.cluster.begin(turn, known.taken)
        closed = await self._closed(turn)
        gathered = self.cluster.clock()
        try:
            ended = await self.exchange.finish(known, turn, closed)
        except Behind as behind:
            self.known = await self.exchange.caught_up(known, behind)
            if self.known is not known:
                self.tell(f"{behind}: continuing in round {self.known.k + 1} with our own model")
            return
        except Left as left:
            await self._told_to_leave(left.server)
            return
        after = await self._after(turn, closed, ended)
        self._commit(after, turn, closed, ended, began, gathered)

    async def _told_to_leave(self, server: int) -> None:
        """Leave if the authority has signed that. A server that cannot show it is left out."""
        try:
            if self.boundary is not None and await self.boundary.learn(server):
                return
            error: SdfeelError = Refused("it says, without proof, that we have left the network")
        except Unreachable as outage:
            self.cluster.complain(f"edge-{server}: {outage}")
            error = outage
        except SdfeelError as refusal:
            error = refusal
        if not isinstance(error, Unreachable):
            self.exchange.offended(server, self.known.k, error)
        await asyncio.sleep(AGAIN)

    def _commit(
        self,
        after: ServerState,
        turn: Turn,
        closed: Closed,
        ended: Ended,
        began: float,
        gathered: float,
    ) -> None:
        """End a round: everything that it did becomes durable at once, and the next one opens."""
        record = self._record(turn, closed, ended, began, gathered, after)
        body = self.federation.body(ended.model)
        lane = turn.view.lane_number if after.laps else 0
        k = after.laps[lane].k if after.laps else after.k
        with self.store.commit():
            self.store.put("start", k, lane, body, replace=True)
            ended.save()
            signed = None
            if (recorder := self.cluster.recorder) is not None:
                away = {"away": record["away"]}
                signed = recorder.ended(self.federation, turn, closed, away, body)
            self._keep_measured(after, self.returned(body))
            self.store.record(record.get("index", turn.k), record)
            after.save(self.store)
            if self.federation.along:
                self.store.remember(TOLD, {"k": after.k, "rows": turn.told(ended.mix)})
            if after.laps:
                self.store.prune("result", k, turn.clients)
                self.store.prune("start", k, [lane])
            else:
                self._prune(after)
        self.store.sweep_files()
        if recorder is not None and signed is not None:
            recorder.log.append(signed)
        self.known = after
        self.opened(after)
        self.bell.ring()
        self.cluster.work_bell.ring()
        self.exchange.committed()
        if self.journal is not None:
            self.journal.append(record)
        self.tell(line_of(record))

    async def _closed(self, turn: Turn) -> Closed:
        """Who answered in this round; final once a model made from it has been served."""
        known = self.store.fact(CLOSED)
        if known is not None and known["k"] == turn.k:
            return Closed.of(known)
        if self.cluster.sums is not None:
            return await self.cluster.sums.gather(turn)
        missing = await self.cluster.complete(turn)
        notes = self.store.notes("result", turn.k)
        steps = {c: int(notes[c]["steps"]) for c in turn.clients if c in notes}
        return Closed(steps, tuple(missing))

    async def _after(self, turn: Turn, closed: Closed, ended: Ended) -> ServerState:
        known, federation = self.known, self.federation
        done = turn.done(closed.steps)
        # A round without a usable result counts the planned steps, or the run would never end.
        mine = turn.planned if federation.synchronous or not closed.steps else done
        steps = known.steps + length(federation.net, turn.work, mine)
        finished = await self.exchange.finished(steps)
        more = {n: known.taken.get(n, 0) + int(done[n]) for n in turn.clients}
        guests = self.cluster.newcomers(turn, self.exchange.absent)
        new = {n: max(taken, known.taken.get(n, 0)) for n, taken in guests.items()}
        return ServerState(
            taken={**known.taken, **new, **more},
            k=known.k + 1,
            steps=steps,
            memory=ended.mix.memory,
            over=finished or ended.mix.over is not None,
            met=ended.keep,
            guests=tuple(guests),
        )

    def returned(self, own: bytes) -> bytes:
        """Our part of the run's result: our `own` model, or our rows of the shelf it returns."""
        return returned(self.federation, self.store, self.number, own)

    def _keep_measured(self, after: ServerState, body: bytes) -> None:
        """Keep the models that an operator will want to measure. Call it inside a commit."""
        if after.over or after.k % self.federation.measure_every == 0:
            self.store.put("measured", after.k, 0, body, replace=True)
            kept = self.store.newest("measured", self.policy.keep_measured)
            self.store.prune("measured", kept[-1])

    def _prune(self, after: ServerState) -> None:
        """Forget what nobody can ask for any more. Call it inside a commit."""
        self.store.prune("result", after.k)
        self.store.prune("mask", after.k)
        self.store.prune("signed", after.k)
        self.store.prune("start", after.k - 1)  # a client of two servers may be a round behind
        self.store.prune("hop", after.met)
        if self.federation.synchronous:  # a replay of an asynchronous run needs every record
            self.store.prune_records(after.k - self.policy.keep_records)

    def _record(
        self,
        turn: Turn,
        closed: Closed,
        ended: Ended,
        began: float,
        gathered: float,
        after: ServerState,
    ) -> dict[str, Any]:
        notes = self.store.notes("result", turn.k)
        compute = max((float(note["seconds"]) for note in notes.values()), default=0.0)
        compute = min(compute, gathered - began)
        counts, now, wall = self.cluster.counts, self.cluster.clock(), self.cluster.wall()
        moved = counts.sent + counts.received + self.exchange.traffic()
        since, self._counted = moved - self._counted, moved
        start = wall - (now - began)
        before = self.store.last_record() or {"number": 0, "first": start, "total": 0}
        elapsed, self._marked = self._elapsed(before, now, wall), now
        return {
            "server": self.number,
            "epoch": self.federation.epoch,
            "number": before["number"] + 1,
            "first": before["first"],
            "total": before["total"] + since,
            **closed.record(turn.k),
            "iterations": after.steps,
            "began": start,
            "ended": wall,
            "elapsed": elapsed,
            "compute": compute,
            "upload": gathered - began - compute,
            "mix": now - gathered,
            "bytes": since,
            "away": list(self.exchange.absent),
            "guests": list(turn.guests),
            "mixed": list(ended.met),
            "figures": dict(ended.mix.figures),
            "over": ended.mix.over,
            **self._released(turn, closed, ended),
            **ended.told,
        }

    def _released(self, turn: Turn, closed: Closed, ended: Ended) -> dict[str, Any]:
        """Each client that may have answered: its steps, and how much of its update others see.

        From this an epsilon is computed; a late answer reveals as much to this server as a timely
        one.
        """
        federation = self.federation
        if federation.guard is None and not federation.private:
            return {}
        cluster = self.clusters[turn.view.lane_number if self.known.laps else 0]
        unused = {n: cluster.asked_of(n) for n in turn.clients if n not in closed.steps}
        shares = federation.shares(self.number, ended.mix.up, closed.steps)
        found = {n: [steps, float(shares[n])] for n, steps in closed.steps.items()}
        found |= {n: [steps, 0.0] for n, steps in unused.items() if steps is not None}
        return {"released": {str(n): each for n, each in sorted(found.items())}}

    def _elapsed(self, before: dict[str, Any], now: float, wall: float) -> float:
        """Seconds since this server's first round began, by its own clocks alone.

        While it runs, the steady clock counts; while it is down, the wall clock, never backwards.
        """
        known = float(before.get("elapsed", before.get("ended", wall) - before["first"]))
        last = float(before.get("ended", before["first"]))
        if "ended" not in before:
            known = 0.0
        return known + (max(0.0, wall - last) if self._marked is None else now - self._marked)
