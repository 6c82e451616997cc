"""Who may keep a connection: several times a second, all that gRPC has opened are checked.

gRPC counts connections, but not by caller, and has no call that ends one. But the sockets belong to
this process: they are found among its descriptors, recognised by their peers' addresses, and shut
down, which gRPC takes for the other side hanging up. None of this touches the data. It needs /proc,
so outside Linux there is only gRPC's own limit.

In the same way, the system learns for every connection how long packets may go unacknowledged. gRPC
has a single number for that and for answers to its own pings, which must be large for slow links.
"""

import asyncio
import os
import random
import resource
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from stat import S_ISSOCK
from time import monotonic
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from sdfeel.live.transport.limits import Limits

LOOK = 0.2  # seconds between two checks
OTHER_DESCRIPTORS = 120  # of files, pipes and connections that this process makes
LAST_WORD = 0.5  # seconds in which a denied caller can still read why
_OWN = "/proc/self/fd"
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_TCP_RTO_MAX_MS = 44  # Linux 6.15; Python has no name for it yet
_LONGEST_RETRY = 1000  # milliseconds between two tries to send a packet, on kernels that can
Key = tuple[str, int]  # an address and a port


@dataclass
class Connection:
    """An accepted connection. The first authorised call over it makes the caller its owner."""

    inode: int
    descriptor: int
    peer: Key
    since: float
    owner: tuple[str, str] | None = None  # serial number and name of its certificate
    calls: int = 0
    used: float = 0.0

    def shut(self) -> None:
        """End it, unless the descriptor has become something else in the meantime."""
        with suppress(OSError):
            copy = os.dup(self.descriptor)
            if os.fstat(copy).st_ino != self.inode:
                os.close(copy)
                return
            with socket.socket(fileno=copy) as own:
                own.shutdown(socket.SHUT_RDWR)


@dataclass
class _Calls:
    """The caller on a connection, and how many calls are under way."""

    owner: tuple[str, str]
    count: int = 0


@dataclass
class ConnectionGuard:
    """Keeps the connections of one listening port within a node's limits."""

    limits: Limits
    port: int
    permits: Callable[[str, str], bool]
    counts: Counter[str]
    clock: Callable[[], float] = monotonic
    known: dict[int, Connection] = field(default_factory=dict)  # by inode
    _others: set[int] = field(default_factory=set)  # inodes of sockets that are not ours
    _by_peer: dict[Key, Connection] = field(default_factory=dict)
    _denied: dict[Key, float] = field(default_factory=dict)  # when to end them
    _calls: dict[Key, "_Calls"] = field(default_factory=dict)  # under way, or since the last check

    async def run(self) -> None:
        """Check for ever, every `LOOK` seconds."""
        while sys.platform == "linux":
            self.look()
            await asyncio.sleep(LOOK)

    @contextmanager
    def call(self, peer: str, serial: str, name: str) -> Iterator[None]:
        """An authorised call is under way on the connection from `peer`, as gRPC writes it."""
        key = parsed(peer)
        calls = self._calls.setdefault(key, _Calls((serial, name)))
        calls.owner, calls.count = (serial, name), calls.count + 1
        mine = self._by_peer.get(key)  # a new connection is found at the next check
        if mine is not None:
            mine.owner, mine.calls = calls.owner, calls.count
        try:
            yield
        finally:
            calls.count -= 1
            mine = self._by_peer.get(key)
            if mine is not None:
                mine.owner, mine.calls, mine.used = calls.owner, calls.count, self.clock()

    def deny(self, peer: str) -> None:
        """End a denied caller's connection soon, once it has had time to read why."""
        self._denied.setdefault(parsed(peer), self.clock() + LAST_WORD)

    def look(self) -> None:
        """Find new connections, forget closed ones, and end those that may not stay."""
        with suppress(OSError):
            self._find()
        now = self.clock()
        for each in {one.inode: one for one in self._superfluous(now)}.values():
            self.counts["cut"] += 1
            each.shut()
            self._forget(each)

    def _find(self) -> None:
        here = _own_sockets()
        for each in [one for one in self.known.values() if one.inode not in here]:
            self._forget(each)
        self._others &= here.keys()
        for inode, descriptor in here.items():
            if inode not in self.known and inode not in self._others:
                self._meet(inode, descriptor)
        self._calls = {key: calls for key, calls in self._calls.items() if calls.count}

    def _meet(self, inode: int, descriptor: int) -> None:
        peer = None
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.family in _INTERNET and copy.getsockname()[1] == self.port:
                peer = copy.getpeername()  # the listening socket has none
        if peer is None:
            self._others.add(inode)
            return
        found = Connection(inode, descriptor, _key(peer[0], peer[1]), self.clock())
        if found.peer in self._calls:
            calls = self._calls[found.peer]
            found.owner, found.calls, found.used = calls.owner, calls.count, found.since
        self.known[inode] = self._by_peer[found.peer] = found

    def _forget(self, each: Connection) -> None:
        self.known.pop(each.inode, None)
        if self._by_peer.get(each.peer) is each:
            del self._by_peer[each.peer]
        self._denied.pop(each.peer, None)

    def _superfluous(self, now: float) -> Iterator[Connection]:
        everyone = list(self.known.values())
        for one in everyone:
            if one.owner is not None and not self.permits(*one.owner):
                self._denied.setdefault(one.peer, now + LAST_WORD)
        yield from (one for one in everyone if self._denied.get(one.peer, now + 1) <= now)
        here = self._by_peer  # forget who has hung up: another caller may get that port
        self._denied = {key: end for key, end in self._denied.items() if key in here or end > now}
        fresh = [one for one in everyone if one.owner is None]
        limits = self.limits
        yield from (one for one in fresh if now - one.since > limits.first_call_seconds)
        for group in _grouped(fresh, lambda one: one.peer[0]):
            yield from _too_many(group, limits.fresh_per_address)
        yield from _too_many(fresh, (limits.connections + 1) // 2)
        owned = [one for one in everyone if one.owner is not None]
        for group in _grouped(owned, lambda one: one.owner):
            yield from _unused(group, limits.connections_per_caller)
        yield from _unused(owned, (limits.connections + 1) // 2)


def allow_descriptors(connections: int) -> None:
    """Let this process open this many connections and a few files, as far as the system allows."""
    if sys.platform == "linux":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = connections + OTHER_DESCRIPTORS
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _own_sockets() -> dict[int, int]:
    """The descriptors of all sockets of this process, by inode."""
    here: dict[int, int] = {}
    for descriptor in map(int, os.listdir(_OWN)):
        try:
            found = os.fstat(descriptor)
        except OSError:  # the descriptor of the listing itself, which is closed by now
            continue
        if S_ISSOCK(found.st_mode):
            here[found.st_ino] = descriptor
    return here


_hastened: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[None]]" = (
    WeakKeyDictionary()
)


