"""The records of finished rounds, collected from all edge servers and put in order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from sdfeel.core.errors import RunError
from sdfeel.live.edge.journal import elapsed
from sdfeel.live.protocol import LONG_POLL, Link, is_whole
from sdfeel.live.transport.envelope import strict
from sdfeel.live.transport.errors import Refused

Record = dict[str, Any]
SHORTLY = 0.1  # seconds until we ask again a server that had nothing to report
NUMBERS = ("iterations", "ended", "first", "compute", "upload", "mix")
COUNTS = ("server", "k", "number", "total", "bytes")
SOMETIMES = ("epoch", "index", "lane")
LISTS = ("away", "guests", "mixed", "missing")  # of clients or servers
DIGITS = 12  # numbers of clients and servers are shorter


def read(body: bytes, server: int, servers: Collection[int], in_step: bool) -> list[Record]:
    """The records that a server reports; `Refused` if they cannot be those of its rounds."""
    try:
        found = strict(body.decode())
        if not isinstance(found, list) or not all(map(is_record, found)):
            raise ValueError
        ours = all(each["server"] == server for each in found)
        known = {str(d) for d in servers}
        if not ours or not all(in_step or known >= each["versions"].keys() for each in found):
            raise ValueError
    except (ValueError, KeyError, RecursionError):
        raise Refused(
            f"edge-{server} reports what cannot be its rounds: it runs another version of sdfeel, "
            f"or lies; look at that server, or restore a backup of its state"
        ) from None
    return found


def is_record(value: object) -> TypeGuard[Record]:
    """Does this value, which may be anything, have the form of a round's record?"""
    if not isinstance(value, dict) or not value.keys() >= {*NUMBERS, *COUNTS, *LISTS, "steps"}:
        return False
    by_number = [value["steps"], value.get("versions", {})]
    figures, over = value.get("figures", {}), value.get("over")
    released = value.get("released", {})
    return (
        all(isinstance(value[key], int | float) for key in NUMBERS)
        and isinstance(value.get("elapsed", 0.0), int | float)
        and all(map(is_whole, (value.get(key, 0) for key in (*COUNTS, *SOMETIMES))))
        and all(isinstance(value[key], list) and all(map(is_whole, value[key])) for key in LISTS)
        and all(isinstance(each, dict) for each in (*by_number, figures))
        and all(isinstance(each, int | float) for each in figures.values())
        and all(key.isdecimal() and len(key) < DIGITS for each in by_number for key in each)
        and all(is_whole(number) for each in by_number for number in each.values())
        and (over is None or (isinstance(over, str) and over.isprintable()))
        and (isinstance(released, dict) and all(map(_is_release, released.items())))
    )


def _is_release(item: tuple[str, object]) -> bool:
    """Does an item name a client that may have answered, its steps and the share others see?"""
    name, told = item
    if not name.isdecimal() or len(name) >= DIGITS or not isinstance(told, list) or len(told) != 2:
        return False
    steps, share = told
    return is_whole(steps) and isinstance(share, int | float) and 0 <= share <= 1


