"""A node's certificate: what it says, who issues it, and how it is revoked."""

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import DataError, InputError
from sdfeel.live.trust.identity import (
    AllowList,
    Identity,
    Name,
    create_authority,
    described,
    issue,
    revoke,
)
from tests.live.parties import Federation


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation.create(tmp_path, "harbour")


def extensions(identity: Identity) -> x509.Extensions:
    return x509.load_pem_x509_certificate(identity.cert).extensions


def test_a_certificate_names_its_node_and_nothing_else(federation: Federation) -> None:
    edge = federation.issue("edge/3")
    assert edge.name == "sdfeel://harbour/edge/3"
    assert (edge.role, edge.number) == ("edge", 3)
    names = extensions(edge).get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [edge.name]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert set(names.get_values_for_type(x509.DNSName)) == {
        "edge-3.harbour.sdfeel",
        f"{edge.serial}.edge-3.harbour.sdfeel",
    }
    certificate = x509.load_pem_x509_certificate(edge.cert)
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    assert f"{certificate.serial_number:x}" == edge.serial


@pytest.mark.parametrize(("name", "serves"), [("edge/0", True), ("client/0", False)])
def test_only_an_edge_server_may_serve(federation: Federation, name: str, serves: bool) -> None:
    found = extensions(federation.issue(name))
    purposes = found.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert (ExtendedKeyUsageOID.SERVER_AUTH in purposes) is serves
    assert found.get_extension_for_class(x509.BasicConstraints).value.ca is False


@pytest.mark.parametrize("name", ["edge/0", "client/0"])
def test_a_strict_verifier_accepts_the_chain(federation: Federation, name: str) -> None:
    node = federation.issue(name)
    store = Store(x509.load_pem_x509_certificates(node.ca))
    verifier = PolicyBuilder().store(store).build_client_verifier()
    verified = verifier.verify(x509.load_pem_x509_certificate(node.cert), [])
    assert verified.subjects == [x509.UniformResourceIdentifier(node.name), *_hosts(node)]


def _hosts(node: Identity) -> list[x509.GeneralName]:
    names = extensions(node).get_extension_for_class(x509.SubjectAlternativeName).value
    return list(names)[1:]


def test_a_strict_verifier_refuses_a_client_as_a_server(federation: Federation) -> None:
    node = federation.issue("client/0")
    store = Store(x509.load_pem_x509_certificates(node.ca))
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName("client-0.x"))
    with pytest.raises(VerificationError):
        verifier.verify(x509.load_pem_x509_certificate(node.cert), [])


def test_secrets_are_readable_by_their_owner_alone(federation: Federation) -> None:
    edge = federation.issue("edge/0")
    for path in (edge.directory / "key.pem", federation.root / "authority" / "ca-key.pem"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in repr(edge).encode()
    os.chmod(edge.directory / "key.pem", 0o644)
    with pytest.raises(InputError, match=r"everyone can read .*key.pem: run chmod 600"):
        Identity.load(edge.directory)


def test_a_key_that_is_not_the_certificates_is_refused(federation: Federation) -> None:
    one, other = federation.issue("client/0"), federation.issue("client/1")
    (one.directory / "key.pem").write_bytes(other.key)
    with pytest.raises(InputError, match=r"key.pem does not belong to .*cert.pem"):
        Identity.load(one.directory)


def test_a_certificate_of_another_authority_is_refused_at_home(
    federation: Federation, tmp_path: Path
) -> None:
    ours = federation.issue("client/0")
    theirs = Federation.create(tmp_path / "other", "harbour").issue("client/0")
    (ours.directory / "ca.pem").write_bytes(theirs.ca)
    with pytest.raises(InputError, match="not from an authority in"):
        Identity.load(ours.directory)


def test_two_authorities_may_be_trusted_while_one_replaces_the_other(
    federation: Federation, tmp_path: Path
) -> None:
    ours = federation.issue("client/0")
    new = Federation.create(tmp_path / "new", "harbour").issue("client/0")
    (ours.directory / "ca.pem").write_bytes(new.ca + ours.ca)
    assert Identity.load(ours.directory).serial == ours.serial


def test_missing_and_damaged_files_are_named(federation: Federation) -> None:
    one = federation.issue("client/0")
    (one.directory / "cert.pem").write_bytes(b"nothing")
    with pytest.raises(DataError, match="does not hold a node's identity"):
        Identity.load(one.directory)
    (one.directory / "cert.pem").unlink()
    with pytest.raises(DataError, match=r"cannot read .*cert.pem: No such file"):
        Identity.load(one.directory)


def test_an_authority_is_never_overwritten(federation: Federation) -> None:
    with pytest.raises(InputError, match="already holds an authority"):
        create_authority(federation.root / "authority")


def test_an_authority_issues_for_its_own_federation_only(federation: Federation) -> None:
    with pytest.raises(InputError, match="is not of 'harbour', the federation of this authority"):
        federation.issue("sdfeel://airport/edge/0")
    with pytest.raises(DataError, match="holds no certificate authority"):
        issue(federation.root / "nowhere", "edge/0", [], federation.root / "x")
    with pytest.raises(InputError, match="'not a host' is neither"):
        issue(federation.root / "authority", "edge/0", ["not a host"], federation.root / "x")
    with pytest.raises(InputError, match="days must be at least 1"):
        issue(federation.root / "authority", "edge/0", [], federation.root / "x", days=0)


def test_an_identity_knows_when_it_expires(federation: Federation) -> None:
    now = datetime.now(UTC)
    fresh = federation.issue("client/0")
    assert not fresh.expired()
    assert fresh.expired(now + timedelta(days=2, minutes=1))
    assert federation.issue("client/1", expired=True).expired()


@pytest.mark.parametrize(
    "text",
    [
        "edge",
        "edge/",
        "edge/-1",
        "edge/01",
        "cloud/0",
        "edge/0/1",
        "edge/1234567890",
        "sdfeel://UPPER/edge/0",
        "sdfeel://a.b/edge/0",
        "sdfeel://-a/edge/0",
        "http://a/edge/0",
        "edge/0\n",
        "edge/٣",
    ],
)
def test_what_is_not_a_name_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a node's name"):
        Name.parse(text, "harbour")


@given(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["edge", "client", "operator"]),
    st.integers(0, 999_999_999),
)
def test_a_name_survives_being_written(federation: str, role: str, number: int) -> None:
    name = Name(federation, role, number)
    assert Name.parse(str(name)) == name == Name.parse(f"{role}/{number}", federation)


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_an_error(text: str) -> None:
    try:
        name = Name.parse(text, "harbour")
    except InputError:
        return
    assert str(name).endswith(text)


