"""How nodes talk: what a call is, what both sides must have in common, and how long to try."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard, TypeVar

from sdfeel.core.errors import printable
from sdfeel.live.transport.errors import Refused, Unreachable
from sdfeel.live.transport.tensors import Schema
from sdfeel.version import __version__

T = TypeVar("T")
Header = dict[str, Any]
Answer = tuple[Header, bytes | None]
LONG_POLL = 20.0  # seconds that one call may wait for an answer
CALL = 60.0  # seconds for an answer: more than a long poll; bodies on their way have longer
RECORD_BYTES = 1 << 20  # of rounds' records in one answer, unless a single one is larger
MOST = 2**53  # whole numbers in messages are smaller
HERE = 1.0  # seconds for an answer that the other side can give at once
HASTY = 0.05  # seconds until we ask again a node that should have waited but answered at once


@dataclass(frozen=True)
class Who:
    """The caller that a certificate names."""

    role: str
    number: int

    def __str__(self) -> str:
        return f"{self.role}-{self.number}"


Handler = Callable[[Who, str, Header, bytes | None], Awaitable[Answer]]


class AnyReply(Protocol):
    """What a call brings back."""

    @property
    def header(self) -> Header: ...

    @property
    def body(self) -> bytes | None: ...


class Port(Protocol):
    """A connection to one other node: gRPC, or memory in tests."""

    async def call(
        self,
        kind: str,
        header: Header,
        body: bytes | None = None,
        *,
        timeout: float,  # noqa: ASYNC109  (as gRPC calls it)
    ) -> AnyReply: ...


# What a node tells about itself: the name of each fact, and what to do if two nodes differ in it.
SHARED = {
    "sdfeel": ("versions of sdfeel", "install the same version on both"),
    "experiment": ("experiments", "give both the same experiment.toml"),
    "network": ("networks", "give both the same network.json"),
    "epoch": ("epochs of the network", "sign one version per number, and restore a backup"),
    "engine": ("engines", "install the same version of sdfeel on both"),
    "torch": ("versions of torch", "install the same version on both"),
    "model": ("code of the model", "install the same module on both"),
    "initial": ("initial models", "install the same sdfeel, torch and model on both"),
    "library": (
        "native libraries",
        "copy the whole directory of the node again",
    ),
    "arithmetic": (
        "CPUs, on which torch rounds differently",
        "models trained on one cannot be repeated on the other to the last bit, unless "
        "training.engine is native",
    ),
}
_VERSIONS = ("sdfeel", "torch")
_TOLERATED = ("arithmetic",)
_LONGEST = 200  # characters of a value
_NOTES = 8  # about one caller


@dataclass(frozen=True)
class About:
    """What a node runs. Nodes work together only if they agree on it.

    A fact that does not apply to a node is None and is not compared: a device that computes only
    with the native engine has no torch.
    """

    sdfeel: str = __version__
    experiment: str | None = None  # hashes of the two shared files
    network: str | None = None
    epoch: str | None = None  # the network's number and hash; None in the first epoch
    engine: str | None = None
    torch: str | None = None
    model: str | None = None  # hash of the model's code
    initial: str | None = None  # hash of the model that training starts from
    library: str | None = None  # hash of the native library
    arithmetic: str | None = None  # how torch rounds, where it trains (engine/arithmetic.py)

    def in_epoch(self, number: int, digest: str) -> "About":
        """The same node from another epoch of the network on."""
        return replace(self, epoch=f"{number} {digest}")

    def told(self) -> dict[str, str]:
        return {key: value for key, value in vars(self).items() if value is not None}

    def check(self, me: str, them: str, theirs: object) -> list[str]:
        """Raise Refused at a difference that matters; return the others as sentences."""
        if not isinstance(theirs, dict) or "sdfeel" not in theirs:
            raise Refused(f"{them} does not say which sdfeel it runs: {SHARED['sdfeel'][1]}")
        notes = []
        for key, mine, other in self._differences(theirs):
            words, remedy = SHARED[key]
            told = f"{me} and {them} have different {words} ({mine[:12]} and {other[:12]})"
            if key in _TOLERATED:
                notes.append(f"{told}: {remedy}")
            elif key in _VERSIONS and _series(mine) == _series(other):
                notes.append(f"{told}, which speak the same protocol")
            else:
                raise Refused(f"{told}: {remedy}")
        return notes

    def _differences(self, theirs: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
        own = self.told()
        for key in SHARED:
            if key == "torch" and (self.engine or "").startswith("native"):
                continue  # the native engine's bits are the same with every torch
            if key == "epoch" and _number(own.get(key)) != _number(theirs.get(key)):
                continue  # one of the two will learn of the newer epoch in its next rounds
            if key in own and key in theirs and own[key] != theirs[key]:
                yield key, own[key], printable(f"{theirs[key]!s:.{_LONGEST}}")


def _number(epoch: object) -> str:
    return str(epoch).partition(" ")[0]


UNSAID = About()  # a node that tells only its version


def _series(version: str) -> list[str]:
    """The part of a version in which compatible versions agree.

    >>> _series("0.1.0"), _series("2.13.0+cpu")
    (['0', '1'], ['2', '13'])
    """
    return version.split("+")[0].split(".")[:2]


class Agreed(Protocol):
    """What two nodes must have in common to speak."""

    @property
    def digest(self) -> str: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def about(self) -> About: ...

    @property
    def along(self) -> int:
        """The most rows that may come with a model."""
        ...

    @property
    def letters(self) -> int:
        """The most bytes of one step of a masked sum; 0 if there are no such sums."""
        ...


@dataclass
class Reception:
    """Admits only callers that have told what they run since this node was started."""

    name: str
    about: About
    tell: Callable[[str], None] = lambda line: None
    libraries: Mapping[int, str] = field(default_factory=dict)  # devices' hashes, by client
    _met: set[str] = field(default_factory=set)
    _noted: dict[str, set[str]] = field(default_factory=dict)  # by caller

    def meet(self, who: "Who", header: Header) -> Header | None:
        """What to add to the answer; None if the caller must introduce itself first."""
        if "about" not in header:
            return {} if str(who) in self._met else None
        self._met.discard(str(who))
        own = self.about
        if who.role == "client" and who.number in self.libraries:
            own = replace(own, library=self.libraries[who.number])
        noted = self._noted.setdefault(str(who), set())
        for note in own.check(self.name, str(who), header["about"]):
            if note not in noted and len(noted) < _NOTES:
                noted.add(note)
                self.tell(note)
        self._met.add(str(who))
        return {"about": self.about.told()}


class Link:
    """A port that adds the federation's digest, and waits through outages.

    With the first call, and whenever the other side asks, it tells what this node runs.
    """

    def __init__(
        self,
        name: str,
        port: Port,
        digest: str,
        about: About | None = None,
        me: str = "this node",
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.name, self._port, self._digest = name, port, digest
        self._about, self._me, self._tell = about or UNSAID, me, tell
        self._introduced = False
        self._noted: set[str] = set()  # differences that were logged already
        self.sent = self.received = 0  # bytes of bodies
        self.last_error = ""

    def renew(self, about: About) -> None:
        """Tell with the next call that this node runs something else from now on."""
        self._about, self._introduced = about, False

    async def ask(
        self, kind: str, header: Header, body: bytes | None = None, seconds: float = CALL
    ) -> Answer:
        """One call; raises Unreachable, NotTrusted or Refused."""
        stamped = {**header, "federation": self._digest}
        if self._introduced:
            reply = await self._port.call(kind, stamped, body, timeout=seconds)
        if not self._introduced or reply.header.get("introduce") is True:  # we are new to it
            stamped["about"] = self._about.told()
            reply = await self._port.call(kind, stamped, body, timeout=seconds)
            if "about" in reply.header:
                for note in self._about.check(self._me, self.name, reply.header["about"]):
                    if note not in self._noted and len(self._noted) < _NOTES:
                        self._noted.add(note)
                        self._tell(note)
            self._introduced = True
        self.sent += len(body or b"")
        self.received += len(reply.body or b"")
        return reply.header, reply.body

    async def insist(
        self, kind: str, header: Header, body: bytes | None = None, seconds: float = CALL
    ) -> Answer:
        """Call until there is an answer: wait out outages, but raise every other error."""
        pause = 0.05
        while True:
            try:
                return await self.ask(kind, header, body, seconds)
            except Unreachable as error:
                self.last_error = f"{self.name}: {error}"
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, 0.5)  # the port itself pauses between its attempts


def check_federation(header: Header, digest: str) -> None:
    """Refuse a caller that runs another experiment."""
    theirs = header.get("federation")
    if theirs != digest:
        shown = str(theirs)[:12] if isinstance(theirs, str) else "none"
        raise Refused(
            f"this federation's experiment is {digest[:12]}, yours is {shown}: give all nodes the "
            f"same experiment.toml and network.json"
        )


def whole(header: Header, key: str) -> int:
    """The whole number under `key`, or Refused: a caller may have sent anything."""
    value = header.get(key)
    if not is_whole(value):
        shown = f"{value!r:.80}"
        raise Refused(f"the message's '{key}' must be a whole number from 0, got {shown}")
    return value


def is_whole(value: object) -> TypeGuard[int]:
    """Is it a whole number from 0 that every language and database can hold?"""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def seconds(header: Header, key: str, most: float = LONG_POLL) -> float:
    """The seconds under `key` that a caller is ready to wait, but no more than `most`."""
    value = header.get(key, 0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise Refused(f"the message's '{key}' must be seconds from 0, got {value!r:.80}")
    return float(min(value, most))


class Bell:
    """Wakes everyone who waits for something to change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """What `look` finds, as soon as it finds something; None after this many seconds."""
        end = asyncio.get_running_loop().time() + seconds
        while (found := look()) is None:
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return None
            try:
                async with asyncio.timeout(left):  # wait_for may lose a cancellation (Python 3.11)
                    await self._event.wait()
            except TimeoutError:
                continue
        return found
