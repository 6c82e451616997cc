"""One process on a network: an edge server or a client, its connections and its health page."""

import asyncio
import shutil
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdfeel.core.errors import RunError, SdfeelError
from sdfeel.core.run_files import AUDIT, STATE, STATUS, secret_of
from sdfeel.live.audit import AuditLog
from sdfeel.live.client import Client, Membership, Train
from sdfeel.live.edge.policy import PATIENT, Policy
from sdfeel.live.epochs import (
    EPOCH_BYTES,
    EpochBook,
    Placed,
    in_files,
    placed,
    proven,
    remember,
    remembered,
)
from sdfeel.live.failover import Failover
from sdfeel.live.health import (
    Health,
    HealthPage,
    cannot_write,
    disk_trouble,
    last_round,
    last_time,
    write_status,
)
from sdfeel.live.protocol import (
    RECORD_BYTES,
    Agreed,
    Link,
    Reception,
    Who,
    seconds,
    whole,
)
from sdfeel.live.self_checks import (
    LONGEST,
    PULSE,
    Pulse,
    Rescued,
    alone,
    rescue,
    until_removed,
    until_writable,
)
from sdfeel.live.statements import ClientDesk
from sdfeel.live.store import Damaged, Store, of_disk
from sdfeel.live.transport import Caller, Peer, Server
from sdfeel.live.transport.errors import Refused, Unable
from sdfeel.live.transport.limits import Limits
from sdfeel.live.trust.allow_list import AllowList
from sdfeel.live.trust.identity import Identity, Wallet

if TYPE_CHECKING:  # a client on a device has no torch
    from sdfeel.live.edge.server import Edge
    from sdfeel.live.edge.state import ServerState
    from sdfeel.live.federation import Federation

Tell = Callable[[str], None]
GREETING = 5.0  # seconds for another server to tell whether it accepts us
BACKUPS, KEEP_BACKUPS = "backups", 5
WITH_MODEL = ("work", "start", "result", "model", "measured", "current", "lock", "apply")
KINDS = {
    "client": ("work", "start", "result", "mask", "here", "epoch"),
    "edge": ("model", "lock", "apply", "here", "epoch", "start"),
    "operator": ("status", "rounds", "measured", "current", "stop", "backup"),
}


@dataclass(frozen=True)
class NodeSetting:
    """A node's own settings."""

    identity: Identity
    directory: Path  # of the node, with its status and its state
    peers: Mapping[int, str]  # edge servers' addresses
    allow: Path  # the allow-list; edge servers must have it, others may
    health: str | None = None  # host:port of the page for probes
    orphaned: Callable[[], bool] = lambda: False  # has the launcher gone? Then the node ends
    epochs: Path | None = None  # the directory of signed versions of the network


@dataclass(frozen=True)
class Service:
    """The settings that only an edge server has."""

    listen: str
    policy: Policy = PATIENT


def limits_of(federation: Agreed) -> Limits:
    """The limits of a node: bodies no larger than a model, or, for work, a model and its rows."""
    model = federation.schema.max_bytes
    bodies = {**dict.fromkeys(WITH_MODEL, model), "work": model * (1 + federation.along)}
    bodies |= {"rounds": 2 * RECORD_BYTES, "epoch": EPOCH_BYTES, "mask": federation.letters}
    return Limits(bodies=bodies)


def links(
    federation: Agreed,
    setting: NodeSetting,
    servers: Sequence[int],
    tell: Tell = lambda line: None,
    audit: AuditLog | None = None,  # of calls that we make; a server audits those that it gets
) -> dict[int, Link]:
    """Links to other servers."""
    bounds = limits_of(federation)
    allow = AllowList(setting.allow, tell) if setting.allow.is_file() else None
    if allow is None:
        tell(
            f"there is no allow-list at {setting.allow}, so a revoked edge server would go "
            f"unnoticed: copy the authority's list there"
        )
    found = {}
    for d in servers:
        if d not in setting.peers:
            raise SdfeelError(f"the node file has no address for edge-{d}: add it under [peers]")
        peer = Peer(setting.peers[d], setting.identity, f"edge/{d}", bounds, allow, tell)
        if audit is not None:
            peer.audit = audit.note
        me = _short(setting.identity)
        found[d] = Link(f"edge-{d}", peer, federation.digest, federation.about, me, tell)
    return found