def test_issuing_permits_and_revoking_ends_it_at_once(federation: Federation) -> None:
    one = federation.issue("client/0")
    allow = federation.allow
    assert allow.permits(one.serial, one.name)
    assert not allow.permits(one.serial, "sdfeel://harbour/client/1")
    assert revoke(federation.list, one.serial) == 1
    assert not allow.permits(one.serial, one.name)
    with pytest.raises(InputError, match="is not on the allow-list"):
        revoke(federation.list, one.serial)


def test_a_name_can_be_rotated_and_the_old_certificate_revoked(federation: Federation) -> None:
    old, new = federation.issue("client/0"), federation.issue("client/0")
    allow = federation.allow
    assert set(allow.serials(new.name)) == {old.serial, new.serial}
    revoke(federation.list, old.serial)
    assert allow.serials(new.name) == (new.serial,)
    federation.issue("client/0")
    assert revoke(federation.list, new.name) == 2
    assert allow.serials(new.name) == ()


def test_a_list_edited_by_hand_is_understood(federation: Federation) -> None:
    one, two = federation.issue("client/0"), federation.issue("client/1")
    allow = federation.allow
    federation.list.write_text(
        f"# the harbour\n\n{one.serial.upper()}  {one.name}  # crane\n"
        f"{two.serial}\nthree words here\n#{two.serial} {two.name}\n\x00\n"
    )
    assert allow.permits(one.serial, one.name)
    assert not allow.permits(two.serial, two.name)


def test_without_a_list_nobody_is_permitted(federation: Federation) -> None:
    one = federation.issue("client/0")
    told: list[str] = []
    now = [0.0]
    allow = AllowList(federation.list, told.append, lambda: now[0])
    assert allow.permits(one.serial, one.name)
    content = federation.list.read_bytes()
    federation.list.unlink()
    assert allow.permits(one.serial, one.name)  # somebody may be replacing it
    federation.list.write_bytes(content)
    assert allow.permits(one.serial, one.name)
    federation.list.unlink()
    for seconds in (10, 20, 30):
        allow.permits(one.serial, one.name)
        now[0] = seconds
        assert not allow.permits(one.serial, one.name)
    assert told == [f"the allow-list {federation.list} is gone: nobody is trusted until it is back"]
    with pytest.raises(DataError, match="there is no allow-list at"):
        AllowList(federation.list)


