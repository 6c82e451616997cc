"""The serving side: the certificate tells who calls, then one limit after another is checked."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from sdfeel.core.errors import InputError, printable
from sdfeel.live.audit import ANSWERED, AuditedCall
from sdfeel.live.transport.connections import ConnectionGuard, allow_descriptors, hasten
from sdfeel.live.transport.envelope import GO, METHOD, Envelope
from sdfeel.live.transport.errors import Refused, Unable
from sdfeel.live.transport.limits import INLINE, Limits, for_server
from sdfeel.live.transport.stream import Conversation, Stalled
from sdfeel.live.trust.allow_list import AllowList
from sdfeel.live.trust.identity import Identity, Wallet, described
from sdfeel.live.trust.names import Name

_LOG = logging.getLogger(__name__)
_LONGEST_REASON = 500
_LAST_CALLS = 5.0  # seconds for cancelled calls to end
_REPORT_EVERY = 10.0  # seconds between two lines about calls of one kind
Code = grpc.StatusCode


@dataclass(frozen=True)
class Caller:
    """The caller, as proved by its certificate."""

    role: str
    number: int
    name: str
    serial: str

    def must_be(self, role: str, number: int) -> None:
        """Refuse a message that claims to come from somebody else."""
        if (self.role, self.number) != (role, number):
            raise Refused(f"{self.role}/{self.number} may not speak for {role}/{number}")


Answer = tuple[dict[str, Any], bytes | None]
Handler = Callable[[Caller, str, dict[str, Any], bytes | None], Awaitable[Answer]]
Authorise = Callable[[Caller, str, dict[str, Any]], None]


class _Abort(Exception):
    """Ends a call with a status; `what` is the word under which it is counted."""

    def __init__(self, what: str, code: Code, reason: str) -> None:
        self.what, self.code, self.reason = what, code, reason


class Server:
    """Serves one handler. `counts` has the number of calls by how they ended, for metrics."""

    def __init__(
        self,
        tell: Callable[[str], None] = lambda line: None,
        audit: Callable[[AuditedCall], None] = lambda call: None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._tell, self._audit = tell, audit
        self._told: dict[str, float] = {}  # when each kind of refusal was last reported
        self._server: grpc.aio.Server | None = None
        self._watch: asyncio.Future[None] | None = None
        self._active: Counter[str] = Counter()  # calls by serial number
        self._uploads: Counter[str] = Counter()  # bodies on their way, by serial number
        self._downloads: Counter[str] = Counter()  # long answers on their way, by serial number

    async def start(
        self,
        address: str,
        identity: Identity,
        allow: AllowList,
        handler: Handler,
        limits: Limits,
        authorise: Authorise | None = None,
    ) -> int:
        """Listen on `host:port` and return the port, which the system chooses if it is 0.

        `authorise` sees the caller and the header before any of the body is read, and raises
        `Refused` to turn the call away.
        """
        self._name, self._allow = identity.name, allow
        self._handler, self._authorise, self._limits = handler, authorise, limits
        allow_descriptors(limits.connections)
        server = grpc.aio.server(options=for_server(limits), maximum_concurrent_rpcs=limits.calls)
        server.add_generic_rpc_handlers((_OneMethod(self._serve),))
        try:
            port = server.add_secure_port(address, _credentials(Wallet(identity, self._tell)))
        except RuntimeError:
            raise InputError(
                f"cannot listen on {address}: give a free port of this host as host:port"
            ) from None
        await server.start()
        self._server = server
        self._guard = ConnectionGuard(limits, int(port), allow.permits, self.counts)
        self._watch = asyncio.ensure_future(self._guard.run())
        hasten(limits)
        return int(port)

    async def stop(self, grace: float = 1.0) -> None:
        """Take no more calls, let running ones end within `grace` seconds, cancel the others."""
        if self._server is not None:
            with suppress(TimeoutError):  # gRPC may wait for ever for a call that has gone
                async with asyncio.timeout(grace + _LAST_CALLS):
                    await self._server.stop(grace)
            self._server = None
        if self._watch is not None:
            self._watch.cancel()

    async def _serve(self, _requests: object, context: Any) -> None:
        self.counts["calls"] += 1
        talk = Conversation(context, self._limits)
        who, outcome, reason = ("unknown", ""), ANSWERED, ""
        try:
            who = self._named(context)
            caller = self._caller(*who)
            most = self._limits.calls_per_caller
            guarded = self._guard.call(context.peer(), caller.serial, caller.name)
            with guarded, self._place(self._active, caller, most, "calls"):
                await self._bounded(caller, talk)
        except _Abort as end:
            outcome, reason = end.what, _brief(end.reason)
            self.counts[end.what] += 1
            self._report(end, context.peer())
            if end.what == "denied":
                self._guard.deny(context.peer())
            _LOG.debug("call from %s ended: %s", context.peer(), end.reason)
            await talk.hear_out()
            with suppress(grpc.aio.InternalError):  # the caller has gone in the meantime
                await context.abort(end.code, reason)
        finally:
            moved = (talk.bytes_in, talk.bytes_out)
            self._audit(AuditedCall(*who, talk.kind, outcome, *moved, context.peer(), reason))

    def _may_tell(self, what: str) -> bool:
        """Has no line of this kind been logged for a while?"""
        now = asyncio.get_running_loop().time()
        if now - self._told.get(what, float("-inf")) < _REPORT_EVERY:
            return False
        self._told[what] = now
        return True

    def _report(self, end: _Abort, peer: str) -> None:
        """Report calls that were turned away, but not every one."""
        if end.what != "gone" and self._may_tell(end.what):
            count = self.counts[end.what]
            self._tell(f"{end.what}: a call from {peer} ({count} so far): {_brief(end.reason)}")

    def _named(self, context: Any) -> tuple[str, str]:
        """The name and the serial number in the caller's certificate."""
        proof = context.auth_context().get("x509_pem_cert", [b""])[0]
        try:
            name, serial = described(bytes(proof))
        except InputError as error:
            raise _Abort("denied", Code.UNAUTHENTICATED, str(error)) from None
        return str(name), serial

    def _caller(self, called: str, serial: str) -> Caller:
        """The caller, if it belongs to this federation and is on the allow-list."""
        name = Name.parse(called)
        me = Name.parse(self._name)
        if name.federation != me.federation:
            reason = f"{name} belongs to another federation than {me}"
            raise _Abort("denied", Code.UNAUTHENTICATED, reason)
        if self._allow.gone:  # it may be back soon, and nobody was revoked
            raise _Abort("failed", Code.INTERNAL, f"{me} has no allow-list: it trusts nobody now")
        if not self._allow.permits(serial, str(name)):
            reason = f"{me} does not accept certificate {serial} of {name}: it was revoked"
            raise _Abort("denied", Code.PERMISSION_DENIED, reason)
        return Caller(name.role, name.number, str(name), serial)

    @contextmanager
    def _place(self, taken: Counter[str], caller: Caller, most: int, what: str) -> Iterator[None]:
        """Limits what one certificate may have running, so that others find room."""
        if taken[caller.serial] >= most:
            reason = f"{caller.name} has {most} {what} running: wait for one to end"
            raise _Abort("busy", Code.RESOURCE_EXHAUSTED, reason)
        taken[caller.serial] += 1
        try:
            yield
        finally:
            taken[caller.serial] -= 1
            if not taken[caller.serial]:
                del taken[caller.serial]

    async def _bounded(self, caller: Caller, talk: Conversation) -> None:
        """Serve a call within its deadline, not counting transfers; turn failures into statuses."""
        seconds = self._limits.call_seconds
        try:
            async with asyncio.timeout(seconds) as clock:
                await self._converse(caller, talk, clock)
        except _Abort:
            raise
        except Unable as unable:
            raise _Abort("failed", Code.INTERNAL, str(unable)) from None
        except Refused as refusal:
            raise _Abort("refused", Code.FAILED_PRECONDITION, refusal.reason) from None
        except Stalled as stalled:
            raise _Abort("slow", Code.DEADLINE_EXCEEDED, str(stalled)) from None
        except grpc.aio.BaseError:
            raise _Abort("gone", Code.CANCELLED, "the caller has gone") from None
        except Exception as error:
            if isinstance(error, TimeoutError) and clock.expired():
                reason = f"the call took more than {seconds:g} s"
                raise _Abort("slow", Code.DEADLINE_EXCEEDED, reason) from None
            if self._may_tell("traceback"):
                _LOG.exception("a handler failed")
            reason = "the peer failed to handle the message: see its log"
            raise _Abort("failed", Code.INTERNAL, reason) from None
        finally:
            self.counts["bytes_in"] += talk.bytes_in
            self.counts["bytes_out"] += talk.bytes_out

    async def _converse(self, caller: Caller, talk: Conversation, clock: asyncio.Timeout) -> None:
        envelope, body = await talk.receive_envelope()
        kind, header = envelope.kind, envelope.header
        if self._authorise is not None:
            self._authorise(caller, kind, header)
        talk.kind = kind
        if envelope.size and body is None:
            self._extend(clock, envelope.size)
            body = await self._body(caller, talk, envelope.size)
        header, answer = await self._handler(caller, kind, header, body)
        del body  # an answer may take long to leave
        first = Envelope.of(kind, header, answer)
        if answer is None or len(answer) <= INLINE:
            await talk.send(first.encode(answer))
        else:
            self._extend(clock, len(answer))
            most = self._limits.downloads_per_caller
            with self._place(self._downloads, caller, most, "downloads"):
                await talk.send(first.encode())
                await talk.send_body(answer)
        self.counts["answered"] += 1

    def _extend(self, clock: asyncio.Timeout, size: int) -> None:
        """Extend the deadline by the time that a slow link needs for a body."""
        when = clock.when()
        assert when is not None
        clock.reschedule(when + self._limits.transfer_seconds(size))

    async def _body(self, caller: Caller, talk: Conversation, size: int) -> bytes:
        most = self._limits.uploads_per_caller
        with self._place(self._uploads, caller, most, "uploads"):
            await talk.send(GO)
            return await talk.receive_body(size)


def _credentials(wallet: Wallet) -> grpc.ServerCredentials:
    """The certificate that TLS shows and the authorities it trusts, read at every handshake."""
    shown = wallet.current()

    def config(identity: Identity) -> Any:
        pair = [(identity.key, identity.cert)]
        return grpc.ssl_server_certificate_configuration(pair, identity.ca)

    def fetched() -> Any:
        nonlocal shown
        found = wallet.current()
        if found is shown:
            return None  # as it was
        shown = found
        return config(found)

    return grpc.dynamic_ssl_server_credentials(
        config(shown), fetched, require_client_authentication=True
    )


def _brief(reason: str) -> str:
    """A short, printable reason: it may quote what a stranger sent."""
    return printable(reason.encode("ascii", "backslashreplace").decode()[:_LONGEST_REASON])


class _OneMethod(grpc.GenericRpcHandler):
    """Routes the one method; gRPC answers every other with UNIMPLEMENTED."""

    def __init__(self, behaviour: Callable[[object, Any], Awaitable[None]]) -> None:
        self._handler: Any = grpc.stream_stream_rpc_method_handler(behaviour)

    def service(self, handler_call_details: Any) -> Any:
        return self._handler if handler_call_details.method == METHOD else None
