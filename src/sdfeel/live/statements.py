"""What nodes sign about their rounds, so that anybody can check and recompute them later.

Servers sign what they hand out. A client signs what it was given, what it held and what it sent; a
server signs what came, what it sent and heard, and what it made of that. Each statement names the
hash of the one before it, and models appear in it by their hashes. A statement has no time and
nothing random in it: a node that was killed and repeats a round says the same again.

Whoever receives a message checks its signature before using it, and keeps it: a node that later
says otherwise is refuted by its own hand.
"""

import base64
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sdfeel.core.errors import RunError, SdfeelError
from sdfeel.core.run_files import STATEMENTS, write_atomic
from sdfeel.live.protocol import Header, is_whole
from sdfeel.live.transport.errors import Rejected
from sdfeel.live.trust.identity import Identity, described, is_issued

FORM = 1  # of statements
FIRST = "0" * 64  # what a node's first statement follows
WORK = (  # what of a piece of work is signed, in addition to the model
    *("round", "steps", "first", "rate", "sources", "weights", "deadline"),
    *("told", "shift", "rows", "kept", "payload", "sum"),
)
CERTIFICATE = 8 << 10  # bytes of a certificate, at most
OF_CLIENTS = {  # what a client's statement holds, and nothing else: others keep and copy it
    **dict.fromkeys(("form", "epoch", "round", "first", "steps"), int),
    **dict.fromkeys(("federation", "who", "work", "sent", "before"), str),
    **dict.fromkeys(("got", "rows"), dict),
}
# What a client's statement may hold in addition: how torch rounds at a client that trains with it.
SOMETIMES_OF_CLIENTS = ("arithmetic",)
BY_NUMBER = ("got", "rows")  # hashes by servers and by places
HASHES = ("work", "sent", "before")
_NUMBER, _HASH = re.compile(r"[0-9]{1,15}"), re.compile(r"[0-9a-f]{64}")
Statement = dict[str, Any]
Seal = dict[str, str]  # "signature", and the signer's "certificate" or, in a log, its "serial"


def hash_of(statement: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(statement)).hexdigest()


def work_hash(header: Mapping[str, Any]) -> str:
    """The hash of what a client is asked to do."""
    return hash_of({key: header[key] for key in WORK if key in header})


def offer(federation: str, server: int, k: int, sha256: str, **what: Any) -> Statement:
    """What a server signs about a model that it gives away.

    `what` is `work` for clients (None: only the model was asked for), `hop` and `row` for servers.
    """
    common = {"form": FORM, "federation": federation, "who": f"edge-{server}", "round": k}
    return {**common, "sha256": sha256, **what}


def is_clients(value: object) -> TypeGuard[Statement]:
    """Does somebody's statement have the form of a client's?"""
    if not isinstance(value, dict) or not OF_CLIENTS.keys() <= value.keys():
        return False
    more = value.keys() - OF_CLIENTS.keys()
    if not more <= set(SOMETIMES_OF_CLIENTS):
        return False
    if not all(type(value[key]) is kind for key, kind in OF_CLIENTS.items()):
        return False
    numbers = (value[key] for key, kind in OF_CLIENTS.items() if kind is int)
    hashes = [value[key] for key in (*HASHES, *more)]
    for key in BY_NUMBER:  # other words are not its own: whoever copies a statement may know them
        if not all(_NUMBER.fullmatch(each) for each in value[key]):
            return False
        hashes += value[key].values()
    return all(map(is_whole, numbers)) and all(map(is_hash, hashes))


def is_hash(value: object) -> TypeGuard[str]:
    """Are these 32 bytes in hexadecimal, such as a SHA-256, in the one way we write them?"""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _canonical(statement: Mapping[str, Any]) -> bytes:
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


@dataclass(frozen=True)
class Notary:
    """Signs for one node, with the key of its certificate, and checks what others signed."""

    identity: Callable[[], Identity]  # as it is now
    federation: str  # the digest of what all agree on

    def sign(self, statement: Statement) -> Seal:
        own = self.identity()
        signature = _secret(own.key).sign(_canonical(statement), ec.ECDSA(hashes.SHA256()))
        return {"signature": base64.b64encode(signature).decode(), "certificate": own.cert.decode()}

    def checked(self, who: str, statement: Mapping[str, Any], seal: object) -> Seal:
        """The seal, if it is this node's; otherwise `Rejected`."""
        if seal is None:
            raise Rejected(
                f"{who} does not sign what it sends: install the same version of sdfeel on all "
                f"nodes"
            )
        found = seal_of(seal)
        if found is None or signer(statement, found, self.identity().ca) != who:
            raise Rejected(f"what {who} sends is not signed by {who}")
        return found


