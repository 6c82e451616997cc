"""A client: asks its servers for work, trains on its own data, and sends back the trained model.

The model that it trains depends only on the work and, where a scheme or a compression needs them,
on rows that it keeps on disk from round to round. So a client that is killed and started again
computes the same bits. Models are NumPy arrays here, so that the same client runs on devices that
have no torch.
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
MOST_ROWS = 8  # extra rows that may come with a model
AGAIN = 0.1  # seconds until we ask again for something that is not ready yet
SILENCE = 10.0  # seconds for another server to begin sending its model
UNPROVEN = 10.0  # seconds to ignore a server that announced an epoch and could not prove it


@dataclass(frozen=True)
class Membership:
    """What a client knows about its federation."""

    digest: str  # of what all nodes agree on
    schema: Schema  # of a model
    servers: tuple[int, ...]  # the servers it works for
    refuges: tuple[int, ...] = ()  # servers that it may work for when its own is dead, in order
    about: About = UNSAID  # what its servers must have in common with it
    coding: Coding | None = None  # how its updates are compressed; None: it sends whole models
    rows: Mapping[int, NDArray[Any]] = field(default_factory=dict)  # initial values of its own rows
    models: frozenset[int] = frozenset()  # the rows whose initial value is the model
    epoch: int = 0  # of the network
    own: NDArray[Any] | None = None  # initial values of the personal part, which never leaves it
    guard: UpdateGuard | None = None  # clips its updates and adds noise before they leave
    private: bool = False  # does it send noise, which a second message would reveal?
    noisy_steps: bool = False  # is there noise in every step?
    masking: Masking | None = None  # how its updates are hidden in sums
    most: int | None = None  # the most local iterations that one round may ask for

    @property
    def along(self) -> int:
        """The most rows that may come with a model."""
        return MOST_ROWS if self.rows else 0

    @property
    def letters(self) -> int:
        """The most bytes of one step of a masked sum."""
        return 0 if self.masking is None else letters_of(self.masking.most)

    @property
    def keeps(self) -> bool:
        """Must this client remember anything from round to round?"""
        guarded = self.guard is not None or self.private or self.masking is not None
        return guarded or self.coding is not None or bool(self.rows) or self.own is not None

    def moved(self, servers: tuple[int, ...], epoch: int, digest: str) -> "Membership":
        """The same client in another epoch of the network."""
        about = self.about.in_epoch(epoch, digest)
        return replace(self, servers=servers, refuges=(), epoch=epoch, about=about)

    def memory(self, store: Store) -> ClientRows:
        models = {-n for n in self.models}
        own = {} if self.own is None else {OWN: self.own}
        return ClientRows(store, own | {-n: row for n, row in self.rows.items()}, models)


def _sources(found: Mapping[int, Answer]) -> set[int]:
    """The servers whose models the work starts from; the answers have not been checked yet."""
    named = (header.get("sources") for header, _ in found.values())
    return {d for each in named if isinstance(each, list) for d in each if is_whole(d)}


@dataclass
class Client:
    """Client `number` of a federation."""

    schema: Schema  # of a model
    number: int
    samples: int
    failover: Failover  # its links to servers
    train: Train
    coding: Coding | None = None  # how its updates are compressed; None: it sends whole models
    kept: ClientRows | None = None  # what it remembers from round to round
    rows: tuple[int, ...] = ()  # the rows that it holds
    desk: ClientDesk | None = None  # signs what it does
    guard: UpdateGuard | None = None  # clips its updates and adds noise before they leave
    private: bool = False  # does it send only one update per round?
    noisy_steps: bool = False  # and use each step's noise only once per model?
    masking: Masking | None = None  # how its updates are hidden in sums
    secret: int = 0  # seeds its noise and its masks
    most: int | None = None  # the most local iterations that a server may ask for in one round
    tell: Callable[[str], None] = lambda line: None
    rounds: int = 0  # finished by this process
    round: int = 0  # the newest finished round
    last_error: str = ""
    pace: float | None = None  # seconds of one step, as last measured
    taken: int = 0  # local iterations up to its last work, as its servers counted them
    epoch: int = 0  # of the network, as this client knows it
    outdated: int | None = None  # a server that knows a later epoch
    _over: set[int] = field(default_factory=set)
    _ahead: dict[int, Answer] = field(default_factory=dict)  # work that came with the last answer
    _unproven: dict[int, float] = field(default_factory=dict)  # until when to ignore a server

    async def run(self) -> None:
        """Work until every server has finished, or one announces a new network."""
        while work := await self._next():
            gave, clock = tuple(work[2]), asyncio.get_running_loop().time
            begin = clock()
            try:
                self._rest_servers(gave, await self._work(*work), clock() - begin)
            except Late:
                await asyncio.sleep(AGAIN)
            except (Refused, TooFew, Diverged) as error:
                masked = self.masking is not None and isinstance(error, Refused | TooFew)
                if self._alone and not masked:
                    raise
                # The server asked for more than it may: it gets nothing this time.
                self.last_error, what = str(error), "masked sum" if masked else "work"
                self.tell(f"round {work[0] + 1}: declining the {what}: {error}")
                self._turn_away(error)
                await asyncio.sleep(NONSENSE)
                self._rest_servers(gave, (), clock() - begin)
        if self.outdated is None:
            self.tell(f"finished after {self.rounds} rounds")

    @property
    def _alone(self) -> bool:
        """Is there only one server that we can work for? Then its refusal ends this client."""
        return len(self.failover.own) == 1 and self.failover.host is None

    def _turn_away(self, error: SdfeelError) -> None:
        """A host's answer is unusable: find another host, or wait for our own server."""
        if self.failover.host is not None:
            self.failover.leave_out(self.failover.host, error)

    def _rest_servers(self, gave: Collection[int], served: Collection[int], seconds: float) -> None:
        """Of several servers, none gets more of our time than the others that have work."""
        if self.failover.own.keys() - self._over - set(gave) - set(served):
            for d in gave:
                self.failover.rest(d, seconds)

    async def _work(self, k: int, header: Header, bodies: dict[int, bytes]) -> set[int]:
        """Do our part of one round; return the servers that took the result."""
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
        """Our part in the round's masked sum; None where servers see each update."""
        if self.masking is None:
            return None
        assert self.kept is not None
        assert self.desk is not None
        ((d, link),) = self.failover.own.items()
        way = link, d, k, header, self.number
        return MaskedRound(*way, self.masking, self.secret, self.kept, self.desk.notary)

    def known(self, header: Header, bodies: dict[int, bytes]) -> dict[int, NDArray[Any]]:
        """The rows besides the model: those that came with it, and our own as they are now."""
        if self.kept is None:
            return {}
        self.kept.settle(int(header["first"]))
        self.kept.renew(self.epoch, parsed(next(iter(bodies.values())))[MODEL])
        known = {}
        if (header.get("rows") or header.get("told")) and len(bodies) != 1:
            raise Refused("a server sends rows, but this work starts from several servers' models")
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
        """The hashes of the rows that we keep from round to round, by place."""
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
        """The schema of a model with the rows that the server's header announces."""
        places = header.get("rows", [])
        if (
            not isinstance(places, list)
            or len(places) > MOST_ROWS
            or not all(map(is_whole, places))
        ):
            raise Refused(f"a server's 'rows' must be a list of at most {MOST_ROWS} places")
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
        """The body to send. Our rows change with it once the server has counted it."""
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
        """The earliest round that a server has for us, with its models; None if all are done."""
        while left := [d for d in self.failover.own if d not in self._over]:
            found: dict[int, Answer] = {}
            for d, answer in (await self._answers(left)).items():
                if "epoch" in answer[0]:
                    self.outdated = d
                    return None
                if answer[0].get("over"):
                    self._over.update(left if d == self.failover.host else [d])
                elif "round" in answer[0] and self._usable(d, answer):
                    found[d] = answer
            if found:
                k = min(int(header["round"]) for header, _ in found.values())
                now = {d: answer for d, answer in found.items() if answer[0]["round"] == k}
                header = next(iter(now.values()))[0]
                bodies = {d: self._checked_body(d, answer) for d, answer in now.items()}
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
        """Seconds until a server that gave an unusable answer is asked again; otherwise 0."""
        header = answer[0]
        if "epoch" in header:
            now = asyncio.get_running_loop().time()
            return NONSENSE if now < self._unproven.get(d, now) else 0.0
        if "round" in header:
            return 0.0 if self._usable(d, answer) else NONSENSE
        return 0.0 if header.get("over") else HASTY  # it should have waited

    def disbelieve(self, d: int, error: str) -> None:
        """A server announced a later epoch without proof: ignore that for a while."""
        self.last_error = f"edge-{d}: {error}"
        self._unproven[d] = asyncio.get_running_loop().time() + UNPROVEN

    def _question(self) -> Header:
        """The header with which we ask for work."""
        question = {"samples": self.samples, "wait": LONG_POLL, "taken": self.taken}
        return {**question, "epoch": self.epoch} if self.epoch else question

    def _asks_ahead(self, body: bytes) -> bool:
        """May the answer to a result bring the next work? It saves a call.

        Not if another server may have work first, nor for long bodies, which the server would hold
        in memory while it waits, nor with rows: the answer would exceed the limit for results.
        """
        alone = len(self.failover.own) == 1 and self.failover.host is None
        return alone and self.masking is None and not self.rows and len(body) <= INLINE

    def _usable(self, d: int, answer: Answer) -> bool:
        """Is the work that a server hands out usable?

        If it is not, we go on with our other servers; only from our sole server is it an error.
        """
        if self._alone:
            self._check_work(d, answer[0])
            return True
        try:
            self._check_work(d, answer[0])
            self._checked_body(d, answer)
        except Refused as error:
            self.last_error = f"edge-{d}: {error}"
            self._turn_away(error)
            return False
        return True

    def _check_work(self, d: int, header: Header) -> None:
        """Refuse work whose header is malformed or asks for too much."""
        for key in ("round", "steps", "first"):
            whole(header, key)
        if self.most is not None and header["steps"] > self.most:
            steps = f"{header['steps']} steps in one round"
            raise Refused(f"edge-{d} asks for {steps}; the experiment allows {self.most}")
        sources, weights = header.get("sources"), header.get("weights")
        if not isinstance(sources, list) or not isinstance(weights, list):
            raise Refused(f"edge-{d} does not say which models to start from")
        if not all(map(is_whole, sources)):
            raise Refused(f"edge-{d} names the models to start from, but not by server numbers")
        reachable = all(map(self.failover.reaches, sources))
        once = len(set(sources)) == len(sources) == len(weights)
        if not reachable or not once or not sources:
            raise Refused(f"edge-{d} says to start from models of servers that are not ours")
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
            raise Refused(f"edge-{d} sends a weight, rate or bound that is not a number")

    def _checked_body(self, d: int, answer: Answer) -> bytes:
        header, body = answer
        if body is None:
            raise Refused(f"edge-{d} handed out work without a model")
        unpack(body, self._with_rows(header), header.get("sha256"))
        return body

    async def _start(self, k: int, header: Header, bodies: dict[int, bytes]) -> NDArray[Any] | None:
        """The model to start from; None if a server that we need is still in an earlier round."""
        row = dict(zip(header["sources"], header["weights"], strict=True))
        for d in row:
            if d not in bodies:
                told, body = await self._model_of(d, k)
                if body is None:
                    return None
                bodies[d] = body
                if self.desk is not None:
                    self.desk.given(d, k, told, None)
        return self.started(row, bodies)

    async def _model_of(self, d: int, k: int) -> Answer:
        """A round's model from another of our servers, which may be silent, or lie."""
        try:
            question = {"round": k, "wait": SOON}
            told, body = await self.failover.link(d).ask("start", question, seconds=SILENCE)
            return told, None if body is None else self._checked_body(d, (told, body))
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
            # The first time, one step shows how fast this device is.
            fits = 1.0 if self.pace is None else header["deadline"] / max(self.pace, 1e-9)
            steps = int(max(1, min(steps, fits)))
            if self.private and self.kept is not None:  # repeat an update that was sent before
                steps = self.kept.released(header.get("round")) or steps
        first, rate = int(header["first"]), float(header["rate"])
        pull = float(header.get("pull", 0.0))
        own = None if self.kept is None else self.kept.get(OWN)
        return ArrayTask(self.number, start, steps, first, rate, shift, pull, own)

    async def _hand_in(self, k: int, told: Header, body: bytes, header: Header) -> set[int]:
        """Send a result to every server that it is for; return those that took it.

        Of several servers, one that cannot take it now asks for it again when it is back.
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
                self.tell(f"round {k + 1}: edge-{d} did not take the result: {error}")
                return
            if answer is not None and isinstance(answer[0].get("next"), dict):
                self._ahead = {d: (answer[0]["next"], answer[1])}
            if answer is not None and (answer[0].get("kept") or answer[0].get("known")):
                served.add(d)

        await asyncio.gather(*(give(d) for d in header["sources"]))
        return served

    def status(self) -> dict[str, Any]:
        """How far this client is, for people and programs."""
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
