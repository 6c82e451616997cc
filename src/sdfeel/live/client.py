"""A client: asks its servers for work, trains on its own data, hands in the trained model.

What it trains is a function of the work, and of what it keeps durably from round to round where a
scheme or a compression asks for that. So a client that is killed and started again computes the
same bits. Models are NumPy's arrays here, so that the same client runs on devices that cannot carry
torch.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from numpy.typing import NDArray

from sdfeel.core.errors import Diverged, SdfeelError
from sdfeel.engine.fused import bounded
from sdfeel.engine.guards import UpdateGuard
from sdfeel.engine.tasks import TaskOf
from sdfeel.engine.wire_codes import Coding
from sdfeel.live.client_masked_sums import Late, MaskedRound, Masking, letters_of
from sdfeel.live.client_rows import OWED, OWN, ClientRows, coded, finite_sum, made, summed
from sdfeel.live.failover import NONSENSE, SOON, Failover
from sdfeel.live.protocol import HASTY, LONG_POLL, UNSAID, About, Answer, Header, is_whole, whole
from sdfeel.live.secure_sum import TooFew
from sdfeel.live.statements import ClientDesk, work_hash
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import NotTrusted, Refused, Unreachable
from sdfeel.live.transport.limits import INLINE
from sdfeel.live.transport.tensors import CODE, MODEL, Schema, digest, pack, parsed, unpack

ArrayTask = TaskOf[NDArray[Any]]
Train = Callable[[ArrayTask], NDArray[Any]]
MOST_ROWS = 8  # that come with a model
AGAIN = 0.1  # seconds until work that is not there yet is asked for again
SILENCE = 10.0  # seconds for another server to begin to send a model
UNPROVEN = 10.0  # seconds in which a server that lied about the network's epoch is not believed


@dataclass(frozen=True)
class Membership:
    """What a client knows about its federation."""

    digest: str  # of what all nodes agree on
    schema: Schema  # of a model
    servers: tuple[int, ...]  # the servers it works for
    refuges: tuple[int, ...] = ()  # servers it may turn to when its own is dead, in order
    about: About = UNSAID  # what its servers must have in common with it
    coding: Coding | None = None  # how its updates are written; None: models as they are
    rows: Mapping[int, NDArray[Any]] = field(default_factory=dict)  # it keeps, as they are at first
    models: frozenset[int] = frozenset()  # those of the rows that are the model at first
    epoch: int = 0  # of the network
    own: NDArray[Any] | None = None  # what stays with it, at first, where models are personal
    guard: UpdateGuard | None = None  # what is done to its updates before they leave
    private: bool = False  # is there noise in what it sends, which a second message would reveal?
    noisy_steps: bool = False  # is it in every step?
    masking: Masking | None = None  # how its updates are hidden in sums
    most: int | None = None  # local iterations that one round may ask for

    @property
    def along(self) -> int:
        """Rows that may come with a model at most."""
        return MOST_ROWS if self.rows else 0

    @property
    def letters(self) -> int:
        """Bytes of one step of a sum under masks, at most."""
        return 0 if self.masking is None else letters_of(self.masking.most)

    @property
    def keeps(self) -> bool:
        """Does a client need a memory of its own?"""
        guarded = self.guard is not None or self.private or self.masking is not None
        return guarded or self.coding is not None or bool(self.rows) or self.own is not None

    def moved(self, servers: tuple[int, ...], epoch: int, digest: str) -> "Membership":
        """The same in another epoch of the network."""
        about = self.about.in_epoch(epoch, digest)
        return replace(self, servers=servers, refuges=(), epoch=epoch, about=about)

    def memory(self, store: Store) -> ClientRows:
        models = {-n for n in self.models}
        own = {} if self.own is None else {OWN: self.own}
        return ClientRows(store, own | {-n: row for n, row in self.rows.items()}, models)


def _sources(found: Mapping[int, Answer]) -> set[int]:
    """The servers whose models some work starts from; a server may have sent anything."""
    named = (header.get("sources") for header, _ in found.values())
    return {d for each in named if isinstance(each, list) for d in each if is_whole(d)}


@dataclass
class Client:
    """Client `number` of a federation."""

    schema: Schema  # of a model
    number: int
    samples: int
    failover: Failover  # its ways to servers
    train: Train
    coding: Coding | None = None  # how its updates are written; None: models as they are
    kept: ClientRows | None = None  # what it remembers from round to round
    rows: tuple[int, ...] = ()  # those that it holds
    desk: ClientDesk | None = None  # signs what it does
    guard: UpdateGuard | None = None  # what it does to its updates before they leave
    private: bool = False  # does it give away only one update of a round?
    noisy_steps: bool = False  # and of each step from a model?
    masking: Masking | None = None  # how its updates are hidden in sums
    secret: int = 0  # what its noise and its masks are drawn from
    most: int | None = None  # local iterations that a server may ask for in one round
    tell: Callable[[str], None] = lambda line: None
    rounds: int = 0  # finished by this process
    round: int = 0  # the newest one
    last_error: str = ""
    pace: float | None = None  # seconds of one step, as last measured
    taken: int = 0  # local iterations up to its last work, as its servers counted them
    epoch: int = 0  # of the network, as this client knows it
    outdated: int | None = None  # a server that knows a later one
    _over: set[int] = field(default_factory=set)
    _ahead: dict[int, Answer] = field(default_factory=dict)  # work that came with the last answer
    _unproven: dict[int, float] = field(default_factory=dict)  # until when an epoch is not believed

    async def run(self) -> None:
        """Work until every server says that there is no more, or one that the network changed."""
        while work := await self._next():
            gave, clock = tuple(work[2]), asyncio.get_running_loop().time
            begin = clock()
            try:
                self._share(gave, await self._work(*work), clock() - begin)
            except Late:
                await asyncio.sleep(AGAIN)
            except (Refused, TooFew, Diverged) as error:
                masked = self.masking is not None and isinstance(error, Refused | TooFew)
                if self._alone and not masked:
                    raise
                # A server that asks for more than it may gets nothing, and may ask for less next
                # time.
                self.last_error = str(error)
                self.tell(f"leaving a {'sum' if masked else 'round'}: {error}")
                self._turn_away(error)
                await asyncio.sleep(NONSENSE)
                self._share(gave, (), clock() - begin)
        if self.outdated is None:
            self.tell(f"finished after {self.rounds} rounds")

    @property
    def _alone(self) -> bool:
        """Is the server that we listen to our only one? Then we end when it says so."""
        return len(self.failover.own) == 1 and self.failover.host is None

    def _turn_away(self, error: SdfeelError) -> None:
        """A host's answer is of no use: look for another host, or wait for our own server."""
        if self.failover.host is not None:
            self.failover.leave_out(self.failover.host, error)

    def _share(self, gave: Collection[int], served: Collection[int], seconds: float) -> None:
        """One server of several gets no more of our time than the others, if these have work."""
        if self.failover.own.keys() - self._over - set(gave) - set(served):
            for d in gave:
                self.failover.rest(d, seconds)

    async def _work(self, k: int, header: Header, bodies: dict[int, bytes]) -> set[int]:
        """Our part of one round, from the model that we are given to what we hand in.

        The servers that took it.
        """
        begin = time.monotonic()
        start = await self._start(k, header, bodies)
        if start is None:
            await asyncio.sleep(AGAIN)
            return set()
        known = self.known(header, bodies)
        masked = self._masked(k, header)
        if masked is not None:
            await masked.join()
        task = self.task(header, start, known)
        began = time.monotonic()
        model = await asyncio.to_thread(self.train, task)
        seconds = time.monotonic() - began
        if task.steps:
            self.pace = seconds / task.steps
        rows = {} if self.desk is None else self.held()
        body = self.message(k, header, task, model, known, masked)
        told = {"round": k, "steps": task.steps, "seconds": seconds, "sha256": digest(body)}
        if self.desk is not None:
            epoch, sent = self.epoch, digest(body)
            told |= self.desk.result(k, epoch, task.first, task.steps, rows, sent)
        self.taken = task.first + task.steps
        if self._asks_ahead(body):
            told["next"] = self._question()
        self.tell(
            f"round {k + 1}: {task.steps} steps in {seconds:.2f} s, "
            f"{time.monotonic() - begin:.2f} s after its work came"
        )
        served = await self._hand_in(k, told, body, header)
        if masked is not None:
            await masked.reveal()
        self.rounds, self.round = self.rounds + 1, k + 1
        return served

    def _masked(self, k: int, header: Header) -> MaskedRound | None:
        """Our part in the round's sum, where servers see nothing else."""
        if self.masking is None:
            return None
        assert self.kept is not None
        assert self.desk is not None
        ((d, link),) = self.failover.own.items()
        way = link, d, k, header, self.number
        return MaskedRound(*way, self.masking, self.secret, self.kept, self.desk.notary)

    def known(self, header: Header, bodies: dict[int, bytes]) -> dict[int, NDArray[Any]]:
        """Rows in addition to the model: those that came along, and our own as they are now."""
        if self.kept is None:
            return {}
        self.kept.settle(int(header["first"]))
        self.kept.renew(self.epoch, parsed(next(iter(bodies.values())))[MODEL])
        known = {}
        if (header.get("rows") or header.get("told")) and len(bodies) != 1:
            raise Refused("rows come with the model of one server, not with several")
        if header.get("rows"):
            (body,) = bodies.values()
            found = unpack(body, self._with_rows(header), digest(body))
            known = {-int(place): found[f"row{place}"] for place in header["rows"]}
        known |= self._own()
        if header.get("told"):
            ((d, body),) = bodies.items()
            given = {**known, d: parsed(body)[MODEL]}
            self.kept.follow(int(header["round"]), made(header, "told", given, self._places))
            known |= self._own()
        return known

    def held(self) -> dict[int, str]:
        """The hashes of what we keep from round to round, as it is now, by place."""
        if self.kept is None:
            return {}
        found = {place: self.kept.get(place) for place in (OWED, *(-n for n in self.rows))}
        return {place: digest(pack({MODEL: r})) for place, r in found.items() if r is not None}

    def _own(self) -> dict[int, NDArray[Any]]:
        assert self.kept is not None
        found = {n: self.kept.get(-n) for n in self.rows}
        return {n: row for n, row in found.items() if row is not None}

    @property
    def _places(self) -> dict[int, int]:
        return {n: -n for n in self.rows}

    def _with_rows(self, header: Header) -> Schema:
        """The form of a model with the rows that a server says come along."""
        places = header.get("rows", [])
        if (
            not isinstance(places, list)
            or len(places) > MOST_ROWS
            or not all(map(is_whole, places))
        ):
            raise Refused("a server does not say which rows come with a model")
        ((_, shape, dtype),) = self.schema.entries
        names = sorted({MODEL, *(f"row{place}" for place in places)})
        return Schema(tuple((name, shape, dtype) for name in names))

    def message(
        self,
        k: int,
        header: Header,
        task: ArrayTask,
        model: NDArray[Any],
        known: dict[int, NDArray[Any]],
        masked: MaskedRound | None = None,
    ) -> bytes:
        """What is handed in. What we keep changes with it, if it is used."""
        if self.kept is None:
            return pack({MODEL: model})
        pending: dict[int, NDArray[Any] | None] = {}
        if task.own is not None:
            model, pending[OWN] = model[: len(task.start)], model[len(task.start) :]
        body, update = pack({MODEL: model}), model - task.start
        if self.private:
            given = digest(pack({MODEL: task.start})), task.steps, digest(body)
            self.kept.release(k, *given, task.first if self.noisy_steps else None)
        if self.guard is not None:
            update = self.guard(update, self.secret, self.number, k)
            body, model = pack({MODEL: update}), task.start + update
        if self.coding is not None:
            sent = coded(self.coding, self.kept, update, self.number, k)
            pending[OWED], update = sent.owed, self.coding.decode(sent.code)
            body, model = pack({CODE: sent.code}), task.start + update
        if masked is not None:
            body = masked.covered(update)
        moved = model if header.get("payload") == "model" else update
        pending |= made(header, "kept", {**known, self.number: moved}, self._places)
        self.kept.expect(task.first + task.steps, pending)
        return body

    async def _next(self) -> tuple[int, Header, dict[int, bytes]] | None:
        """The earliest round that some server waits for; None when all are done."""
        while left := [d for d in self.failover.own if d not in self._over]:
            found: dict[int, Answer] = {}
            for d, answer in (await self._answers(left)).items():
                if "epoch" in answer[0]:
                    self.outdated = d
                    return None
                if answer[0].get("over"):
                    self._over.update(left if d == self.failover.host else [d])
                elif "round" in answer[0] and self._sound(d, answer):
                    found[d] = answer
            if found:
                k = min(int(header["round"]) for header, _ in found.values())
                now = {d: answer for d, answer in found.items() if answer[0]["round"] == k}
                header = next(iter(now.values()))[0]
                bodies = {d: self._checked(answer) for d, answer in now.items()}
                if self.desk is not None:
                    self.desk.begin()
                    for d, (told, _) in now.items():
                        self.desk.given(d, k, told, work_hash(told))
                return k, header, bodies
            await asyncio.sleep(HASTY)  # a server that has no work should have waited
        return None

    async def _answers(self, servers: list[int]) -> dict[int, Answer]:
        if self._ahead:
            found, self._ahead = self._ahead, {}
            return found
        return await self.failover.work(servers, self._question(), _sources, self._pause)

    def _pause(self, d: int, answer: Answer) -> float:
        """Seconds until a server whose answer is of no use is asked again; 0 for other answers."""
        header = answer[0]
        if "epoch" in header:
            now = asyncio.get_running_loop().time()
            return NONSENSE if now < self._unproven.get(d, now) else 0.0
        if "round" in header:
            return 0.0 if self._sound(d, answer) else NONSENSE
        return 0.0 if header.get("over") else HASTY  # it should have waited

    def disbelieve(self, d: int, error: str) -> None:
        """A server spoke of a later epoch, and has no proof: its word alone changes nothing."""
        self.last_error = f"edge-{d}: {error}"
        self._unproven[d] = asyncio.get_running_loop().time() + UNPROVEN

    def _question(self) -> Header:
        """What we say when we ask for work."""
        question = {"samples": self.samples, "wait": LONG_POLL, "taken": self.taken}
        return {**question, "epoch": self.epoch} if self.epoch else question

    def _asks_ahead(self, body: bytes) -> bool:
        """May the answer to a result bring the next work? It saves a call.

        Not where another server may be the next to have work, nor for what a server would keep in
        memory while it waits, nor where rows make an answer longer than a result may be.
        """
        alone = len(self.failover.own) == 1 and self.failover.host is None
        return alone and self.masking is None and not self.rows and len(body) <= INLINE

    def _sound(self, d: int, answer: Answer) -> bool:
        """May we work on what a server hands out?

        One of several cannot keep us from the others, nor a host from our own.
        """
        if self._alone:
            self._check(d, answer[0])
            return True
        try:
            self._check(d, answer[0])
            self._checked(answer)
        except Refused as error:
            self.last_error = f"edge-{d}: {error}"
            self._turn_away(error)
            return False
        return True

    def _check(self, d: int, header: Header) -> None:
        """A server may have sent anything."""
        for key in ("round", "steps", "first"):
            whole(header, key)
        if self.most is not None and header["steps"] > self.most:
            raise Refused(f"edge-{d} asks for {header['steps']} steps; the most is {self.most}")
        sources, weights = header.get("sources"), header.get("weights")
        if not isinstance(sources, list) or not isinstance(weights, list):
            raise Refused(f"edge-{d} does not say which models to start from")
        if not all(map(is_whole, sources)):
            raise Refused(f"edge-{d} names models to start from that are not server numbers")
        reachable = all(map(self.failover.reaches, sources))
        once = len(set(sources)) == len(sources) == len(weights)
        if not reachable or not once or not sources:
            raise Refused(f"edge-{d} names models to start from that this client cannot reach")
        if not all(
            isinstance(n, int | float)
            for n in (
                *weights,
                header.get("rate"),
                header.get("pull", 0.0),
                header.get("clip", 1.0),
                header.get("deadline", 1.0),
            )
        ):
            raise Refused(f"edge-{d} sends weights that are not numbers")

    def _checked(self, answer: Answer) -> bytes:
        header, body = answer
        if body is None:
            raise Refused("a server handed out work without a model")
        unpack(body, self._with_rows(header), header.get("sha256"))
        return body

    async def _start(self, k: int, header: Header, bodies: dict[int, bytes]) -> NDArray[Any] | None:
        """The model to start from; None if another server is behind and must be served first."""
        row = dict(zip(header["sources"], header["weights"], strict=True))
        for d in row:
            if d not in bodies:
                told, body = await self._beside(d, k)
                if body is None:
                    return None
                bodies[d] = body
                if self.desk is not None:
                    self.desk.given(d, k, told, None)
        return self.started(row, bodies)

    async def _beside(self, d: int, k: int) -> Answer:
        """The model of a round at another of our servers. Each may be silent, or lie."""
        try:
            question = {"round": k, "wait": SOON}
            told, body = await self.failover.link(d).ask("start", question, seconds=SILENCE)
            return told, None if body is None else self._checked((told, body))
        except (Unreachable, NotTrusted, Refused) as error:
            if self._alone and not isinstance(error, Unreachable):
                raise
            self.last_error = f"edge-{d}: {error}"
            await asyncio.sleep(NONSENSE)
            return {}, None

    def started(self, row: Mapping[int, float], bodies: Mapping[int, bytes]) -> NDArray[Any]:
        """The model to start from: a weighted sum of the servers' models."""
        models = {d: parsed(bodies[d])[MODEL] for d in row}
        if len(row) == 1 and next(iter(row.values())) == 1:
            return next(iter(models.values()))
        return finite_sum(((weight, models[d]) for d, weight in row.items()), "a model")

    def task(
        self, header: Header, start: NDArray[Any], known: dict[int, NDArray[Any]]
    ) -> ArrayTask:
        shift = summed(header["shift"], known, "a shift") if "shift" in header else None
        if shift is not None:
            shift = bounded(shift, start, float(header.get("clip", inf)))
        steps = int(header["steps"])
        if "deadline" in header:
            # Before the first measurement, one step shows how fast this device is.
            fits = 1.0 if self.pace is None else header["deadline"] / max(self.pace, 1e-9)
            steps = int(max(1, min(steps, fits)))
            if self.private and self.kept is not None:  # what was given away once stays as it was
                steps = self.kept.released(header.get("round")) or steps
        first, rate = int(header["first"]), float(header["rate"])
        pull = float(header.get("pull", 0.0))
        own = None if self.kept is None else self.kept.get(OWN)
        return ArrayTask(self.number, start, steps, first, rate, shift, pull, own)

    async def _hand_in(self, k: int, told: Header, body: bytes, header: Header) -> set[int]:
        """Give a result to all whom it is for; those who took it.

        One of several servers that does not take it in time asks for it again when it is back.
        """
        served: set[int] = set()
        several = len(self.failover.own) > 1

        async def give(d: int) -> None:
            try:
                if several:
                    answer: Answer | None = await self.failover.link(d).ask("result", told, body)
                else:
                    answer = await self.failover.hand_in(d, told, body)
            except (Refused, NotTrusted, Unreachable) as error:
                if isinstance(error, NotTrusted) and self._alone:
                    raise
                self.last_error = f"edge-{d}: {error}"
                self.tell(f"round {k + 1}: edge-{d} refused the result: {error}")
                return
            if answer is not None and isinstance(answer[0].get("next"), dict):
                self._ahead = {d: (answer[0]["next"], answer[1])}
            if answer is not None and (answer[0].get("kept") or answer[0].get("known")):
                served.add(d)

        await asyncio.gather(*(give(d) for d in header["sources"]))
        return served

    def status(self) -> dict[str, Any]:
        """Where this client is, for people and programs."""
        own, others, host = self.failover.own, self.failover.others, self.failover.host
        links = [*own.values(), *others.values()]
        errors = [link.last_error for link in links if link.last_error]
        return {
            "round": self.round,
            "rounds_trained": self.rounds,
            "over": len(self._over) == len(own),
            "guest_of": "" if host is None else f"edge-{host}",
            "step_seconds": self.pace,
            "bytes": sum(link.sent + link.received for link in links),
            "last_error": self.last_error or (errors[0] if errors else ""),
        }