def seal_of(value: object) -> Seal | None:
    """A seal in another's message, if that is what it is."""
    if not isinstance(value, dict) or value.keys() != {"signature", "certificate"}:
        return None
    texts = all(isinstance(each, str) and len(each) <= CERTIFICATE for each in value.values())
    return value if texts else None


def signer(statement: Mapping[str, Any], seal: Seal, ca: bytes) -> str | None:
    """Who signed this, such as edge-0; None if nobody whom these authorities know."""
    known = _holder(seal["certificate"].encode(), ca)
    if known is None:
        return None
    name, key = known
    try:
        signature = base64.b64decode(seal["signature"], validate=True)
        key.verify(signature, _canonical(statement), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return None
    return name


@lru_cache(maxsize=64)
def _secret(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # as authorities issue them
    return key


@lru_cache(maxsize=4096)
def _holder(pem: bytes, ca: bytes) -> tuple[str, ec.EllipticCurvePublicKey] | None:
    """Whose certificate this is, and its key; None unless one of these authorities issued it."""
    try:
        name, _ = described(pem)
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
    except (SdfeelError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not is_issued(certificate, ca):
        return None
    return f"{name.role}-{name.number}", key


def serial_of(pem: str, ca: bytes) -> str | None:
    """The serial number of a node's certificate; None unless one of these authorities issued it."""
    return None if _holder(pem.encode(), ca) is None else described(pem.encode())[1]


def _stated(line: bytes) -> Any:
    """The statement in a line of a log; None if the line is damaged."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found.get("statement") if isinstance(found, dict) else None


class StatementLog:
    """One node's statements and what proves them, a line each; only ever appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told: set[str] = set()  # serials whose certificates this process has written
        line = self._last()
        self.last: Statement | None = None if line is None else line["statement"]

    @property
    def head(self) -> str:
        return FIRST if self.last is None else hash_of(self.last)

    def chained(self, statement: Statement) -> Statement:
        """The same after the last one; if it is the last one, once more."""
        if self.last is not None and {**statement, "before": self.last.get("before")} == self.last:
            return self.last
        return {**statement, "before": self.head}

    def line(self, statement: Statement, seal: Seal, **proofs: Mapping[str, Any]) -> dict[str, Any]:
        """A statement as a line: certificates, which are long, appear in it once.

        Only seals are shortened. What others stated stays as they signed it, whatever it says.
        """
        certificates: dict[str, str] = {}

        def short(sealed: Mapping[str, Any]) -> dict[str, Any]:
            if "certificate" not in sealed:
                return dict(sealed)
            _, serial = described(sealed["certificate"].encode())
            certificates[serial] = sealed["certificate"]
            return {**{k: v for k, v in sealed.items() if k != "certificate"}, "serial": serial}

        kept = {
            name: {k: short(each) for k, each in group.items()} for name, group in proofs.items()
        }
        return {"statement": statement, **short(seal), **kept, "certificates": certificates}

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line, unless it is there already: a restored node repeats its rounds."""
        if self._has(line["statement"]):
            return
        if not self.path.exists() or not self.path.stat().st_size:
            self._told.clear()  # the file was rotated: each part can be read on its own
        known = line.get("certificates", {})
        fresh = {serial: pem for serial, pem in known.items() if serial not in self._told}
        text = json.dumps({**line, "certificates": fresh}, separators=(",", ":"))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            start = file.tell()
            try:
                file.write(text.encode() + b"\n")
                file.flush()
            except OSError:
                with suppress(OSError):
                    file.truncate(start)
                raise
        self._told.update(fresh)
        self.last = line["statement"]

    def _has(self, statement: Statement) -> bool:
        if self.last is None or not self.path.exists() or statement["round"] > self.last["round"]:
            return False
        if statement == self.last:
            return True
        with self.path.open("rb") as file:
            return any(_stated(line) == statement for line in file)

    def _last(self) -> dict[str, Any] | None:
        """The last line; half a line at the end comes from a crash, and is taken away."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                tail, span = b"", 1 << 16
                while span == 1 << 16 or (tail.count(b"\n") < 2 and span // 2 < size):
                    file.seek(max(0, size - span))
                    tail, span = file.read(), 2 * span
        except FileNotFoundError:
            return None
        whole = tail[: tail.rfind(b"\n") + 1]
        if len(whole) < len(tail):
            os.truncate(self.path, size - len(tail) + len(whole))
        if not whole:
            return None
        try:
            found: dict[str, Any] = json.loads(whole.splitlines()[-1])
            hash_of(found["statement"])
        except (ValueError, KeyError, TypeError):
            raise RunError(
                f"the last line of {self.path} is damaged: move the file aside, and the node "
                f"begins another one"
            ) from None
        return found


@dataclass
class KeptModels:
    """The bodies of the last rounds as files named by their hashes, for whoever recomputes them.

    They are copies: one that is lost is missed only there.
    """

    directory: Path
    rounds: int  # that are kept; 0: none
    _newest: int = -1

    def put(self, k: int, sha256: str, body: bytes) -> None:
        """Keep what round `k` needs, unless the round before has it."""
        if not self.rounds or (self._of(k - 1) / sha256).exists():
            return
        place = self._of(k)
        if k != self._newest:
            place.mkdir(parents=True, exist_ok=True)
            self._newest = k
            for old in self.directory.iterdir():
                if old.name.isdecimal() and int(old.name) < k - self.rounds:
                    shutil.rmtree(old, ignore_errors=True)
        if not (place / sha256).exists():
            write_atomic(place / sha256, body, durable=False)

    def _of(self, k: int) -> Path:
        return self.directory / f"{k:06d}"


@dataclass
class ClientDesk:
    """What a client signs about its rounds, and its proofs of what it was given."""

    notary: Notary
    log: StatementLog
    client: int
    arithmetic: str | None = None  # how torch rounds here; None: its results are the same anywhere
    _work: str | None = None  # a hash of what the open round asks for
    _offers: dict[int, dict[str, Any]] = field(default_factory=dict)  # of the open round

    @classmethod
    def of(
        cls,
        identity: Callable[[], Identity],
        federation: str,
        directory: Path,
        client: int,
        arithmetic: str | None = None,
    ) -> "ClientDesk":
        """One for a node's files."""
        log = StatementLog(directory / STATEMENTS)
        return cls(Notary(identity, federation), log, client, arithmetic)

    def begin(self) -> None:
        """Another round: what was given for the one before is done with."""
        self._work, self._offers = None, {}

    def given(self, server: int, k: int, header: Header, work: str | None) -> None:
        """A server handed out a model: keep its word, if it gave one."""
        sha256 = header.get("sha256")
        if not isinstance(sha256, str):
            raise Rejected(f"edge-{server} does not say what it hands out")
        said = offer(self.notary.federation, server, k, sha256, work=work)
        found: dict[str, Any] = {"work": work, "sha256": sha256}
        if "signed" in header:
            found |= self.notary.checked(f"edge-{server}", said, header["signed"])
        self._offers[server], self._work = found, self._work or work

    def result(
        self, k: int, epoch: int, first: int, steps: int, rows: Mapping[int, str], sent: str
    ) -> Header:
        """What goes with a result: what was done, signed. Nothing if servers do not sign either."""
        if not any("signature" in each for each in self._offers.values()):
            return {}
        offers = {str(d): each for d, each in sorted(self._offers.items())}
        statement = {
            "form": FORM,
            "federation": self.notary.federation,
            "who": f"client-{self.client}",
            "epoch": epoch,
            "round": k,
            "first": first,
            "steps": steps,
            "work": self._work,
            "got": {d: each["sha256"] for d, each in offers.items()},
            "rows": {str(place): sha256 for place, sha256 in rows.items()},
            "sent": sent,
        }
        if self.arithmetic is not None:
            statement["arithmetic"] = self.arithmetic
        statement = self.log.chained(statement)
        seal = self.notary.sign(statement)
        self.log.append(self.log.line(statement, seal, offers=offers))
        return {"statement": statement, "signed": seal}
