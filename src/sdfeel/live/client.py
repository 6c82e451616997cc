"""A client: asks its servers for work, trains on its own data, hands in the trained model.

It keeps nothing between rounds. What it trains is a function of the work alone, so a client that
is killed and started again computes the same bits. Models are NumPy's arrays here, so that the same
client runs on devices that cannot carry torch.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from sdfeel.engine.fused import weighted_by_hand
from sdfeel.engine.task import TaskOf
from sdfeel.live.failover import Failover
from sdfeel.live.protocol import LONG_POLL, UNSAID, About, Answer, Header, whole
from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.tensors import MODEL, Schema, digest, pack, unpacked_model

ArrayTask = TaskOf[NDArray[Any]]
Train = Callable[[ArrayTask], NDArray[Any]]
WAIT_FOR_START = 2.0  # seconds; then the servers are asked anew who is behind


@dataclass(frozen=True)
class Membership:
    """What a client knows of its federation."""

    digest: str  # of what all nodes agree on
    schema: Schema  # of a model
    servers: tuple[int, ...]  # whom it works for
    refuges: tuple[int, ...] = ()  # whom it may turn to when its server is dead, in order
    about: About = UNSAID  # what its servers must have in common with it


@dataclass
class Client:
    """Client `number` of a federation."""

    schema: Schema  # of a model
    number: int
    samples: int
    failover: Failover  # its ways to servers
    train: Train
    tell: Callable[[str], None] = lambda line: None
    rounds: int = 0  # finished by this process
    round: int = 0  # the newest one
    last_error: str = ""
    pace: float | None = None  # seconds of one step, as last measured
    taken: int = 0  # local iterations up to its last work, as its servers counted them
    _over: set[int] = field(default_factory=set)

    async def run(self) -> None:
        """Work until every server says that there is no more."""
        while work := await self._next():
            k, header, bodies = work
            begin = time.monotonic()
            start = await self._start(k, header, bodies)
            if start is None:
                await asyncio.sleep(0.1)
                continue
            task = self._task(header, start)
            began = time.monotonic()
            model = await asyncio.to_thread(self.train, task)
            seconds = time.monotonic() - began
            if task.steps:
                self.pace = seconds / task.steps
            await self._hand_in(k, task.steps, seconds, pack({MODEL: model}), header)
            self.rounds, self.round = self.rounds + 1, k + 1
            self.taken = task.first + task.steps
            self.tell(
                f"round {k + 1}: {task.steps} steps in {seconds:.2f} s, "
                f"{time.monotonic() - begin:.2f} s with all transfers"
            )
        self.tell(f"finished after {self.rounds} rounds")

    async def _next(self) -> tuple[int, Header, dict[int, bytes]] | None:
        """The earliest round that some server waits for; None when all are done."""
        while left := [d for d in self.failover.own if d not in self._over]:
            found: dict[int, Answer] = {}
            for d, answer in (await self._answers(left)).items():
                if answer[0].get("over"):
                    self._over.update(left if d == self.failover.host else [d])
                elif "round" in answer[0]:
                    self._check(d, answer[0])
                    found[d] = answer
            if found:
                k = min(int(header["round"]) for header, _ in found.values())
                now = {d: answer for d, answer in found.items() if answer[0]["round"] == k}
                header = next(iter(now.values()))[0]
                return k, header, {d: self._checked(answer) for d, answer in now.items()}
        return None

    async def _answers(self, servers: list[int]) -> dict[int, Answer]:
        question = {"samples": self.samples, "wait": LONG_POLL, "taken": self.taken}
        return await self.failover.work(servers, question)

    def _check(self, d: int, header: Header) -> None:
        """A server may have sent anything."""
        for key in ("round", "steps", "first"):
            whole(header, key)
        sources, weights = header.get("sources"), header.get("weights")
        if not isinstance(sources, list) or not isinstance(weights, list):
            raise Refused(f"edge-{d} does not say which models to start from")
        reachable = all(map(self.failover.reaches, sources))
        if not reachable or len(sources) != len(weights) or not sources:
            raise Refused(f"edge-{d} names models to start from that this client cannot reach")
        if not all(isinstance(n, int | float) for n in (*weights, header.get("rate"))):
            raise Refused(f"edge-{d} sends weights that are no numbers")

    def _checked(self, answer: Answer) -> bytes:
        header, body = answer
        if body is None:
            raise Refused("a server handed out work without a model")
        unpacked_model(body, self.schema, header.get("sha256"))
        return body

    async def _start(self, k: int, header: Header, bodies: dict[int, bytes]) -> NDArray[Any] | None:
        """The model to start from; None if another server is behind and must be served first."""
        row = dict(zip(header["sources"], header["weights"], strict=True))
        for d in row:
            if d not in bodies:
                question = {"round": k, "wait": WAIT_FOR_START}
                told, body = await self.failover.link(d).insist("start", question)
                if body is None:
                    return None
                bodies[d] = self._checked((told, body))
        models = {d: unpacked_model(bodies[d], self.schema, digest(bodies[d])) for d in row}
        if len(row) == 1 and next(iter(row.values())) == 1:
            return next(iter(models.values()))
        return weighted_by_hand((weight, models[d]) for d, weight in row.items())

    def _task(self, header: Header, start: NDArray[Any]) -> ArrayTask:
        steps = int(header["steps"])
        if "deadline" in header:
            # Before the first measurement, one step tells how fast this device is.
            fits = 1 if self.pace is None else int(header["deadline"] / max(self.pace, 1e-9))
            steps = max(1, min(steps, fits))
        return ArrayTask(self.number, start, steps, int(header["first"]), float(header["rate"]))

    async def _hand_in(
        self, k: int, steps: int, seconds: float, body: bytes, header: Header
    ) -> None:
        told = {"round": k, "steps": steps, "seconds": seconds, "sha256": digest(body)}

        async def give(d: int) -> None:
            try:
                await self.failover.hand_in(d, told, body)
            except Refused as error:
                self.last_error = f"edge-{d}: {error}"
                self.tell(f"round {k + 1}: edge-{d} refused the result: {error}")

        await asyncio.gather(*(give(d) for d in header["sources"]))

    def status(self) -> dict[str, Any]:
        """For people and machines: where this client is."""
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
