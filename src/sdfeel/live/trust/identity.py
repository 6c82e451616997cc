"""A node's identity: its private key, its certificate and the authority's certificate.

The certificate names the node in a SAN URI, `sdfeel://<federation>/<role>/<number>`. A server's
has the name as a DNS name, too, so that TLS itself checks that the right server answers, wherever
it runs.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sdfeel.core.errors import DataError, InputError
from sdfeel.live.trust.allow_list import AllowList, revoke, stamp_of
from sdfeel.live.trust.authority import CA, CERT, KEY, create_authority, write_identity
from sdfeel.live.trust.names import Name

__all__ = [
    "AllowList",
    "Identity",
    "Name",
    "Wallet",
    "create_authority",
    "described",
    "issue",
    "revoke",
]


@dataclass(frozen=True)
class Identity:
    """The three files of a node, read and checked."""

    directory: Path
    key: bytes = field(repr=False)
    cert: bytes = field(repr=False)
    ca: bytes = field(repr=False)
    name: str
    serial: str  # lower-case hexadecimal
    expires: datetime

    @classmethod
    def load(cls, directory: Path | str) -> "Identity":
        """Read `key.pem`, `cert.pem` and `ca.pem`; the key must be the node's own secret."""
        directory = Path(directory)
        key, cert, ca = (_read(directory / name) for name in (KEY, CERT, CA))
        if (directory / KEY).stat().st_mode & 0o007:
            raise InputError(f"everyone can read {directory / KEY}: run chmod 600 on it")
        try:
            read = x509.load_pem_x509_certificate(cert)
            secret = load_pem_private_key(key, None)
            trusted = x509.load_pem_x509_certificates(ca)
        except Exception:  # what the parser raises has no common base
            raise DataError(
                f"{directory} does not hold a node's identity: {KEY}, {CERT} or {CA} is damaged; "
                f"copy all three again"
            ) from None
        if secret.public_key() != read.public_key():
            raise InputError(
                f"{directory / KEY} does not belong to {directory / CERT}: issue the node's "
                f"identity again"
            )
        if not any(_issued(read, authority) for authority in trusted):
            raise InputError(
                f"{directory / CERT} is not from an authority in {directory / CA}: take both from "
                f"the same one"
            )
        name, serial = described(cert)
        return cls(directory, key, cert, ca, str(name), serial, read.not_valid_after_utc)

    @property
    def parsed(self) -> Name:
        return Name.parse(self.name)

    @property
    def role(self) -> str:
        return self.parsed.role

    @property
    def number(self) -> int:
        return self.parsed.number

    def expired(self, now: datetime | None = None) -> bool:
        return (now or datetime.now(UTC)) >= self.expires


class Wallet:
    """A node's identity as its files are now: a renewed one takes effect without a restart.

    The three files are replaced one after another. While they do not fit together, or name another
    node, the previous identity stays in force.
    """

    def __init__(self, identity: Identity, tell: Callable[[str], None] = lambda line: None) -> None:
        self._identity, self._tell = identity, tell
        self._files = [identity.directory / name for name in (KEY, CERT, CA)]
        self._stamps = self._seen()

    def current(self) -> Identity:
        stamps = self._seen()
        if stamps != self._stamps and None not in stamps:
            try:
                found = Identity.load(self._identity.directory)
            except (DataError, InputError):
                return self._identity  # it is half-replaced or damaged: check again later
            self._stamps = stamps
            if found.name != self._identity.name:
                self._tell(
                    f"{found.directory} now has the certificate of {found.name}, but this node is "
                    f"{self._identity.name}: the previous certificate stays in force"
                )
            elif found != self._identity:
                self._identity = found
                self._tell(
                    f"using certificate {found.serial} from now on, valid until "
                    f"{found.expires:%Y-%m-%d}"
                )
        return self._identity

    def _seen(self) -> list[tuple[int, int, int] | None]:
        return [stamp_of(path) for path in self._files]


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def is_issued(certificate: x509.Certificate, ca: bytes) -> bool:
    """Has one of these authorities issued this certificate?"""
    return any(_issued(certificate, each) for each in x509.load_pem_x509_certificates(ca))


def is_signed(content: bytes, signature: str, ca: bytes) -> bool:
    """Has one of these authorities signed this?"""
    for authority in x509.load_pem_x509_certificates(ca):
        key = authority.public_key()
        try:
            assert isinstance(key, ec.EllipticCurvePublicKey)
            key.verify(base64.b64decode(signature), content, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError, AssertionError):
            continue
        return True
    return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


@lru_cache(maxsize=4096)
def described(pem: bytes) -> tuple[Name, str]:
    """The node's name and the serial number in a certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        serial = certificate.serial_number
    except Exception:  # what the parser raises has no common base
        raise InputError("the certificate does not carry exactly one node's name") from None
    if serial <= 0:
        raise InputError(f"the certificate's serial number must be more than 0, got {serial}")
    return Name.parse(uri), f"{serial:x}"


def issue(
    authority_dir: Path | str,
    name: str,
    hosts: Sequence[str],
    out_dir: Path | str,
    days: float = 365,
    now: datetime | None = None,
) -> Identity:
    """Write a node's key, certificate and `ca.pem`, and put it on the authority's allow-list.

    `name` is `edge/0` or the whole name. Issuing a name again rotates it: the new certificate is
    valid alongside the old one until the old one is revoked.
    """
    write_identity(Path(authority_dir), name, hosts, Path(out_dir), days, now or datetime.now(UTC))
    return Identity.load(out_dir)