def _short(identity: Identity) -> str:
    return f"{identity.role}-{identity.number}"


async def run_edge(
    federation: "Federation", setting: NodeSetting, service: Service, tell: Tell
) -> None:
    """Serve until all rounds are done and the operator stops this server.

    When the disk fails, one life of the server (`EdgeLife`) ends; the next begins, from what is on
    the disk, as soon as that can be written again.
    """
    life = EdgeLife(federation, setting, service, tell)
    health = _health(setting, life.status)
    life.report = health.status

    async def work() -> None:
        pause = PULSE
        while True:
            began = time.monotonic()
            try:
                await life.live()
                return
            except Rescued as found:
                tell(str(found))
            except (OSError, sqlite3.Error) as error:
                why = disk_trouble(error)
                if why is None:
                    raise
                health.paused = cannot_write(setting.directory, why)
                if not health.trouble:  # otherwise it was logged already
                    tell(health.paused)
                pause = PULSE if time.monotonic() - began > LONGEST else min(2 * pause, LONGEST)
                await until_writable(setting.directory, pause)
                health.paused = ""
                tell(f"can write to {setting.directory} again, after '{why}': continuing there")

    await _alive(setting, health, life.audit, work, tell)


class EdgeLife:
    """One life of an edge server: from its files to the end, or to a failure of the disk."""

    def __init__(
        self, federation: "Federation", setting: NodeSetting, service: Service, tell: Tell
    ) -> None:
        self._federation, self._setting, self._service = federation, setting, service
        self._tell = tell
        self.audit = AuditLog(setting.directory / AUDIT, tell)
        self._server = Server(tell, self.audit.note)
        self._reception = Reception(
            _short(setting.identity), federation.about, tell, federation.libraries
        )
        self._edge: Edge | None = None
        self._done = last_round(setting.directory)  # before this process
        self.report = self.status  # for an operator

    def status(self) -> dict[str, Any]:
        counts = self._server.counts
        return {
            **({"round": self._done} if self._edge is None else self._edge.status()),
            **{key: counts[key] for key in ("denied", "refused", "busy", "slow", "failed", "cut")},
            "audit": {"lines": self.audit.lines, "head": self.audit.head},
        }

    async def live(self) -> None:
        from sdfeel.live.edge.journal import Journal
        from sdfeel.live.edge.server import Edge
        from sdfeel.live.edge.server_statements import Recorder

        federation, setting, tell = self._federation, self._setting, self._tell
        me = setting.identity.number
        others = [d for d in federation.net.servers if d != me]
        store = Store(setting.directory / STATE)
        try:
            self._check_kept(store)
            ways = links(federation, setting, others, tell)
            wallet = Wallet(setting.identity)
            book = EpochBook(store, federation.digest, lambda: wallet.current().ca, setting.epochs)
            epochs = book if federation.synchronous else None  # others have no common round
            policy, who = self._service.policy, wallet.current
            recorder = Recorder.of(who, federation, store, me, setting.directory, policy)
            find = partial(self._find, federation)
            edge = Edge(federation, me, store, ways, policy, tell, epochs, recorder, find)
            edge.journal = Journal(setting.directory, federation, me, store.records())
            self._edge, self._lost = edge, asyncio.get_running_loop().create_future()
            net, allow = federation.net, AllowList(setting.allow, tell)
            bounds = limits_of(federation).with_room_for(len(net.samples) + len(net.servers))
            port = await self._server.start(
                self._service.listen, setting.identity, allow, self._handle, bounds, _authorise
            )
            tell(f"listening on port {port}, round {edge.known.k + 1}")
            await self._until_stopped(edge, ways)
        except (FileNotFoundError, sqlite3.Error) as error:
            rescue(store)
            if isinstance(error, OSError) or of_disk(error):
                raise
            raise Damaged(store.directory, error) from None
        finally:
            await self._server.stop(grace=1.0)
            with suppress(sqlite3.Error):
                store.close()

    def _check_kept(self, store: Store) -> None:
        """Refuse to begin again, unasked, if this server has finished rounds but lost its state."""
        if self._done and store.fact(STATE) is None:
            raise RunError(
                f"{store.directory} is empty, but this server has finished {self._done} rounds: "
                f"restore a backup with `sdfeel deploy restore` or see `sdfeel deploy reseed`; to "
                f"begin the whole run again, remove {STATUS} next to it, too"
            )

    def _find(self, federation: "Federation", server: int, address: str) -> Link:
        """Connect to a server that a version of the network names."""
        setting = replace(self._setting, peers={server: address})
        return links(federation, setting, [server], self._tell)[server]

    async def _until_stopped(self, edge: "Edge", ways: Mapping[int, Link]) -> None:
        rounds = asyncio.ensure_future(edge.run())
        stop = asyncio.ensure_future(edge.stopped.wait())
        greeting = asyncio.ensure_future(greet(ways, self._service.policy, self._tell))
        kept = asyncio.ensure_future(until_removed(edge.store))
        jobs: set[asyncio.Future[Any]] = {rounds, stop, greeting, kept, self._lost}
        try:
            while not stop.done():  # others may still ask for the results of the last round
                left = [job for job in jobs if not job.done()]
                await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in (rounds, greeting, kept, self._lost):
                    if task.done():
                        task.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _handle(
        self, caller: Caller, kind: str, header: dict[str, Any], body: bytes | None
    ) -> tuple[dict[str, Any], bytes | None]:
        who, edge = Who(caller.role, caller.number), self._edge
        assert edge is not None  # it exists before the first call is served
        self._reception.about = edge.federation.about
        greeting = self._reception.meet(who, header)
        if greeting is None:
            return {"introduce": True}, None
        try:
            if (kind, who.role) == ("status", "operator"):
                answer, content = self.report(), None
            elif (kind, who.role) == ("backup", "operator"):
                answer, content = await self._backup(edge, header), None
            else:
                answer, content = await edge.handle(who, kind, header, body)
        except (OSError, sqlite3.Error, Damaged) as error:
            why = disk_trouble(error)
            if why is None and isinstance(error, OSError):
                raise
            if not self._lost.done():  # end this life of the server
                self._lost.set_exception(error)
            place = self._setting.directory
            raise Unable(
                cannot_write(place, why) if why is not None else f"the state in {place} is damaged"
            ) from None
        return {**answer, **greeting}, content

    async def _backup(self, edge: "Edge", header: dict[str, Any]) -> dict[str, Any]:
        """Copy this server's state as it opens the round for which all servers are asked."""
        k = whole(header, "round")
        place = self._setting.directory / BACKUPS / f"round-{k + 1}"

        def look() -> bool | None:
            return True if place.is_dir() else None

        if k < edge.known.k:
            raise Refused(
                f"edge-{edge.number} is beyond round {k + 1} already: ask for a later round"
            )
        if edge.known.k == k and not place.is_dir():
            edge.store.backup(place)

        def opened(after: "ServerState") -> None:
            if after.k == k:
                edge.store.backup(place)

        edge.opened = opened
        there = await edge.bell.wait_for(look, seconds(header, "wait"))
        old = sorted(place.parent.glob("round-*"), key=lambda each: each.stat().st_mtime)
        for each in old[:-KEEP_BACKUPS]:
            shutil.rmtree(each, ignore_errors=True)
        return {"place": str(place)} if there else {"early": True}


