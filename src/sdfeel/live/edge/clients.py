"""A server and its clients: it hands out work, and saves each result before it acknowledges it.

A result is keyed by (round, client): the first one counts, a repetition changes nothing. Work
follows from what is on disk, so a server that was killed hands out the same work again.
"""

import asyncio
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isinf

import torch
from torch import Tensor

from sdfeel.live.edge.handout import Handout
from sdfeel.live.edge.masked_sums import SumDesk
from sdfeel.live.edge.policy import Policy, check_client, check_own
from sdfeel.live.edge.quarantine import Bounds, Quarantine
from sdfeel.live.edge.results import Counts, ResultDraft, Results, Visit
from sdfeel.live.edge.round_end import Closed
from sdfeel.live.edge.server_statements import Recorder
from sdfeel.live.federation import Federation, Turn
from sdfeel.live.protocol import LONG_POLL, Answer, Bell, Header, seconds, whole
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import Refused, Rejected
from sdfeel.live.transport.limits import INLINE
from sdfeel.live.transport.tensors import digest

SILENCE = 60.0  # seconds until the same complaint is repeated
NOBODY = 1.0  # a round without any usable result lasts at least this many seconds
GUEST_POLL = 0.5  # seconds between two checks whether a round waits only for guests


@dataclass
class Cluster:
    """One server's clients in its open round: who has work, who has answered, who is left out."""

    federation: Federation
    server: int
    store: Store
    bell: Bell
    policy: Policy
    counts: Counts = field(default_factory=Counts)
    lane: int = 0  # which one, if several share the server
    recorder: Recorder | None = None  # signs what is done; None: nothing is signed
    quarantine: Quarantine = field(init=False)
    sums: SumDesk | None = field(init=False, default=None)  # if the server sees only masked sums
    work_bell: Bell = field(init=False, default_factory=Bell)  # work may have become available
    result_bell: Bell = field(init=False, default_factory=Bell)  # a round may have become complete
    tell: Callable[[str], None] = lambda line: None
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    turn: Turn | None = None
    taken: Mapping[int, int] = field(default_factory=dict)  # local iterations so far
    arrived: set[int] = field(default_factory=set)  # clients whose results this round has
    over: bool = False
    began: float = 0.0
    rejected: set[int] = field(default_factory=set)  # clients whose results were, in this round
    tried: set[int] = field(default_factory=set)  # quarantined, but this round has nobody else
    absent: set[int] = field(default_factory=set)  # clients that were dropped, and silent since
    visits: dict[int, Visit] = field(default_factory=dict)  # others' clients that asked for work
    asked: dict[int, float] = field(default_factory=dict)  # when our own last asked for work
    _trial: float = 0.0  # when quarantined clients may try again
    _misses: dict[int, tuple[int, int]] = field(default_factory=dict)  # times dropped, until round
    _handout: Handout | None = None  # of the open round
    _drafts: list[ResultDraft] = field(init=False, default_factory=list)  # for the next commit
    _handed: dict[int, int] | None = field(init=False, default=None)  # steps asked, by client
    _said: dict[str, float] = field(default_factory=dict)  # when each complaint was last made

    def __post_init__(self) -> None:
        self.quarantine = Quarantine(self.store, self.policy.quarantine, self.tell)
        self.bounds = Bounds.of(self.federation.initial, self.policy.max_change)
        if self.federation.sums is not None:
            shared = self.federation, self.server, self.store, self.policy
            bells = self.work_bell, self.result_bell, lambda: self.clock()
            notary = None if self.recorder is None else self.recorder.notary
            ways = self._gone, self._drop, self.complain
            self.sums = SumDesk(*shared, *bells, *ways, self._blame, notary)

    def _gone(self, client: int) -> bool:
        """Does the open round no longer wait for this client?"""
        left_out = self.turn is not None and self._quarantined(client, self.turn.k)
        return self.over or left_out or client in self.rejected or client in self.absent

    def complain(self, text: str) -> None:
        """Remember what is wrong, and log it, but no more than once a minute."""
        self.counts.last_error = text
        about, now = text.partition(":")[0], self.clock()
        if now - self._said.get(about, float("-inf")) >= SILENCE:
            self._said[about] = now
            self.tell(text)

    def kept(self, make: Callable[[], Tensor], instead: Tensor) -> Tensor:
        """The average, unless a check rejects it: then the row `instead`, as it was before."""
        try:
            return make()
        except Rejected as error:
            self.counts.withheld += 1
            self.complain(f"an average was not kept: {error}")
            return instead

    def begin(self, turn: Turn, taken: Mapping[int, int]) -> None:
        """Open a round: from now on clients get its work."""
        self.turn, self.taken, self.began = turn, taken, self.clock()
        # A server that was killed may have handed out this round's work before.
        before = turn.clients if self._handed is None else ()
        self._handed = dict.fromkeys(before, self._most_steps(turn))
        self._handout = None
        if self.recorder is not None:
            self.recorder.begin(turn.k)
        names = [f"client-{client}" for client in turn.clients]
        if names and all(self.quarantine.holds(name, turn.k) for name in names):
            self.quarantine.pardon(names)  # a round needs at least one client
        notes = self.store.notes("result", turn.k)
        self.rejected, self.arrived = set(), set(notes).intersection(turn.clients)
        self.tried, self._trial = set(), 0.0
        if self.sums is not None:
            self.sums.begin(turn, self.arrived)
        self.bell.ring()
        self.work_bell.ring()

    def asked_of(self, client: int) -> int | None:
        """The most steps that a client was asked for in the open round; None: it got no work."""
        return None if self._handed is None else self._handed.get(client)

    def finish(self) -> None:
        """Tell clients that there is no more work."""
        self.turn, self.over = None, True
        for bell in (self.bell, self.work_bell, self.result_bell):
            bell.ring()

    def outstanding(self, turn: Turn) -> list[int]:
        """Clients whose results this round still waits for."""
        return [client for client in turn.clients if self._awaits(turn, client)]

    def _awaits(self, turn: Turn, client: int) -> bool:
        """Does this round wait for the result of one of its clients?"""
        known = client in self.arrived or client in self.rejected or client in self.absent
        return not known and not self._quarantined(client, turn.k)

    def _quarantined(self, client: int, k: int) -> bool:
        """Is a client in quarantine in this round, for what it sent before?"""
        return client not in self.tried and self.quarantine.holds(f"client-{client}", k)

    def _try_all(self, turn: Turn) -> None:
        """No client answered by the deadline: let those in quarantine try.

        Otherwise the round would wait for silent clients alone. Results are checked as usual; a
        client that is rejected again may try once more a deadline later, and cannot end the round.
        """
        if self.clock() >= self._trial:
            self._trial = self.clock() + self.policy.client_deadline
            held = {n for n in turn.clients if self.quarantine.holds(f"client-{n}", turn.k)}
            self.tried, self.rejected = held, self.rejected - held
            if held:
                told = f"no result in round {turn.k + 1}"
                self.complain(f"{told}: clients that are in quarantine may try again")
            self.work_bell.ring()

    def _no_result(self) -> bool:
        """Is there no result yet, nor a client whose rejection may end the round?"""
        return not self.arrived and not self.rejected - self.tried

    def _left(self, turn: Turn) -> Iterator[int]:
        """The outstanding clients in any order; finding the first one is quick."""
        left = turn.members - self.arrived
        return (client for client in left if self._awaits(turn, client))

    def _waits(self, turn: Turn) -> bool:
        """Is the round still waiting? It needs every client that is not away, and one at least."""
        return (bool(turn.clients) and self._no_result()) or any(True for _ in self._left(turn))

    async def complete(self, turn: Turn) -> list[int]:
        """Wait for all results, or until the deadline; return the clients that did not answer."""
        while self._waits(turn) and not self.over:
            left = GUEST_POLL if turn.guests else LONG_POLL
            if self._may_drop(turn):
                left = self.began + self.policy.client_deadline - self.clock()
                if left <= 0 and self._no_result() and not self._others_wait(turn):
                    left = 0.5  # without any result the round cannot end
                    self._try_all(turn)
                elif left <= 0:
                    self._drop(self.outstanding(turn), turn.k)
                    break
            await self.result_bell.wait_for(
                lambda: self.over or not self._waits(turn) or None, left
            )
        if turn.clients and not self.arrived and not self.over:
            await asyncio.sleep(NOBODY)  # all were rejected: rounds must not race past
        return [client for client in turn.clients if client not in self.arrived]

    def _others_wait(self, turn: Turn) -> bool:
        """Is a client present that has no part in this round, but may have one in a later one?"""
        recent = self.clock() - LONG_POLL
        return any(when > recent for n, when in self.asked.items() if n not in turn.members)

    def _drop(self, late: list[int], k: int) -> None:
        """Drop late clients, for longer each time that they are late again."""
        self.absent.update(late)
        self.counts.dropped += len(late)
        for client in late:
            times = self._misses.get(client, (0, 0))[0]
            pause = min(2**times - 1, self.policy.quarantine)
            self._misses[client] = (times + 1, k + 1 + pause)

    def _may_drop(self, turn: Turn) -> bool:
        """May clients be dropped? If the policy says so; guests always: they may go home."""
        dropped = self.policy.dead_client == "drop"
        return dropped or all(client in turn.guests for client in self._left(turn))

    def newcomers(self, turn: Turn, away: Container[int]) -> dict[int, int]:
        """The next round's guests, whose servers are away, and their local iterations so far."""
        recent = self.clock() - LONG_POLL - GUEST_POLL
        asked = {n: visit.taken for n, visit in self.visits.items() if visit.when > recent}
        found = {**asked, **{n: self.taken.get(n, 0) for n in turn.guests}}
        home = self.federation.net.home
        return {n: found[n] for n in sorted(found) if n not in self.absent and home[n] in away}

    def results(self, turn: Turn, closed: Closed) -> Results:
        """The models of the clients that answered before the round was closed."""
        clients = tuple(client for client in turn.clients if client in closed.steps)
        total = None if self.sums is None else partial(self.sums.total, turn.k)
        return Results(self.federation, self.store, turn.k, clients, total)

    async def work(self, client: int, header: Header) -> Answer:
        """The client's next piece of work, as soon as there is one."""
        theirs = whole(header, "epoch") if "epoch" in header else 0
        if theirs != self.federation.epoch:
            await self.work_bell.wait_for(
                lambda: self._in_another_epoch(theirs) or self.federation.epoch == theirs or None,
                seconds(header, "wait"),
            )
            return self._in_another_epoch(theirs) or ({"idle": True}, None)
        check_client(
            self.policy, self.federation.net, self.server, client, whole(header, "samples")
        )
        if header.get("leaving"):
            return self._say_goodbye(client)
        own = self.server in self.federation.net.reach[client]
        if not own:
            self.visits[client] = Visit(self.clock(), self._plausible(whole(header, "taken")))
        else:
            self.asked[client] = self.clock()

        def look() -> Answer | None:
            if (own or client in self.visits) and self._may_rejoin(client):
                self.absent.discard(client)
            return self._in_another_epoch(theirs) or self.handed_out(client)

        found = await self.work_bell.wait_for(look, seconds(header, "wait"))
        return found if found is not None else ({"idle": True}, None)

    def _in_another_epoch(self, theirs: int) -> Answer | None:
        """What to tell a client that is behind, so that it asks for the new network; None: wait.

        We tell it even when our rounds are over: another server may still need that client.
        """
        if theirs < self.federation.epoch:
            return {"epoch": self.federation.epoch}, None
        return ({"over": True}, None) if self.over else None

    def _may_rejoin(self, client: int) -> bool:
        """May a dropped client that asks for work count again? At once, if no other is in time."""
        turn = self.turn
        if turn is None or not (self.arrived or any(True for _ in self._left(turn))):
            return True
        late = self.clock() >= self.began + self.policy.client_deadline
        if late and self._no_result() and self.sums is None:  # a sum has deadlines of its own
            return True
        return turn.k >= self._misses.get(client, (0, 0))[1]

    def _plausible(self, taken: int) -> int:
        """The local iterations that a guest claims, but no more than the experiment has."""
        return min(taken, self.federation.iterations)

    def _say_goodbye(self, client: int) -> Answer:
        """A guest goes home: nobody waits for it here any more."""
        if self.visits.pop(client, None) is not None:
            self.absent.add(client)
            self.result_bell.ring()
        return {}, None

    async def start(self, client: int, header: Header) -> Answer:
        """The model that a round starts from at this server; `early` if it has not begun."""
        k = whole(header, "round")
        guests = self.turn.guests if self.turn is not None else ()
        check_own(self.federation.net, self.server, client, guests)

        def look() -> Answer | None:
            saved = self.store.get("start", k)
            if saved is not None:
                self.counts.sent += len(saved.body)
                signed = {} if self.recorder is None else self.recorder.start(k, saved.sha256)
                return {"sha256": saved.sha256, **signed}, saved.body
            turn = self.turn
            if turn is None or k < turn.k:
                return {"gone": True}, None
            waiting = client in turn.members and self._awaits(turn, client)
            return ({"early": True}, None) if waiting else None

        found = await self.work_bell.wait_for(look, seconds(header, "wait"))
        return found if found is not None else ({"early": True}, None)

    async def result(self, client: int, header: Header, body: bytes | None) -> Answer:
        """Keep a trained model. Its acknowledgement means that it survives any crash."""
        k, steps = whole(header, "round"), whole(header, "steps")
        known = self.store.note("result", k, client)
        if known is not None:
            self.counts.repeated += 1
            if known["sha256"] != header.get("sha256"):
                self.counts.last_error = f"client-{client} sent two models in round {k + 1}"
            return {"known": True}, None
        turn = self.turn
        if turn is None or k < turn.k:
            return {"late": True}, None
        if k > turn.k or client not in turn.members:
            raise Refused(f"client-{client} has no work in round {k + 1} of edge-{self.server}")
        if self._quarantined(client, k):
            raise Refused(self.quarantine.reason(f"client-{client}"))
        await self._keep(turn, client, steps, header, body)
        return {"kept": True}, None

    async def mask(self, client: int, header: Header, body: bytes | None) -> Answer:
        """One step of a sum. A client that sends what no honest one sends is left out."""
        assert self.sums is not None
        turn = self.turn
        if turn is not None and self._quarantined(client, turn.k):
            raise Refused(self.quarantine.reason(f"client-{client}"))
        try:
            return await self.sums.step(client, header, body)
        except Rejected as error:
            if turn is not None and self.turn is turn:
                self.offended(turn, client, error)
            raise

    def _blame(self, client: int, why: str) -> None:
        if self.turn is not None and not self._gone(client):
            self.offended(self.turn, client, Rejected(why))

    def offended(self, turn: Turn, client: int, error: Rejected, proven: bool = True) -> None:
        """A client sent what no honest one sends: the round continues without it.

        Not `proven` if another server, whose model the client also began from, may have caused it.
        """
        self.counts.rejected += 1
        self.counts.last_error = f"client-{client}: {error}"
        self.rejected.add(client)
        if proven:
            self.quarantine.add(f"client-{client}", turn.k, str(error))
        else:
            self.complain(f"client-{client}, or another server that it works for: {error}")
        self.result_bell.ring()

    async def _keep(
        self, turn: Turn, client: int, steps: int, header: Header, body: bytes | None
    ) -> None:
        planned = int(turn.planned[client])
        exact = not self.policy.own_pace(turn.work)
        if steps > self._most_steps(turn) or (exact and steps != planned):
            asked = f"round {turn.k + 1} asks client-{client} for {planned} steps"
            raise Refused(f"{asked}, got {steps}")
        try:
            if body is None:
                raise Rejected("the message carries no model")
            sha256 = header.get("sha256", "")
            start, sent, proof = self.handout(turn).started(client), body, b""
            if self.recorder is not None:
                if not self.recorder.knows(client) and not self.handout(turn).shared(client):
                    self._work_of(turn, client)  # the same as before we were killed
                proof = self.recorder.came(client, turn.k, steps, self.federation.epoch, header)
            if len(body) <= INLINE:  # another thread would cost more than the check
                body = self.checked(body, sha256, start)
            else:
                body = await asyncio.to_thread(self.checked, body, sha256, start)
        except Rejected as error:
            if self.turn is turn and client not in self.arrived:
                self.offended(turn, client, error, proven=not self.handout(turn).shared(client))
            raise
        note = {
            "steps": steps,
            "seconds": seconds(header, "seconds", 1e9),
            "arrived": self.clock() - self.began,
            "sha256": sha256,
        }
        await self._commit(ResultDraft(turn, client, sent, body, note, proof))

    def _most_steps(self, turn: Turn) -> int:
        """The most steps in a round: at most a whole run's, since a scheme may count them."""
        return turn.most(self.federation.iterations)

    async def _commit(self, draft: ResultDraft) -> None:
        """Write a result, in one commit with those that arrive at the same time."""
        self._drafts.append(draft)
        if len(self._drafts) == 1:
            try:
                await asyncio.sleep(0)  # let others join
            finally:
                self._write_drafts()  # even if this caller has gone
        await draft.done

    def _write_drafts(self) -> None:
        drafts, self._drafts = self._drafts, []
        try:
            with self.store.commit():
                kept = [draft for draft in drafts if self._written(draft)]
        except BaseException as error:
            for draft in drafts[1:]:
                draft.fail(error)
            raise
        for draft in kept:
            self.arrived.add(draft.client)
            self._misses.pop(draft.client, None)
            self.counts.results += 1
            self.counts.received += len(draft.sent)
        self.result_bell.ring()
        for draft in drafts:
            draft.succeed()

    def _written(self, draft: ResultDraft) -> bool:
        if self.turn is not draft.turn or draft.client in self.arrived:
            return False  # the round was closed while the model was checked, or it came twice
        turn, client = draft.turn, draft.client
        if self.recorder is not None:
            self.recorder.kept.put(turn.k, draft.note["sha256"], draft.sent)
        if draft.proof:
            self.store.put("signed", turn.k, client, draft.proof)
        known = draft.note["sha256"] if draft.body is draft.sent else None
        return self.store.put("result", turn.k, client, draft.body, draft.note, sha256=known)

    def handout(self, turn: Turn) -> Handout:
        """The models that a round hands to its clients; made once for the open round."""
        if self._handout is None or self._handout.turn is not turn:
            self._handout = Handout(self.federation, self.server, self.store, self.lane, turn)
        return self._handout

    def checked(self, body: bytes, sha256: object, start: Tensor) -> bytes:
        """What to keep of a client's message: its model, or its update where clients send those."""
        federation = self.federation
        if federation.sums is not None:
            federation.check_numbers(body, sha256)
            return body
        if not federation.updates:
            self.bounds.check(federation.model(body, sha256, self.policy.max_norm), start)
            return body
        update = federation.sent(body, sha256)
        model = start + update
        self.bounds.check(model, start)
        most = self.policy.max_norm
        if most is not None and float(torch.linalg.vector_norm(model.double())) > most:
            raise Rejected(f"the model's norm exceeds the bound of {most:g} (max_norm)")
        return federation.body(update)

    def handed_out(self, client: int) -> Answer | None:
        """A client's work in the open round, with its model; None if it has none."""
        if self.over:
            return {"over": True}, None
        turn = self.turn
        if turn is None or client not in turn.members:
            return None
        if not (self._awaits(turn, client) if self.sums is None else self._in_sum(turn, client)):
            return None
        header, body = self._work_of(turn, client)
        self.counts.sent += len(body)
        if self._handed is not None:
            self._handed[client] = max(self._handed.get(client, 0), int(header["steps"]))
        return header, body

    def _work_of(self, turn: Turn, client: int) -> tuple[Header, bytes]:
        """A client's work in a round; the same every time."""
        handout = self.handout(turn)
        sources, body, sha256 = handout.model(client)
        header: Header = {
            "round": turn.k,
            "steps": int(turn.planned[client]),
            "first": self.taken.get(client, 0),
            "rate": turn.rate(client),
            "sources": list(sources),
            "weights": list(sources.values()),
        }
        if self.sums is not None:
            header["sum"] = list(turn.clients)
        if turn.work.pull:
            header["pull"] = turn.work.pull
        if not isinf(turn.work.clip):
            header["clip"] = turn.work.clip
        if self.policy.own_pace(turn.work):
            header |= {"steps": self._most_steps(turn), "deadline": turn.work.deadline}
        more, whole_body = handout.with_rows(client, body)
        if whole_body is not body:
            body, sha256 = whole_body, digest(whole_body)
        header |= more
        signed = {} if self.recorder is None else self.recorder.work(client, header, sha256)
        return {**header, "sha256": sha256, **signed}, body

    def _in_sum(self, turn: Turn, client: int) -> bool:
        """Has a client something to do in the round's sum? If it was killed, it begins again."""
        assert self.sums is not None
        return not self._gone(client) and self.sums.wants(client)