def hasten(limits: Limits) -> None:
    """Make all connections of this process notice lost packets soon, as long as the loop runs.

    One task per event loop does it; calling this again changes nothing.
    """
    loop = asyncio.get_running_loop()
    if sys.platform == "linux" and loop not in _hastened:
        _hastened[loop] = asyncio.ensure_future(_hasten(limits.silence_seconds))


async def _hasten(seconds: float) -> None:
    done: set[int] = set()
    while True:
        with suppress(OSError):
            here = _own_sockets()
            done &= here.keys()
            for inode in here.keys() - done:
                done.add(inode)
                _set_patience(here[inode], seconds)
        await asyncio.sleep(LOOK)


def _set_patience(descriptor: int, seconds: float) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family in _INTERNET and copy.type == socket.SOCK_STREAM:
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
            # The system probes, too: while gRPC waits for the answer to a ping it sends no other,
            # and that answer may have been lost together with the other end of the connection.
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            copy.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_RETRY)


def _grouped(
    connections: Iterable[Connection], by: Callable[[Connection], object]
) -> Iterable[list[Connection]]:
    groups: dict[object, list[Connection]] = defaultdict(list)
    for one in connections:
        groups[by(one)].append(one)
    return groups.values()


def _too_many(connections: list[Connection], most: int) -> list[Connection]:
    """The excess, chosen at random, so that a crowd cannot push out an honest newcomer."""
    return random.sample(connections, max(0, len(connections) - most))


def _unused(connections: list[Connection], most: int) -> list[Connection]:
    """The excess: idle connections, those used least recently first."""
    idle = sorted((one for one in connections if not one.calls), key=lambda one: one.used)
    return idle[: max(0, len(connections) - most)]


def parsed(peer: str) -> Key:
    """An address and a port as gRPC writes them.

    >>> parsed("ipv4:127.0.0.1:50312"), parsed("ipv6:%5B::1%5D:50312")
    (('127.0.0.1', 50312), ('::1', 50312))
    """
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _key(host.strip("[]"), int(port) if port.isdigit() else 0)


def _key(host: str, port: int) -> Key:
    return host.removeprefix("::ffff:"), port