@dataclass
class Records:
    """The stream of all servers' records. It keeps nothing on disk: the servers have them.

    It does not wait for a server that others have left out.
    """

    edges: Mapping[int, Link]
    synchronous: bool
    neighbours: Mapping[int, Collection[int]] = field(default_factory=dict)
    arrivals: list[Record] = field(default_factory=list)  # asynchronous rounds in their order
    repeatable: bool = True  # no server was left out, so a simulation can repeat the run
    _queues: dict[int, list[Record]] = field(default_factory=dict)
    _calls: "dict[int, asyncio.Future[None]]" = field(default_factory=dict)
    _asked: dict[int, int] = field(default_factory=dict)  # the next record to ask for
    _over: set[int] = field(default_factory=set)
    _away: dict[int, list[int]] = field(default_factory=dict)  # whom each server leaves out now
    _last: bool = False
    members: Callable[[int], Collection[int] | None] | None = None  # of an epoch; None: unknown
    epoch: int = 0  # of the newest round

    def __post_init__(self) -> None:
        self._queues = {d: [] for d in self.edges}

    async def in_order(self) -> AsyncIterator[dict[int, Record]]:
        """Round by round, the records of the servers that finished it."""
        rounds = self._in_step() if self.synchronous else self._with_the_last_known()
        try:
            async for records in rounds:
                left_out = any(each["away"] or each["guests"] for each in records.values())
                self.repeatable = self.repeatable and not left_out
                yield records
        finally:
            for call in self._calls.values():
                call.cancel()
            await asyncio.gather(*self._calls.values(), return_exceptions=True)

    def exhausted(self) -> bool:
        """Was that the last round of the run?"""
        if self._ended():
            return True
        left = any(self._queues[d] for d in self._expected())
        none_left = not self._silent() and not left
        return none_left and (self.synchronous or self._last)

    def _ended(self) -> bool:
        """Have most servers ended? Synchronous ones end together, so then all rounds are over."""
        expected = self._expected()
        ended = sum(d in self._over and not self._queues[d] for d in expected)
        return self.synchronous and 2 * ended > len(expected)

    def _silent(self) -> list[int]:
        """The servers whose next record we must wait for."""
        expected = self._expected()
        told = {d for d in expected if self._queues[d] or d in self._over}
        away = {other for d in told for other in self._away.get(d, ())}
        left = [d for d in expected if d not in told and d not in away]
        # If all its neighbours are away, no server can report that it is away, too.
        return [d for d in left if not away or not self._cut_off(d, away)]

    def _cut_off(self, d: int, away: Collection[int]) -> bool:
        near = self.neighbours.get(d, ())
        return bool(near) and all(other in away for other in near)

    def _expected(self) -> Collection[int]:
        """The servers in the network of the newest epoch that any of them reports.

        An epoch without a file here does not count, unless most servers report it: an error then.
        """
        if self.members is None:
            return self.edges.keys()
        heads = [queue[0] for queue in self._queues.values() if queue]
        k = min((head["k"] for head in heads), default=0)
        epochs = [head.get("epoch", 0) for head in heads if head["k"] == k]
        now = self.members(self.epoch) or ()
        for epoch in sorted({epoch for epoch in epochs if epoch > self.epoch}):
            then = self.members(epoch)
            if then is not None:
                self.epoch, now = epoch, then
            elif 2 * epochs.count(epoch) > len(now):
                raise RunError(
                    f"the servers are in epoch {epoch}, of which there is no file here: copy the "
                    f"directory epochs from where it was signed"
                )
        return [d for d in now if d in self.edges]

    async def _in_step(self) -> AsyncIterator[dict[int, Record]]:
        """Synchronous rounds: each is over when every server has finished it."""
        k = 0
        while True:
            for d, queue in self._queues.items():
                while queue and queue[0]["k"] < k:
                    queue.pop(0)  # a slow server's record: the others went on without it
                if queue:
                    self._away[d] = queue[0]["away"]
            if self._ended():
                return
            if self._silent():
                await self._news()
                continue
            expected = self._expected()
            heads = {d: queue[0] for d, queue in self._queues.items() if queue and d in expected}
            if not heads:
                return
            k = min(record["k"] for record in heads.values())
            yield {d: self._queues[d].pop(0) for d in heads if heads[d]["k"] == k}
            k += 1

    async def _with_the_last_known(self) -> AsyncIterator[dict[int, Record]]:
        """One round behind: a server may finish its last round and have it applied only later."""
        before: dict[int, Record] | None = None
        async for record in self._one_by_one():
            if before is not None:
                yield before
            before = record
        self._last = True
        if before is not None:
            yield before

    async def _one_by_one(self) -> AsyncIterator[dict[int, Record]]:
        """Asynchronous rounds, in an order in which they could have happened one after another.

        A record tells how often the models in its exchange had changed before. If servers gave
        each other up, these numbers may not fit together: then the order is by how long each server
        has run, by its own clock.
        """
        changes = dict.fromkeys(self.edges, 0)
        while True:
            heads = {d: queue[0] for d, queue in self._queues.items() if queue}
            self._away |= {d: record["away"] for d, record in heads.items()}
            ready = next((d for d in sorted(heads) if _is_next(heads[d], changes)), None)
            if ready is None and self._silent():
                await self._news()
                continue
            if not heads:
                return
            if ready is None:
                ready = min(heads, key=lambda d: elapsed(heads[d]))
                changes |= {int(d): before for d, before in heads[ready]["versions"].items()}
            record = self._queues[ready].pop(0)
            for d in record["versions"]:
                changes[int(d)] += 1
            known = ("server", "k", "steps", "lane")
            self.arrivals.append({key: record[key] for key in known if key in record})
            yield {ready: record}

    async def _news(self) -> None:
        """Wait until a server reports more."""
        for d in self.edges:
            if not self._queues[d] and d not in self._over and d not in self._calls:
                self._calls[d] = asyncio.ensure_future(self._fill(d))
        done, _ = await asyncio.wait(self._calls.values(), return_when=asyncio.FIRST_COMPLETED)
        for d in [d for d, call in self._calls.items() if call in done]:
            self._calls.pop(d).result()

    async def _fill(self, d: int) -> None:
        """At least one record of server d, unless it has no more."""
        while not self._queues[d] and d not in self._over:
            question = {"first": self._asked.get(d, 0), "wait": LONG_POLL}
            header, body = await self.edges[d].insist("rounds", question)
            records = read(body or b"[]", d, self.edges, self.synchronous)
            if not records and header.get("over") is not True:
                await asyncio.sleep(SHORTLY)  # it may not have waited before it answered
            self._queues[d].extend(records)
            if records:
                last = records[-1]  # lanes that share a server number their rounds together
                self._asked[d] = 1 + (last["index"] if "index" in last else last["k"])
            if header.get("over") is True:
                self._over.add(d)


def _is_next(record: Record, changes: Mapping[int, int]) -> bool:
    return all(changes[int(n)] == before for n, before in record["versions"].items())
