"""Where a client works: for its own servers, or as a guest while its only server is dead.

If its server does not answer, a client that may move turns to that server's first living neighbour,
which decides whether to take it in. It returns as soon as its own server answers again.

If a client has several servers, none of them can keep it from the others: not by refusals, invalid
answers, silence or a flood of answers, and not by endless work (`rest`). Nor can a host keep a
guest from its own server.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from sdfeel.core.errors import SdfeelError
from sdfeel.core.network import Network
from sdfeel.live.protocol import Answer, Header, Link
from sdfeel.live.transport.errors import NotTrusted, Refused, Unreachable

DOUBT = 2.0  # seconds without an answer until a client asks whether its server is alive at all
SOON = 2.0  # seconds for other servers' models; then we find out which server is behind
NONSENSE = 1.0  # seconds until we ask again a server whose answer was unusable
SHORT_REST = 0.5  # a server that just had our time waits at least so long, to let others answer
LONG_REST = 600.0  # and at most so long, however long its work took
Call = asyncio.Future[Answer]


def refuges_of(net: Network, client: int) -> list[int]:
    """The servers to which a client may turn when its own is dead: its neighbours, in order."""
    if len(net.reach[client]) != 1:
        return []  # if it has several servers, it works for the others
    return [int(d) for d in np.flatnonzero(net.links[net.home[client]])]


@dataclass
class Failover:
    """A client's links to its own servers, and to others to which it may turn."""

    own: Mapping[int, Link]
    others: Mapping[int, Link] = field(default_factory=dict)  # in the order in which to ask
    tell: Callable[[str], None] = lambda line: None
    doubt: float = DOUBT
    host: int | None = None  # where this client is a guest
    _back: "Call | None" = None  # done when its own server answers again
    _refusing: set[int] = field(default_factory=set)  # servers that did not take us in
    _rests: dict[int, float] = field(default_factory=dict)  # until when others are asked first

    def link(self, d: int) -> Link:
        return self.own[d] if d in self.own else self.others[d]

    def reaches(self, d: object) -> bool:
        return d in self.own or d in self.others

    def rest(self, d: int, seconds: float) -> None:
        """Our last work was for this server alone: ask the others first for as long as it took."""
        most = min(max(seconds, SHORT_REST), LONG_REST)
        self._rests[d] = asyncio.get_running_loop().time() + most

    async def work(
        self,
        servers: Sequence[int],
        question: Header,
        beside: Callable[[Mapping[int, Answer]], Collection[int]] = lambda found: (),
        pause: Callable[[int, Answer], float] = lambda d, answer: 0.0,
    ) -> dict[int, Answer]:
        """The first answers to a request for work; none if we have moved to another server.

        We ask `servers`, our own, or our host. If the first answers need other servers' models
        `beside` theirs, we wait a little for those as well. A server whose answer is unusable is
        asked again after a `pause`, and does not keep us from the others' answers.
        """
        if self.host is not None:
            return await self._work_at(self.host, question)
        now = asyncio.get_running_loop().time()
        rests = self._rests if len(servers) > 1 else {}
        calls = {self._asked(d, question, rests.get(d, now) - now): d for d in servers}
        refused: dict[int, SdfeelError] = {}
        found: dict[int, Answer] = {}
        try:
            while not found:
                done = await _first(calls, self._patience())
                if not done and not await self._answers(*servers):
                    await self._move()
                    return {}
                for call in done:
                    d = calls.pop(call)
                    try:
                        answer = call.result()
                    except (Refused, NotTrusted) as error:
                        refused[d], after = error, NONSENSE
                        if len(refused) == len(servers):
                            raise
                    else:
                        after = pause(d, answer)
                        found |= {} if after else {d: answer}
                    if after:
                        calls[self._asked(d, question, after)] = d
            wanted = beside(found)
            late = [call for call, d in calls.items() if d in wanted]
            if late:
                soon, _ = await asyncio.wait(late, timeout=SOON)
                found |= {calls[call]: call.result() for call in soon if not call.exception()}
            return found
        finally:
            await _cancelled(calls)

    def _asked(self, d: int, question: Header, after: float) -> Call:
        async def ask() -> Answer:
            if after > 0:
                await asyncio.sleep(after)
            return await self.own[d].insist("work", question)

        return asyncio.ensure_future(ask())

    async def hand_in(self, d: int, header: Header, body: bytes) -> Answer | None:
        """Send a result to a server; None if it is dead and we have moved to another one."""
        call = asyncio.ensure_future(self.link(d).insist("result", header, body))
        try:
            while not await _first([call], self._patience()):
                if self.host is not None and self._back is not None and self._back.done():
                    return None  # our own server is back
                if not await self._answers(d):
                    await self._move()
                    return None
            return call.result()
        finally:
            await _cancelled([call])

    def _patience(self) -> float | None:
        return self.doubt if self.others else None

    async def _answers(self, *servers: int) -> bool:
        """Does one of them answer?"""
        for d in servers:
            with suppress(Unreachable):
                await self.link(d).ask("here", {}, seconds=self.doubt)
                return True
        return False

    async def _move(self) -> None:
        """Become a guest of the first living server that has not refused us, if there is one."""
        self.host = None
        for d in self.others:
            if d not in self._refusing and await self._accepts(d):
                self.host = d
                if self._back is None or self._back.done():
                    (home,) = self.own.values()
                    self._back = asyncio.ensure_future(home.insist("here", {}))
                    self._back.add_done_callback(_looked_at)
                    self.tell(f"{home.name} does not answer: asking edge-{d} for work")
                return

    async def _accepts(self, d: int) -> bool:
        """Does another server answer without refusing us?"""
        try:
            return await self._answers(d)
        except (NotTrusted, Refused) as error:
            self.leave_out(d, error)
            return False

    def leave_out(self, d: int, error: Exception) -> None:
        """Never turn to this server again."""
        self.tell(f"edge-{d} does not take us in: {error}")
        self._refusing.add(d)
        self.host = None if self.host == d else self.host

    async def _others_continue(self, host: int) -> bool:
        """Does another server say that rounds continue? A host alone cannot end a guest's run."""
        for d in self.others:
            if d != host and d not in self._refusing:
                with suppress(SdfeelError):
                    told, _ = await self.others[d].ask("here", {}, seconds=self.doubt)
                    if told.get("over") is False:
                        return True
        return False

    async def _work_at(self, host: int, question: Header) -> dict[int, Answer]:
        assert self._back is not None  # set when moving
        if self._back.done():
            await self._go_home(host, question)
            return {}
        call = asyncio.ensure_future(self.others[host].insist("work", question))
        try:
            while not (done := await _first([call, self._back], self.doubt)):
                if not await self._answers(host):
                    await self._move()
                    return {}
            at_home = self._back in done
            if not at_home and call.result()[0].get("over"):
                at_home = await self._answers(*self.own)  # our server may need us for a last round
                if not at_home and await self._others_continue(host):
                    raise Refused("it says that all rounds are done, but another server continues")
            if at_home:
                await _cancelled([call])  # arriving after our goodbye, it would make the host wait
                await self._go_home(host, question)
                return {}
            return {host: call.result()}
        except (NotTrusted, Refused) as error:
            self.leave_out(host, error)
            return {}
        finally:
            await _cancelled([call])

    async def _go_home(self, host: int, question: Header) -> None:
        self.host, self._back = None, None
        (home,) = self.own.values()
        self.tell(f"{home.name} answers again: returning to it")
        with suppress(SdfeelError):  # if this is lost, the host finds out later
            await self.others[host].ask("work", {**question, "leaving": True}, seconds=self.doubt)


def _looked_at(call: Call) -> None:
    """Look at a call's error, or Python warns. Even a refusal shows that a server is back."""
    if not call.cancelled():
        call.exception()


async def _first(calls: Iterable[Call], seconds: float | None) -> set[Call]:
    done, _ = await asyncio.wait(calls, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return done


async def _cancelled(calls: Collection[Call]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
