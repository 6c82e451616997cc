"""The records of finished rounds, collected from all edge servers and put in order."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sdfeel.live.protocol import LONG_POLL, Link

Record = dict[str, Any]


@dataclass
class Records:
    """What servers report, as a stream. It keeps nothing on disk: servers keep their records."""

    edges: Mapping[int, Link]
    synchronous: bool
    arrivals: list[Record] = field(default_factory=list)  # asynchronous rounds in their order
    _queues: dict[int, list[Record]] = field(default_factory=dict)
    _asked: dict[int, int] = field(default_factory=dict)  # the next record to ask for
    _over: set[int] = field(default_factory=set)
    _last: bool = False

    def in_order(self) -> AsyncIterator[dict[int, Record]]:
        """Round by round, the records of those servers that finished it."""
        return self._in_step() if self.synchronous else self._with_the_last_known()

    def exhausted(self) -> bool:
        """Was that the last round of all?"""
        over = len(self._over) == len(self.edges) and not any(self._queues.values())
        return over and (self.synchronous or self._last)

    async def _in_step(self) -> AsyncIterator[dict[int, Record]]:
        """Synchronous rounds: each is over when every server has finished it."""
        while True:
            await asyncio.gather(*(self._fill(d) for d in self.edges))
            if not all(self._queues.get(d) for d in self.edges):
                return
            yield {d: self._queues[d].pop(0) for d in self.edges}

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

        A record tells how often the model of everyone concerned had changed before.
        """
        changes = dict.fromkeys(self.edges, 0)
        while True:
            ready = next((d for d in sorted(self.edges) if self._is_next(d, changes)), None)
            if ready is not None:
                record = self._queues[ready].pop(0)
                for d in record["versions"]:
                    changes[int(d)] += 1
                self.arrivals.append({key: record[key] for key in ("server", "k", "steps")})
                yield {ready: record}
                continue
            empty = [d for d in self.edges if not self._queues.get(d) and d not in self._over]
            if not empty:
                return
            calls = [asyncio.ensure_future(self._fill(d)) for d in empty]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def _is_next(self, d: int, changes: Mapping[int, int]) -> bool:
        queue = self._queues.get(d)
        if not queue:
            return False
        return all(changes[int(n)] == before for n, before in queue[0]["versions"].items())

    async def _fill(self, d: int) -> None:
        """At least one record of server d, unless it has no more."""
        while not self._queues.get(d) and d not in self._over:
            question = {"first": self._asked.get(d, 0), "wait": LONG_POLL}
            header, body = await self.edges[d].insist("rounds", question)
            records: list[Record] = json.loads(body or b"[]")
            self._queues.setdefault(d, []).extend(records)
            if records:
                self._asked[d] = records[-1]["k"] + 1
            if header["over"]:
                self._over.add(d)
