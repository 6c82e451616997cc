"""What nodes sign about their rounds, so that anybody can check and recompute them later.

Servers sign the models that they hand out. A client signs what it received, held and sent; a server
signs what its clients sent, what it exchanged with other servers, and the result. Each statement
has the hash of the one before it, and names models by their hashes. It contains no time and nothing
random, so a node that was killed and repeats a round makes the same statement again.

The receiver of a message checks its signature before using it, and keeps it: a node that later
states something else is refuted by its own signature.
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
FIRST = "0" * 64  # stands for the hash before a node's first statement
WORK = (  # the fields of a piece of work that are signed, besides the model
    *("round", "steps", "first", "rate", "sources", "weights", "deadline"),
    *("told", "shift", "rows", "kept", "payload", "sum"),
)
CERTIFICATE = 8 << 10  # bytes of a certificate, at most
OF_CLIENTS = {  # the only fields of a client's statement, which others keep and copy
    **dict.fromkeys(("form", "epoch", "round", "first", "steps"), int),
    **dict.fromkeys(("federation", "who", "work", "sent", "before"), str),
    **dict.fromkeys(("got", "rows"), dict),
}
# An optional field of a client's statement: how torch rounds there, if it trains with torch.
SOMETIMES_OF_CLIENTS = ("arithmetic",)
BY_NUMBER = ("got", "rows")  # hashes by servers and by places
HASHES = ("work", "sent", "before")
_NUMBER, _HASH = re.compile(r"[0-9]{1,15}"), re.compile(r"[0-9a-f]{64}")
Statement = dict[str, Any]
Seal = dict[str, str]  # "signature", and the signer's "certificate" or, in a log, its "serial"


def hash_of(statement: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(statement)).hexdigest()


def work_hash(header: Mapping[str, Any]) -> str:
    """The hash of the work that a client is asked to do."""
    return hash_of({key: header[key] for key in WORK if key in header})


def offer(federation: str, server: int, k: int, sha256: str, **what: Any) -> Statement:
    """What a server signs about a model that it sends.

    `what` is `work` for a client (None if it asked only for the model), or `hop` and `row` for
    another server.
    """
    common = {"form": FORM, "federation": federation, "who": f"edge-{server}", "round": k}
    return {**common, "sha256": sha256, **what}


def is_clients(value: object) -> TypeGuard[Statement]:
    """Does this value, which may be anything, have the form of a client's statement?"""
    if not isinstance(value, dict) or not OF_CLIENTS.keys() <= value.keys():
        return False
    more = value.keys() - OF_CLIENTS.keys()
    if not more <= set(SOMETIMES_OF_CLIENTS):
        return False
    if not all(type(value[key]) is kind for key, kind in OF_CLIENTS.items()):
        return False
    numbers = (value[key] for key, kind in OF_CLIENTS.items() if kind is int)
    hashes = [value[key] for key in (*HASHES, *more)]
    for key in BY_NUMBER:  # keys are numbers: other words could mean something to who copies them
        if not all(_NUMBER.fullmatch(each) for each in value[key]):
            return False
        hashes += value[key].values()
    return all(map(is_whole, numbers)) and all(map(is_hash, hashes))


def is_hash(value: object) -> TypeGuard[str]:
    """Is it 32 bytes, such as a SHA-256, in lower-case hexadecimal, as we write them?"""
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
        """The seal, if node `who` signed the statement; otherwise `Rejected`."""
        if seal is None:
            raise Rejected(
                f"{who} does not sign what it sends: install the same version of sdfeel on all "
                f"nodes"
            )
        found = seal_of(seal)
        if found is None or signer(statement, found, self.identity().ca) != who:
            raise Rejected(f"what {who} sends is not signed with the key of {who}")
        return found


def seal_of(value: object) -> Seal | None:
    """The seal in another node's message; None if it does not have that form."""
    if not isinstance(value, dict) or value.keys() != {"signature", "certificate"}:
        return None
    texts = all(isinstance(each, str) and len(each) <= CERTIFICATE for each in value.values())
    return value if texts else None


def signer(statement: Mapping[str, Any], seal: Seal, ca: bytes) -> str | None:
    """The node that signed this, such as edge-0; None if no node of these authorities did."""
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
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # the only kind that authorities issue
    return key


@lru_cache(maxsize=4096)
def _holder(pem: bytes, ca: bytes) -> tuple[str, ec.EllipticCurvePublicKey] | None:
    """A certificate's node and key; None unless one of these authorities issued it."""
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
    """One node's statements with their proofs, one per line; only ever appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told: set[str] = set()  # serials whose certificates this process has written
        line = self._last()
        self.last: Statement | None = None if line is None else line["statement"]

    @property
    def head(self) -> str:
        return FIRST if self.last is None else hash_of(self.last)

    def chained(self, statement: Statement) -> Statement:
        """The statement with the hash of the last one; a repeated last one stays as it was."""
        if self.last is not None and {**statement, "before": self.last.get("before")} == self.last:
            return self.last
        return {**statement, "before": self.head}

    def line(self, statement: Statement, seal: Seal, **proofs: Mapping[str, Any]) -> dict[str, Any]:
        """A statement as a line of the log, in which each certificate appears only once.

        Only seals are shortened; other nodes' statements stay exactly as they were signed.
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
        """Write a line unless the log has it already: a restored node repeats its rounds."""
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
        """The last line; half a line at the end comes from a crash, and is removed."""
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
                f"begins a new one"
            ) from None
        return found


@dataclass
class KeptModels:
    """The bodies of the last rounds as files named by their hashes, for recomputing the rounds.

    They are copies: the run itself does not need them.
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
        """Begin a round: forget what was given for the one before."""
        self._work, self._offers = None, {}

    def given(self, server: int, k: int, header: Header, work: str | None) -> None:
        """A server handed out a model: check its signature, if there is one, and keep it."""
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
        """The signed statement to send with a result; empty if no server signed its offer."""
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