def test_a_certificate_damaged_only_by_its_version_is_reported_as_damaged(
    federation: Federation,
) -> None:
    """Found by the fuzz: the parser has errors of its own for some fields."""
    one = federation.issue("client/0")
    der = bytearray(x509.load_pem_x509_certificate(one.cert).public_bytes(Encoding.DER))
    place = der.index(bytes([0xA0, 3, 2, 1, 2]))  # the field of the version
    der[place + 4] = 3
    (one.directory / "cert.pem").write_text(ssl.DER_cert_to_PEM_cert(bytes(der)))
    with pytest.raises(DataError, match="does not hold a node's identity"):
        Identity.load(one.directory)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_a_certificate_without_a_positive_serial_number_names_nobody(
    federation: Federation,
) -> None:
    """Found by the fuzz: it would be written with a minus sign."""
    certificate = x509.load_pem_x509_certificate(federation.issue("client/0").cert)
    der = bytearray(certificate.public_bytes(Encoding.DER))
    place = der.index(bytes([0xA0, 3, 2, 1, 2])) + 5
    assert der[place] == 2  # an integer follows the version
    der[place + 2] |= 0x80
    with pytest.raises(
        InputError, match=r"serial number must be more than 0, got -|exactly one node's name"
    ):
        described(ssl.DER_cert_to_PEM_cert(bytes(der)).encode())


def test_half_a_list_revokes_nobody(federation: Federation) -> None:
    one, two = federation.issue("client/0"), federation.issue("client/1")
    told: list[str] = []
    now = [0.0]
    allow = AllowList(federation.list, told.append, lambda: now[0])
    assert allow.permits(two.serial, two.name)
    whole = federation.list.read_bytes()
    for size in range(len(whole) - 1):
        federation.list.write_bytes(whole[:size])
        now[0] += 100
        assert allow.permits(one.serial, one.name)
        assert allow.permits(two.serial, two.name)
    assert "does not end with '# end' and the right checksum, so it may be" in told[0]
    assert len(told) <= 3  # a slow copy is not told piece by piece
    federation.list.write_bytes(whole)
    revoke(federation.list, two.serial)
    assert allow.permits(one.serial, one.name)
    assert not allow.permits(two.serial, two.name)


def test_a_list_that_was_gone_comes_back_whole_or_not_at_all(federation: Federation) -> None:
    one, two = federation.issue("client/0"), federation.issue("client/1")
    told: list[str] = []
    now = [0.0]
    allow = AllowList(federation.list, told.append, lambda: now[0])
    assert allow.permits(two.serial, two.name)
    assert allow.gone == ""
    whole = federation.list.read_bytes()
    federation.list.unlink()
    assert allow.gone == ""
    now[0] = 10.0
    assert "nobody is trusted until it is back" in allow.gone
    federation.list.write_bytes(b"".join(whole.splitlines(keepends=True)[:1]))
    for now[0] in (11.0, 20.0):
        assert not allow.permits(one.serial, one.name)
        assert allow.gone
    assert "may be incomplete: nobody is trusted; copy it again" in told[-1]
    federation.list.write_bytes(whole)
    assert allow.gone == ""
    assert allow.permits(two.serial, two.name)


def test_a_list_without_its_last_line_counts_when_it_is_left_alone(federation: Federation) -> None:
    one = federation.issue("client/0")
    now = [0.0]
    federation.list.write_text(f"{one.serial} {one.name}\n")
    allow = AllowList(federation.list, clock=lambda: now[0])
    assert allow.permits(one.serial, one.name)
    federation.list.write_text("# nobody\n")
    assert allow.permits(one.serial, one.name)
    now[0] = 10.0
    assert not allow.permits(one.serial, one.name)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", ["# end", "# end  ", "# end\n\n"])
def test_no_editor_revokes_the_first_line(
    federation: Federation, mark: str, ends: str, last: str
) -> None:
    one, two = federation.issue("client/0"), federation.issue("client/1")
    allow = federation.allow
    assert allow.permits(one.serial, one.name)
    text = f"{one.serial} {one.name}\n{two.serial} {two.name}\n{two.serial} {two.name}\n{last}\n"
    federation.list.write_bytes((mark + text).replace("\n", ends).encode())
    assert allow.permits(one.serial, one.name)
    assert allow.permits(two.serial, two.name)
    assert revoke(federation.list, one.serial) == 1
    assert not allow.permits(one.serial, one.name)
    assert revoke(federation.list, two.name) == 2


@pytest.mark.parametrize("days", [0, -1, 0.5, float("nan"), 36_501, 1e12, float("inf")])
def test_a_certificate_is_for_a_day_to_a_hundred_years(
    days: float, federation: Federation, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="days must be at"):
        issue(federation.root / "authority", "client/0", [], tmp_path / "node", days=days)
    with pytest.raises(InputError, match="days must be at"):
        create_authority(tmp_path / "authority", days=days)