async def greet(ways: Mapping[int, Link], policy: Policy, tell: Tell) -> None:
    """Find out at once whether the other servers and this one accept each other.

    If servers may be dropped, one that does not accept us is only logged, and left out later, when
    its model is due. Otherwise we end, but only if no other server accepts us either: a single
    server must not be able to end another.
    """

    async def one(link: Link) -> None:
        try:
            await link.insist("here", {})
        except SdfeelError as error:
            others = [other for other in ways.values() if other is not link]
            accepted = await asyncio.gather(*map(_accepted, others))
            if policy.dead_edge == "wait" and not any(accepted):
                raise
            tell(f"{link.name} does not accept us, or cannot be trusted: {error}")

    await asyncio.gather(*map(one, ways.values()))


async def _accepted(link: Link) -> bool:
    try:
        await link.ask("here", {}, seconds=GREETING)
    except SdfeelError:
        return False
    return True


async def run_client(
    member: Membership, setting: NodeSetting, samples: int, train: Train, tell: Tell
) -> None:
    """Work until all servers are done, or the network no longer has a place for this client."""
    me, authority = setting.identity.number, Wallet(setting.identity)
    later = in_files(setting.epochs, authority.current().ca) if setting.epochs is not None else []
    last = remembered(setting.directory, authority.current().ca, member.digest)
    found = placed(member, setting.peers, later, me, last)
    if found is None:
        return tell("nothing to do: this scheme gives this client no server to work for")
    client = Client(member.schema, me, samples, Failover({}), train, member.coding, tell=tell)
    audit = AuditLog(setting.directory / AUDIT, tell)
    client.desk = ClientDesk.of(
        authority.current, member.digest, setting.directory, me, member.about.arithmetic
    )
    client.most, client.round = member.most, last_round(setting.directory)
    store = None

    async def work() -> None:
        place: Placed | None = found
        while place is not None:
            now, where = place[0], replace(setting, peers=place[1])
            refuges = [d for d in now.refuges if d in where.peers]
            ways = links(now, where, [*now.servers, *refuges], tell, audit)
            own, others = ({d: ways[d] for d in part} for part in (now.servers, refuges))
            client.failover, client.epoch = Failover(own, others, tell), now.epoch
            while True:
                client.outdated = None
                await client.run()
                if client.outdated is None:
                    return
                news = await proven(client, ways, authority.current().ca, member.digest)
                if news:
                    break
            latest = news[-1].number
            later_still = [each for each in later if each.number > latest]
            if news[-1].servers(me):
                remember(setting.directory, news[-1])
            left = replace(now, servers=(), epoch=latest)
            place = placed(left, where.peers, [news[-1], *later_still], me)
        tell(f"this client has left the network after {client.rounds} rounds")

    try:
        if member.keeps:
            store = Store(setting.directory / STATE)
            if client.round and store.blank:
                raise RunError(
                    f"{store.directory} is empty, but this client has finished round "
                    f"{client.round}: what it keeps from round to round is lost; restore the "
                    f"directory, or remove it and {STATUS} next to it to go on with other bits"
                )
            client.kept, client.rows = member.memory(store), tuple(member.rows)
            client.guard, client.private = member.guard, member.private
            client.noisy_steps = member.noisy_steps
            client.masking = member.masking
            client.secret = secret_of(setting.directory) if member.private else 0
        await _alive(setting, _health(setting, client.status), audit, work, tell)
    except (OSError, sqlite3.Error) as error:
        why = disk_trouble(error)
        if why is None:
            raise
        raise SdfeelError(
            f"cannot write to {setting.directory} ({why}): nothing that was acknowledged is lost; "
            f"make room or make it writable, and start the client again"
        ) from None
    finally:
        if store is not None:
            with suppress(sqlite3.Error):
                store.close()


