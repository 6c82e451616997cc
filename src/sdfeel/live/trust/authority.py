"""A federation's own certificate authority: a directory with one key, kept off the nodes."""

import base64
import ipaddress
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sdfeel.core.errors import DataError, InputError, at_least
from sdfeel.core.run_files import ALLOW, write_atomic
from sdfeel.live.trust.allow_list import END, permit
from sdfeel.live.trust.names import Name

KEY, CERT, CA = "key.pem", "cert.pem", "ca.pem"
CA_KEY = "ca-key.pem"
MOST_DAYS = 36_500  # a hundred years
_SKEW = timedelta(minutes=5)  # clocks of nodes may differ this much
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def create_authority(
    directory: Path | str,
    federation: str = "sdfeel",
    days: float = 3650,
    now: datetime | None = None,
) -> Path:
    """Write `ca.pem`, `ca-key.pem` and an empty allow-list into a new directory."""
    directory = Path(directory)
    Name.parse("operator/0", federation)  # checks the federation's name
    _check_days(days)
    if (directory / CA_KEY).exists():
        raise InputError(f"{directory} already holds an authority: choose another directory")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    key, certificate = _self_signed(federation, days, now or datetime.now(UTC))
    write_atomic(directory / CA_KEY, key, private=True)
    write_atomic(directory / CA, certificate)
    write_atomic(directory / ALLOW, f"{END}\n".encode())
    return directory


def rotate_authority(directory: Path, days: float = 3650, now: datetime | None = None) -> None:
    """Replace an authority's key; `ca.pem` keeps earlier certificates until they are retired."""
    _check_days(days)
    _, ca = _authority(directory)
    key, certificate = _self_signed(federation_of(ca), days, now or datetime.now(UTC))
    # The key comes last: whichever key there is, `ca.pem` has its certificate.
    write_atomic(directory / CA, certificate + (directory / CA).read_bytes())
    write_atomic(directory / CA_KEY, key, private=True)


def retire_authorities(directory: Path) -> int:
    """Trust only the certificate of the current signing key; return how many were removed."""
    _, ca = _authority(directory)
    before = x509.load_pem_x509_certificates((directory / CA).read_bytes())
    write_atomic(directory / CA, ca.public_bytes(serialization.Encoding.PEM))
    return len(before) - 1


def _check_days(days: float) -> None:
    at_least("days", days, 1)
    if days > MOST_DAYS:
        raise InputError(f"days must be at most {MOST_DAYS:,}, got {days:g}")


def sign(directory: Path, content: bytes) -> str:
    """The authority's signature."""
    key, _ = _authority(directory)
    return base64.b64encode(key.sign(content, ec.ECDSA(hashes.SHA256()))).decode()


def federation_of(ca: x509.Certificate) -> str:
    """The name of the authority's federation."""
    return str(ca.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _self_signed(federation: str, days: float, now: datetime) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, federation)])
    builder = _builder(subject, subject, key, days, now)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_uses(signs_certificates=True), critical=True)
    return _pem(key), _sign(builder, key)


def write_identity(
    authority_dir: Path, name: str, hosts: Sequence[str], out_dir: Path, days: float, now: datetime
) -> None:
    """Write a node's key, certificate and `ca.pem`, and put it on the authority's allow-list."""
    _check_days(days)
    ca_key, ca = _authority(authority_dir)
    federation = federation_of(ca)
    parsed = Name.parse(name, federation)
    if parsed.federation != federation:
        raise InputError(f"{name} is not of '{federation}', the federation of this authority")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{parsed.role}-{parsed.number}")])
    builder = _builder(subject, ca.subject, key, days, now)
    serial = x509.random_serial_number()
    builder = builder.serial_number(serial)
    for extension, critical in _of_node(parsed, hosts, f"{serial:x}", ca):
        builder = builder.add_extension(extension, critical)
    out_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The list comes first: a running node shows its new certificate as soon as it exists.
    permit(authority_dir / ALLOW, f"{serial:x}", str(parsed))
    write_atomic(out_dir / CA, (authority_dir / CA).read_bytes())
    write_atomic(out_dir / KEY, _pem(key), private=True)
    write_atomic(out_dir / CERT, _sign(builder, ca_key))


def _authority(directory: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        key = serialization.load_pem_private_key((directory / CA_KEY).read_bytes(), None)
        known = x509.load_pem_x509_certificates((directory / CA).read_bytes())
    except OSError as error:
        raise DataError(
            f"{directory} holds no certificate authority: cannot read {error.filename} "
            f"({error.strerror})"
        ) from None
    except (ValueError, TypeError):
        raise DataError(
            f"{directory} holds no certificate authority: {CA_KEY} or {CA} is damaged; take both "
            f"from a copy"
        ) from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    own = [ca for ca in known if ca.public_key() == key.public_key()]
    if not own:
        raise DataError(
            f"{directory / CA_KEY} belongs to no certificate in {directory / CA}: take both from "
            f"the same copy of the authority"
        )
    return key, own[0]


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: float,
    now: datetime,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _of_node(
    name: Name, hosts: Iterable[str], serial: str, ca: x509.Certificate
) -> list[tuple[x509.ExtensionType, bool]]:
    """The extensions of a node's certificate; only an edge server's lets it act as a server."""
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(str(name))]
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if name.role == "edge":
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names += [x509.DNSName(name.dns), x509.DNSName(name.pinned(serial))]
        names += [named_host(host) for host in hosts]
    issuer = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_uses(signs_certificates=False), True),
        (x509.ExtendedKeyUsage(purposes), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), False),
    ]


def named_host(host: str) -> x509.GeneralName:
    """A host in the form that certificates have; InputError if it is not one."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        # A name whose last part is a number would be taken for an address.
        if len(host) > 253 or not _HOST.fullmatch(host) or host.rpartition(".")[2].isdigit():
            shown = f"'{host[:100]}...'" if len(host) > 100 else f"'{host}'"
            raise InputError(f"{shown} is neither an IP address nor a host name") from None
        return x509.DNSName(host)


def _uses(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
