"""The calling side: one peer, found at an address and recognised by the name it proves."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from sdfeel.core.errors import SdfeelError, printable
from sdfeel.live.audit import ANSWERED, AuditedCall
from sdfeel.live.transport.connections import hasten
from sdfeel.live.transport.diagnosis import probe
from sdfeel.live.transport.envelope import GO, METHOD, Envelope, opened
from sdfeel.live.transport.errors import NotTrusted, Refused, Unable, Unreachable
from sdfeel.live.transport.limits import INLINE, Limits, for_peer
from sdfeel.live.transport.stream import Conversation, Stalled
from sdfeel.live.trust.allow_list import AllowList
from sdfeel.live.trust.identity import Identity, Wallet
from sdfeel.live.trust.names import Name

Code = grpc.StatusCode
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0
_PROBE_EVERY = 1.0  # seconds between handshakes that find out why a call failed
_REFUSED_EVERY = 10.0  # the same if nobody listens: a server that comes back has enough to do
_REFUSED = "Connection refused"  # these and the next are gRPC's words
_NO_ADDRESS = ("errors resolving", "DNS resolution failed")
_MOST_LOST = 8  # channels that are kept although they found no address; older ones are closed
_PROBE_SECONDS = 5.0
_LONGEST_REASON = 500
_OUTCOMES = {Unreachable: "unreachable", NotTrusted: "denied"}
_OUTAGE = 2.0  # seconds without an answer until people are told
_OUTAGE_AGAIN = 600.0  # and until they are told again


@dataclass(frozen=True)
class Reply:
    """What a peer answered."""

    header: dict[str, Any]
    body: bytes | None = None


class Peer:
    """A node that we call. Calls may run at the same time; they share one connection.

    With an allow-list, the peer's certificate must be on it, not only carry the right name.
    """

    def __init__(
        self,
        address: str,
        identity: Identity,
        expected_name: str,
        limits: Limits,
        allow: AllowList | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.address, self.limits = address, limits
        self.name = Name.parse(expected_name, identity.parsed.federation)
        self._wallet, self._used = Wallet(identity, tell), identity  # the open channel's
        self._allow = allow
        self._channel: grpc.aio.Channel | None = None
        self._old: list[grpc.aio.Channel] = []
        self._lost: list[grpc.aio.Channel] = []  # channels that did not find the address
        self._server_name = ""  # the name that TLS must find in the certificate, once connected
        self._probed = float("-inf")
        self._outage = _Outage(f"{self.name} at {address}", tell)
        self.audit: Callable[[AuditedCall], None] = lambda call: None  # records how our calls ended

    async def call(
        self,
        kind: str,
        header: dict[str, Any],
        body: bytes | None = None,
        *,
        timeout: float,  # noqa: ASYNC109  (it spans several attempts)
    ) -> Reply:
        """Send a message and return the answer, trying again through outages until `timeout`.

        Bodies may take longer, as long as a slow link needs for their size. A message may arrive
        more than once, so it must have the same effect however often it arrives.
        """
        try:
            reply = await self._call(kind, header, body, timeout)
        except SdfeelError as error:
            self._note(kind, _OUTCOMES.get(type(error), "refused"), reason=str(error))
            raise
        self._note(kind, ANSWERED, len(reply.body or b""), len(body or b""))
        return reply

    def _note(
        self, kind: str, outcome: str, received: int = 0, sent: int = 0, reason: str = ""
    ) -> None:
        serial = self._server_name.partition(".")[0] if self._allow is not None else ""
        self.audit(
            AuditedCall(str(self.name), serial, kind, outcome, received, sent, self.address, reason)
        )

    async def _call(
        self, kind: str, header: dict[str, Any], body: bytes | None, seconds: float
    ) -> Reply:
        envelope = Envelope.of(kind, header, body)
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        trouble = "it did not answer"
        for wait in _waits():
            cut = False
            try:
                reply = await self._attempt(envelope, body, end - clock())
                self._outage.over(clock())
                return reply
            except grpc.aio.AioRpcError as error:
                cut = error.code() is Code.UNAVAILABLE
                trouble = await self._judged(error, end - clock()) or trouble
            except (Stalled, Unable) as trial:
                trouble = str(trial)
            self._outage.goes_on(clock(), trouble)
            left = end - clock()
            if left < _FIRST_WAIT:
                break
            await self._pause(min(wait, left / 2), cut)
        raise Unreachable(
            f"no answer from {self.name} at {self.address} within {seconds:g} s: {trouble}"
        )

    async def _pause(self, seconds: float, cut: bool) -> None:
        """Wait before the next try; after an outage, only until there is a connection again."""
        channel = self._channel if cut else None
        await asyncio.sleep(seconds if channel is None else seconds / 10)
        if channel is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await channel.channel_ready()

    async def close(self) -> None:
        """Hang up. The next call connects again."""
        self._let_go()
        for channels in (self._old, self._lost):
            while channels:
                await channels.pop().close()

    def _let_go(self) -> None:
        """Make no more calls on this connection; closing it now would cancel those in progress."""
        if self._channel is not None:
            self._old.append(self._channel)
            self._channel = None

    async def _look_up_again(self) -> None:
        """Look the address up again now; gRPC itself may wait two minutes before it does."""
        channel = self._channel
        if channel is not None and channel.get_state() is not grpc.ChannelConnectivity.READY:
            self._lost.append(channel)  # READY would mean that another call has found it
            self._channel = None
        if len(self._lost) > _MOST_LOST:
            await self._lost.pop(0).close(grace=1.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _attempt(self, envelope: Envelope, body: bytes | None, seconds: float) -> Reply:
        seconds = max(seconds, 0.001)
        there = self.limits.transfer_seconds(len(body or b""))
        back = self.limits.transfer_seconds(self.limits.body_bytes(envelope.kind))
        if max(len(body or b""), self.limits.body_bytes(envelope.kind)) <= INLINE:
            return await self._in_one_message(envelope, body, seconds + there + back)
        rpc = self._connected().stream_stream(METHOD)(timeout=seconds + there + back)
        try:
            talk = Conversation(rpc, self.limits)
            inline = body is None or len(body) <= INLINE
            await talk.send(envelope.encode(body if inline else None), seconds)
            if body is not None and not inline:
                if await talk.receive(seconds) != GO:
                    raise self._hasty()
                await talk.send_body(body)
            # The end of our body may still be on its way.
            answer, content = await talk.receive_envelope(seconds + there)
            self._check_kind(answer, envelope)
            if answer.size and content is None:
                content = await talk.receive_body(answer.size)
            if await talk.receive() is not None:
                raise Refused(f"{self.name} sent more than it announced")
            return Reply(answer.header, content)
        except asyncio.InvalidStateError:  # the call ended while we were still writing
            if await rpc.code() is Code.OK:
                raise self._hasty() from None
            raise await _status(rpc) from None
        finally:
            rpc.cancel()

    async def _in_one_message(
        self, envelope: Envelope, body: bytes | None, seconds: float
    ) -> Reply:
        """The same call where neither side's body is long: one message each way."""
        ask: Any = self._connected().unary_unary(METHOD)
        answer, content = opened(await ask(envelope.encode(body), timeout=seconds), self.limits)
        self._check_kind(answer, envelope)
        if answer.size and content is None:
            raise Refused(f"{self.name} announced {answer.size:,} bytes and did not send them")
        return Reply(answer.header, content)

    def _hasty(self) -> Refused:
        return Refused(f"{self.name} answered before it had the whole message")

    def _check_kind(self, answer: Envelope, asked: Envelope) -> None:
        if answer.kind != asked.kind:
            raise Refused(f"{self.name} answered '{answer.kind}' to '{asked.kind}'")

    def _connected(self) -> Any:
        """A channel to the intended peer and nobody else."""
        me = self._wallet.current()
        if me is not self._used:  # it was renewed
            self._let_go()
        if me.expired():
            raise NotTrusted(
                f"our own certificate, {me.name}, expired on {me.expires:%Y-%m-%d}: renew it with "
                f"`sdfeel deploy renew`"
            )
        wanted = self._server_names()
        if self._server_name not in wanted:
            self._let_go()
        if self._channel is None:
            self._server_name = self._server_name if self._server_name in wanted else wanted[0]
            self._used = me
            credentials = grpc.ssl_channel_credentials(me.ca, me.key, me.cert)
            options = for_peer(self.limits, self._server_name)
            self._channel = grpc.aio.secure_channel(self.address, credentials, options)
            hasten(self.limits)
        return self._channel

    def _server_names(self) -> tuple[str, ...]:
        """The names that the peer's certificate may have: several while it is being rotated."""
        if self._allow is None:
            return (self.name.dns,)
        serials = self._allow.serials(str(self.name))
        if gone := self._allow.gone:
            raise Unable(gone)
        if not serials:
            raise NotTrusted(f"no certificate of {self.name} is on our allow-list: it was revoked")
        return tuple(self.name.pinned(serial) for serial in serials)

    async def _judged(self, error: grpc.aio.AioRpcError, left: float) -> str | None:
        """What went wrong, if trying again may help; None if time is up. Otherwise raises."""
        code = error.code()
        reason = printable(error.details() or code.name)[:_LONGEST_REASON]  # from a stranger
        if code is Code.FAILED_PRECONDITION:
            raise Refused(reason) from None
        if code in (Code.PERMISSION_DENIED, Code.UNAUTHENTICATED):
            if self._wallet.current() is not self._used:
                return reason  # about a certificate that has since been replaced
            raise NotTrusted(reason) from None
        if code is Code.UNIMPLEMENTED:
            raise Refused(f"{self.address} is not a node of sdfeel") from None
        if code is Code.UNAVAILABLE:
            with suppress(Unable):  # which the next try will find out again
                await self._ask_why(left, _REFUSED_EVERY if _REFUSED in reason else _PROBE_EVERY)
            if any(words in reason for words in _NO_ADDRESS):
                await self._look_up_again()
            return reason.rpartition(": ")[2].rstrip("]")
        return None if code is Code.DEADLINE_EXCEEDED else reason

    async def _ask_why(self, left: float, every: float) -> None:
        """Raise `NotTrusted` if this is no outage; finds out by a handshake, but not every time."""
        now = asyncio.get_running_loop().time()
        if now - self._probed < every and left > _FIRST_WAIT:
            return
        self._probed = now
        seconds = min(_PROBE_SECONDS, max(left, _PROBE_EVERY))
        serial = await self._shown(seconds)
        if serial is None or self._allow is None:
            return
        shown = self.name.pinned(serial)
        if shown not in self._server_names():
            raise NotTrusted(
                f"{self.name} at {self.address} shows certificate {serial}, which is not on our "
                f"allow-list: it was revoked"
            )
        if shown != self._server_name:
            self._let_go()
            self._server_name = shown

    async def _shown(self, seconds: float) -> str | None:
        """The serial number of the peer's certificate; None if it shows none or is back already."""
        asked = asyncio.ensure_future(probe(self.address, self._used, self.name, seconds))
        back = asyncio.ensure_future(self._connected().channel_ready())
        try:
            await asyncio.wait([asked, back], return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        finally:
            asked.cancel()
            back.cancel()
            await asyncio.gather(asked, back, return_exceptions=True)


@dataclass
class _Outage:
    """Logs that a peer does not answer, and that it answers again, but not every attempt."""

    peer: str
    tell: Callable[[str], None]
    since: float | None = None
    told: float | None = None

    def goes_on(self, now: float, trouble: str) -> None:
        if self.since is None:
            self.since = now
        quiet = now - self.since < _OUTAGE
        if quiet or (self.told is not None and now - self.told < _OUTAGE_AGAIN):
            return
        self.told = now
        self.tell(f"no answer from {self.peer} for {now - self.since:.0f} s: {trouble}")

    def over(self, now: float) -> None:
        if self.told is not None and self.since is not None:
            self.tell(f"{self.peer} answers again, after {now - self.since:.0f} s")
        self.since = self.told = None


async def _status(rpc: Any) -> grpc.aio.AioRpcError:
    """The reason why a call ended; a failed write into it does not tell."""
    first, last = await rpc.initial_metadata(), await rpc.trailing_metadata()
    return grpc.aio.AioRpcError(await rpc.code(), first, last, await rpc.details())


def _waits() -> Iterator[float]:
    """Pauses that double, with jitter, so that many nodes do not call at the same moment."""
    longest = _FIRST_WAIT
    while True:
        yield longest * random.uniform(0.5, 1.0)
        longest = min(2 * longest, _LONGEST_WAIT)
