"""Versions of the network that its authority signed, and how servers agree when one takes effect.

An epoch takes effect with its first round at all servers, or at none. A server that receives one
decides once: if it has not begun that round, it holds the epoch; otherwise the epoch is void. The
decision is on its disk before it answers. No server begins the epoch's first round before all
others have answered that they hold it; a single "void" makes it void for all. So no votes are
counted, and no coordinator can be lost.
"""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any

from sdfeel.core.run_files import EPOCHS, write_atomic
from sdfeel.live.client import Client, Membership
from sdfeel.live.protocol import Link
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import NotTrusted, Refused
from sdfeel.live.trust.authority import sign
from sdfeel.live.trust.identity import is_signed

FACT = "epochs"
EPOCH_BYTES = 8 << 20  # most bytes of one signed network
PROOF = 30.0  # seconds for a server to show the epoch that it announced
AGAIN = 1.0  # seconds until a client continues that was shown no valid epoch
REMEMBERED = "epoch.json"  # the signed network in which a client works
Placed = tuple[Membership, Mapping[int, str]]


@dataclass(frozen=True)
class SignedNetwork:
    """The network from round `begins` on, if `after` is the version before it.

    Its digest covers only the signed document: the JSON around that, and the encoding of the
    signature, can be changed by anybody who passes it on.
    """

    body: bytes
    document: str
    number: int
    begins: int
    federation: str  # the digest of the experiment and of the first network
    after: str  # the digest of the version before; of the first one, the federation's
    network: str  # as network.json
    members: tuple[tuple[int, ...], ...]  # the servers each client works for, as the scheme uses it
    addresses: Mapping[int, str]  # of the servers

    @property
    def digest(self) -> str:
        return sha256(self.document.encode()).hexdigest()

    def servers(self, client: int) -> tuple[int, ...]:
        return tuple(sorted(self.members[client])) if client < len(self.members) else ()

    @classmethod
    def read(cls, body: bytes, authority: bytes | None) -> "SignedNetwork":
        """Read a file or a message; Refused unless `authority`, if given, has signed it."""
        try:
            outer: dict[str, str] = json.loads(body)
            text, seal = outer["document"], outer["signature"]
            if authority is not None:
                if not is_signed(text.encode(), seal, authority):
                    raise Refused("a version of the network is not signed by our authority")
                body = _written(text, base64.b64decode(seal))  # drop everything around them
            values: dict[str, Any] = json.loads(text)
            return cls(
                body,
                text,
                int(values["number"]),
                int(values["begins"]),
                str(values["federation"]),
                str(values["after"]),
                str(values["network"]),
                tuple(tuple(map(int, servers)) for servers in values["members"]),
                {int(d): str(address) for d, address in values["addresses"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            shown = type(error).__name__
            raise Refused(f"that is not a version of a network ({shown}): copy it again") from None


def signed(authority: Path, **values: Any) -> bytes:
    """A version of the network as a file; the fields are those of `SignedNetwork`."""
    text = json.dumps(values, indent=1)
    return _written(text, base64.b64decode(sign(authority, text.encode())))


def _written(document: str, signature: bytes) -> bytes:
    seal = base64.b64encode(signature).decode()
    return json.dumps({"document": document, "signature": seal}).encode()


def in_files(directory: Path, authority: bytes) -> list[SignedNetwork]:
    """The versions in a directory, in order; without files that are incomplete or unsigned."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            found.append(SignedNetwork.read(path.read_bytes(), authority))
        except (OSError, Refused):
            continue
    return sorted(found, key=lambda each: each.number)


async def proven(
    client: Client, ways: Mapping[int, Link], authority: bytes, federation: str
) -> list[SignedNetwork]:
    """The later epochs that one of a client's servers announced; none if it cannot prove them."""
    d = client.outdated
    assert d is not None
    try:
        async with asyncio.timeout(PROOF):
            found = await versions_of(ways[d], client.epoch, authority)
        if any(each.federation != federation for each in found):
            raise Refused("that version of the network belongs to another experiment")
        return found
    except (Refused, NotTrusted) as error:
        client.disbelieve(d, str(error))
    except TimeoutError:
        client.disbelieve(d, "it announced a later epoch of the network, but does not show it")
    await asyncio.sleep(AGAIN)
    return []


async def versions_of(link: Link, number: int, authority: bytes) -> list[SignedNetwork]:
    """The epochs after `number`, up to the one in force, as one server has them."""
    found: list[SignedNetwork] = []
    while True:
        after = found[-1].number if found else number
        _, body = await link.insist("epoch", {"after": after})
        if body is None and found:
            return found
        version = SignedNetwork.read(body or b"", authority)
        if version.number <= after:
            raise Refused(f"{link.name} sends versions of the network in the wrong order")
        found.append(version)


def remember(directory: Path, version: SignedNetwork) -> None:
    """Save the network in which a client now works, as its first servers may be gone for good."""
    write_atomic(directory / REMEMBERED, version.body)


def remembered(directory: Path, authority: bytes, federation: str) -> SignedNetwork | None:
    """The network in which a client last worked; None if that was the first one."""
    try:
        found = SignedNetwork.read((directory / REMEMBERED).read_bytes(), authority)
    except (OSError, Refused):
        return None
    return found if found.federation == federation else None


def placed(
    member: Membership,
    peers: Mapping[int, str],
    later: Sequence[SignedNetwork],
    me: int,
    last: SignedNetwork | None = None,  # the version in which it last worked
) -> Placed | None:
    """Where a client works, and the servers' addresses: in the network in which it last worked, in
    the present one, or in the first later epoch that has a place for it."""
    if last is None and member.servers:
        return member, peers
    after = [each for each in later if last is None or each.number > last.number]
    for version in (*([] if last is None else [last]), *after):
        if version.servers(me):
            now = member.moved(version.servers(me), version.number, version.digest)
            return now, {**peers, **version.addresses}
    return None


class EpochBook:
    """What one server knows about epochs; it is kept on disk."""

    def __init__(
        self,
        store: Store,
        federation: str,
        authority: Callable[[], bytes],  # the certificates that may sign, as they are now
        files: Path | None = None,
    ) -> None:
        self._store, self._federation, self._authority = store, federation, authority
        self._files = files
        known: dict[str, list[str]] = store.fact(FACT) or {}
        self.adopted = [self._own(text) for text in known.get("adopted", [])]
        self.pending = [self._own(text) for text in known.get("pending", [])]
        self._void = set(known.get("void", []))
        self._seen: set[tuple[str, int]] = set()

    def _own(self, text: str) -> SignedNetwork:
        return SignedNetwork.read(text.encode(), None)  # it was checked when it arrived

    def read(self, body: bytes) -> SignedNetwork:
        """A signed version of this federation's network, or Refused."""
        found = SignedNetwork.read(body, self._authority())
        if found.federation != self._federation:
            raise Refused("that version of the network belongs to another experiment")
        return found

    def accept(self, epoch: SignedNetwork) -> None:
        """Put an epoch in force that began without us, as we leave or join. Inside a commit."""
        last = self.adopted[-1].digest if self.adopted else self._federation
        if epoch.after != last:
            raise Refused(f"epoch {epoch.number} does not follow the one that is in force here")
        self.pending = [each for each in self.pending if each.digest != epoch.digest]
        self._void.discard(epoch.digest)
        self.adopted.append(epoch)
        self._remember()

    def take(self, body: bytes, k: int) -> bool | None:
        """Is this epoch held here? The first answer is final. `k` is the open round.

        None: it is too early to tell, since a version before it has not arrived.
        """
        found = self.read(body)
        known = [each.digest for each in (*self.adopted, *self.pending)]
        if found.digest in known:
            return True
        last = known[-1] if known else self._federation
        gone = found.digest in self._void or found.after in self._void or found.begins <= k
        if not gone and found.after not in (self._federation, *known):
            return None
        if gone or found.after != last:
            self.void(found)
            return False
        self.pending.append(found)
        self._save()
        return True

    def due(self, k: int) -> SignedNetwork | None:
        """The pending epoch that begins with round `k`, if all servers hold it."""
        return next((each for each in self.pending if each.begins <= k), None)

    def void(self, epoch: SignedNetwork) -> None:
        """Make an epoch void: it never takes effect, and neither do its successors."""
        self._void.add(epoch.digest)
        self.pending = [each for each in self.pending if each.digest not in self._void]
        while lost := [each for each in self.pending if each.after in self._void]:
            self._void |= {each.digest for each in lost}
            self.pending = [each for each in self.pending if each not in lost]
        self._save()

    def adopt(self, epoch: SignedNetwork) -> None:
        """Put a pending epoch in force. Call it inside a commit."""
        self.pending.remove(epoch)
        self.adopted.append(epoch)
        self._remember()

    def following(self, number: int) -> SignedNetwork | None:
        """The first epoch in force here after `number`."""
        return next((each for each in self.adopted if each.number > number), None)

    def files(self, complain: Callable[[str], None]) -> list[bytes]:
        """The versions among our files that have not been read yet.

        Somebody may be copying a file at this moment: if it cannot be read, it is tried again.
        """
        fresh = []
        for path in sorted(self._files.glob("*.json")) if self._files is not None else []:
            try:
                found = path.stat()
                key = (path.name, found.st_mtime_ns)
                if key in self._seen:
                    continue
                if not S_ISREG(found.st_mode) or found.st_size > EPOCH_BYTES:
                    raise OSError(0, f"it is no file of at most {EPOCH_BYTES:,} bytes")
                fresh.append(path.read_bytes())
            except OSError as error:
                complain(f"cannot read {path}: {error.strerror}")
            else:
                self._seen.add(key)
        return fresh

    def _save(self) -> None:
        with self._store.commit():
            self._remember()

    def _remember(self) -> None:
        texts = {
            "adopted": [each.body.decode() for each in self.adopted],
            "pending": [each.body.decode() for each in self.pending],
            "void": sorted(self._void),
        }
        self._store.remember(FACT, texts)


def directory_of(network: Path) -> Path:
    """The directory in which later versions of a network are kept."""
    return network.parent / EPOCHS