def _authorise(caller: Caller, kind: str, header: dict[str, Any]) -> None:
    """Refuse what a role may not ask for, before any of the body is read."""
    if kind not in KINDS.get(caller.role, ()):
        raise Refused(f"{caller.role}/{caller.number} may not ask for '{kind}'")


def _health(setting: NodeSetting, ask: Callable[[], Mapping[str, Any]]) -> Health:
    return Health(_short(setting.identity), setting.identity.role, ask)


async def _alive(
    setting: NodeSetting,
    health: Health,
    audit: AuditLog,
    work: Callable[[], Awaitable[None]],
    tell: Tell,
) -> None:
    """Do the work and report health; a signal ends it cleanly."""
    async with alone(setting.directory):
        await _alive_alone(setting, health, audit, work, tell)


async def _alive_alone(
    setting: NodeSetting,
    health: Health,
    audit: AuditLog,
    work: Callable[[], Awaitable[None]],
    tell: Tell,
) -> None:
    last_time(setting.directory, tell)
    page = HealthPage(health)
    if setting.health is not None:
        health.page = await page.start(setting.health)
        tell(f"health and metrics on {health.page}")
    job = asyncio.ensure_future(work())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        hangs_on = number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN  # nohup
        if not hangs_on:
            asyncio.get_running_loop().add_signal_handler(number, job.cancel)
    pulse = asyncio.ensure_future(Pulse(setting, health, audit, job, tell).beat())
    try:
        await job
    except asyncio.CancelledError:
        tell("stopped; it continues from here when it is started again")
    except SdfeelError as error:
        health.failed = str(error)
        raise
    finally:
        pulse.cancel()
        audit.flush(everything=True)
        with suppress(OSError):
            write_status(setting.directory, {**health.status(), "ended": True})
        await page.stop()
