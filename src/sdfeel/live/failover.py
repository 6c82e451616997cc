"""Where a client works: for its own servers, or as a guest while its server is dead.

A client that may move first makes sure that its server is silent, then turns to that server's first
living neighbour, which decides whether to take it in. It goes home as soon as its own server
answers again.

A client of several servers cannot be kept from the others by one of them: not by refusals, by
nonsense, by silence or by haste, and not by work that never ends (`rest`). Neither can a host keep
a guest from its own server.
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

DOUBT = (
    2.0  # seconds without an answer after which a client asks whether its server is alive at all
)
SOON = 2.0  # seconds for the models of other servers; then these are asked who is behind
NONSENSE = 1.0  # seconds until a server that said what cannot be used is asked again
SHORT_REST = 0.5  # seconds in which others can answer before a server that just had our time
LONG_REST = 600.0  # the same after work that took as long, or longer
Call = asyncio.Future[Answer]


def refuges_of(net: Network, client: int) -> list[int]:
    """The servers a client may turn to when its own is dead: that server's neighbours, in order."""
    if len(net.reach[client]) != 1:
        return []  # a client of several servers has the others
    return [int(d) for d in np.flatnonzero(net.links[net.home[client]])]


@dataclass
class Failover:
    """A client's links to its own servers, and to others that it may turn to."""

    own: Mapping[int, Link]
    others: Mapping[int, Link] = field(default_factory=dict)  # in the order in which to ask
    tell: Callable[[str], None] = lambda line: None
    doubt: float = DOUBT
    host: int | None = None  # where this client is a guest
    _back: "Call | None" = None  # done when its own server answers again
    _closed: set[int] = field(default_factory=set)  # servers that take nobody in
    _rests: dict[int, float] = field(default_factory=dict)  # until when others are asked first

    def link(self, d: int) -> Link:
        return self.own[d] if d in self.own else self.others[d]

    def reaches(self, d: object) -> bool:
        return d in self.own or d in self.others

    def rest(self, d: int, seconds: float) -> None:
        """Our last work was for this server alone: for as long as it took, ask the others first."""
        most = min(max(seconds, SHORT_REST), LONG_REST)
        self._rests[d] = asyncio.get_running_loop().time() + most

    async def work(
        self,
        servers: Sequence[int],
        question: Header,
        beside: Callable[[Mapping[int, Answer]], Collection[int]] = lambda found: (),
        pause: Callable[[int, Answer], float] = lambda d, answer: 0.0,
    ) -> dict[int, Answer]:
        """The first answers of `servers`, our own, or of the host; none if we have moved.

        And, if they come soon, those of the servers that the first ones need `beside` them: their
        models are on the way already. A server whose answer is of no use is asked again after a
        `pause`, and does not keep us from hearing the others.
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
                if not done and not await self._there(*servers):
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
        """Give a result to a server; None if it is dead and we go elsewhere."""
        call = asyncio.ensure_future(self.link(d).insist("result", header, body))
        try:
            while not await _first([call], self._patience()):
                if self.host is not None and self._back is not None and self._back.done():
                    return None  # we are wanted at home
                if not await self._there(d):
                    await self._move()
                    return None
            return call.result()
        finally:
            await _cancelled([call])

    def _patience(self) -> float | None:
        return self.doubt if self.others else None

    async def _there(self, *servers: int) -> bool:
        """Does one of them answer?"""
        for d in servers:
            with suppress(Unreachable):
                await self.link(d).ask("here", {}, seconds=self.doubt)
                return True
        return False

    async def _move(self) -> None:
        """Become a guest of the first living server that may take us in, if there is one."""
        self.host = None
        for d in self.others:
            if d not in self._closed and await self._open(d):
                self.host = d
                if self._back is None or self._back.done():
                    (home,) = self.own.values()
                    self._back = asyncio.ensure_future(home.insist("here", {}))
                    self._back.add_done_callback(_looked_at)
                    self.tell(f"{home.name} does not answer: asking edge-{d} for work")
                return

    async def _open(self, d: int) -> bool:
        """Is another server there, and on good terms with us?"""
        try:
            return await self._there(d)
        except (NotTrusted, Refused) as error:
            self.leave_out(d, error)
            return False

    def leave_out(self, d: int, error: Exception) -> None:
        """Turn to this server no more."""
        self.tell(f"edge-{d} does not take us in: {error}")
        self._closed.add(d)
        self.host = None if self.host == d else self.host

    async def _goes_on(self, host: int) -> bool:
        """Does another server say that the rounds continue? One host alone cannot end a guest."""
        for d in self.others:
            if d != host and d not in self._closed:
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
                if not await self._there(host):
                    await self._move()
                    return {}
            at_home = self._back in done
            if not at_home and call.result()[0].get("over"):
                at_home = await self._there(*self.own)  # it may need us for one last round
                if not at_home and await self._goes_on(host):
                    raise Refused("it says that all rounds are done, but others continue")
            if at_home:
                await _cancelled([call])  # if it arrived after the goodbye, the host would wait
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
        with suppress(SdfeelError):  # it would find out on its own, later
            await self.others[host].ask("work", {**question, "leaving": True}, seconds=self.doubt)


def _looked_at(call: Call) -> None:
    """Even a refusal says that a server is back. Python complains of what nobody looked at."""
    if not call.cancelled():
        call.exception()


async def _first(calls: Iterable[Call], seconds: float | None) -> set[Call]:
    done, _ = await asyncio.wait(calls, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return done


async def _cancelled(calls: Collection[Call]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
