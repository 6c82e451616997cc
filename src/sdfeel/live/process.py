"""One process on a network: an edge server or a client with its ears, mouth and pulse."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sdfeel.core.errors import SdfeelError
from sdfeel.live.client import Client, Membership, Train
from sdfeel.live.edge.policy import PATIENT, Policy
from sdfeel.live.failover import Failover
from sdfeel.live.health import Health, HealthPage, write_status
from sdfeel.live.protocol import RECORD_BYTES, About, Link, Reception, Who
from sdfeel.live.transport import Caller, Peer, Server
from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.limits import Limits
from sdfeel.live.transport.tensors import Schema
from sdfeel.live.trust.allow_list import AllowList
from sdfeel.live.trust.identity import Identity

if TYPE_CHECKING:  # a client on a device has no torch
    from sdfeel.live.federation import Federation

Tell = Callable[[str], None]
GREETING = 5.0  # seconds for another server to say whether it accepts us
PULSE = 1.0  # seconds between two looks at a node's own state
WITH_MODEL = ("work", "start", "result", "model", "measured", "current", "lock", "apply")
KINDS = {
    "client": ("work", "start", "result", "here"),
    "edge": ("model", "lock", "apply", "here"),
    "operator": ("status", "rounds", "measured", "current", "stop"),
}


@dataclass(frozen=True)
class NodeSetting:
    """What a node is told about itself."""

    identity: Identity
    directory: Path  # of the node: status and state live here
    peers: Mapping[int, str]  # edge servers' addresses
    allow: Path  # the list of certificates; edge servers must have it, others may
    health: str | None = None  # host:port of the page for probes
    orphaned: Callable[[], bool] = lambda: False  # then the node ends


@dataclass(frozen=True)
class Service:
    """What only an edge server is told."""

    listen: str
    policy: Policy = PATIENT


class Agreed(Protocol):
    """What two nodes must have in common to speak."""

    @property
    def digest(self) -> str: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def about(self) -> About: ...


def limits_of(federation: Agreed) -> Limits:
    """Bodies as large as a model, and no larger."""
    bodies = dict.fromkeys(WITH_MODEL, federation.schema.max_bytes)
    return Limits(bodies={**bodies, "rounds": 2 * RECORD_BYTES})


def links(
    federation: Agreed, setting: NodeSetting, servers: Sequence[int], tell: Tell = lambda line: None
) -> dict[int, Link]:
    """Ways to other servers."""
    bounds = limits_of(federation)
    allow = AllowList(setting.allow, tell) if setting.allow.is_file() else None
    if allow is None:
        tell(f"there is no allow-list at {setting.allow}: a revoked edge server is not noticed")
    found = {}
    for d in servers:
        if d not in setting.peers:
            raise SdfeelError(f"the node file has no address for edge-{d}: add it under [peers]")
        peer = Peer(setting.peers[d], setting.identity, f"edge/{d}", bounds, allow)
        me = _short(setting.identity)
        found[d] = Link(f"edge-{d}", peer, federation.digest, federation.about, me, tell)
    return found


def _short(identity: Identity) -> str:
    return f"{identity.role}-{identity.number}"


async def run_edge(
    federation: "Federation", setting: NodeSetting, service: Service, tell: Tell
) -> None:
    """Serve until all rounds are done and somebody says stop."""
    from sdfeel.live.edge.journal import Journal
    from sdfeel.live.edge.server import Edge
    from sdfeel.live.store import Store

    me = setting.identity.number
    others = [d for d in federation.net.servers if d != me]
    store = Store(setting.directory / "state")
    ways = links(federation, setting, others, tell)
    edge = Edge(federation, me, store, ways, service.policy, tell)
    edge.journal = Journal(setting.directory, federation, me, store.records())
    server = Server(tell)
    reception = Reception(_short(setting.identity), federation.about, tell)

    def status() -> dict[str, Any]:
        return {
            **edge.status(),
            **{key: server.counts[key] for key in ("denied", "refused", "cut")},
        }

    async def handle(
        caller: Caller, kind: str, header: dict[str, Any], body: bytes | None
    ) -> tuple[dict[str, Any], bytes | None]:
        who = Who(caller.role, caller.number)
        greeting = reception.meet(who, header)
        if greeting is None:
            return {"introduce": True}, None
        answer, content = await edge.handle(who, kind, header, body)
        return {**answer, **greeting}, content

    bounds = limits_of(federation)
    allow = AllowList(setting.allow, tell)
    port = await server.start(service.listen, setting.identity, allow, handle, bounds, _authorise)
    tell(f"listening on port {port}, round {edge.known.k + 1}")

    async def work() -> None:
        rounds = asyncio.ensure_future(edge.run())
        stop = asyncio.ensure_future(edge.stopped.wait())
        greeting = asyncio.ensure_future(greet(ways, service.policy, tell))
        jobs: set[asyncio.Future[Any]] = {rounds, stop, greeting}
        try:
            while not stop.done():  # others may still ask for what was done last
                left = [job for job in jobs if not job.done()]
                await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in (rounds, greeting):
                    if task.done():
                        task.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    try:
        await _alive(setting, status, work(), tell)
    finally:
        await server.stop(grace=1.0)
        store.close()


async def greet(ways: Mapping[int, Link], policy: Policy, tell: Tell) -> None:
    """Find out at once whether other servers and this one accept each other.

    Where servers may be dropped, one that does not is left out when its turn comes. Else we end
    only if nobody else accepts us either: a single server must not be able to end another.
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
    """Work until all servers are done."""
    if not member.servers:
        tell("this scheme gives this client no work")
        return
    refuges = [d for d in member.refuges if d in setting.peers]
    ways = links(member, setting, [*member.servers, *refuges], tell)
    own, others = ({d: ways[d] for d in part} for part in (member.servers, refuges))
    me, failover = setting.identity.number, Failover(own, others, tell)
    client = Client(member.schema, me, samples, failover, train, tell)
    await _alive(setting, client.status, client.run(), tell)


def _authorise(caller: Caller, kind: str, header: dict[str, Any]) -> None:
    """Turn away what a role may not ask for, before any of its body is read."""
    if kind not in KINDS.get(caller.role, ()):
        raise Refused(f"{caller.role}/{caller.number} may not ask for '{kind}'")


async def _alive(
    setting: NodeSetting,
    ask: Callable[[], Mapping[str, Any]],
    work: Awaitable[None],
    tell: Tell,
) -> None:
    """Do the work while telling the world how it goes; a signal ends it in good order."""
    name = setting.identity.parsed
    health = Health(f"{name.role}-{name.number}", name.role, ask)
    page = HealthPage(health)
    if setting.health is not None:
        health.page = await page.start(setting.health)
        tell(f"health and metrics on {health.page}")
    job = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, job.cancel)
    pulse = asyncio.ensure_future(_pulse(setting, health, job))
    try:
        await job
    except asyncio.CancelledError:
        tell("stopped; it goes on from here when started again")
    except SdfeelError as error:
        health.failed = str(error)
        raise
    finally:
        pulse.cancel()
        write_status(setting.directory, health.status())
        await page.stop()


async def _pulse(setting: NodeSetting, health: Health, job: "asyncio.Future[None]") -> None:
    while True:
        with suppress(OSError):
            write_status(setting.directory, health.status())
        if setting.orphaned():
            job.cancel()
        await asyncio.sleep(PULSE)
