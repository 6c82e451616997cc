"""The operator's certificates: issue, renew, revoke and rotate, in the directory of a deployment.

Each command changes the authority's allow-list, the nodes' copy of it in `trust`, and the
directories `identity` of the nodes concerned. Running nodes read both again on their own.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from sdfeel.core.errors import InputError
from sdfeel.core.run_files import ALLOW, NODES, TRUST, write_atomic
from sdfeel.deploy.membership import AUTHORITY
from sdfeel.live.trust.allow_list import entries, listed, revoke
from sdfeel.live.trust.authority import CA, CA_KEY, MOST_DAYS, retire_authorities, rotate_authority
from sdfeel.live.trust.identity import Identity, issue
from sdfeel.live.trust.names import role_and_number

IDENTITY = "identity"


def issue_node(
    directory: Path, node: str, hosts: Sequence[str] = (), days: float = 365
) -> Identity:
    """Issue a node's first certificate. `node` is the name of its directory, such as client-7."""
    home = _home(directory, node)
    if home.exists() and node not in members(directory):
        raise InputError(
            f"{node} was revoked: `sdfeel deploy renew {directory} {node}` lets it in again, with "
            f"a new key"
        )
    if home.exists():
        raise InputError(f"{node} has a certificate: renew it, or revoke it and remove {home}")
    if node.startswith("edge-") and not hosts:
        raise InputError(f"others must reach {node}: give the names and addresses of its host")
    made = issue(directory / AUTHORITY, _slashed(node), hosts, home, days)
    publish(directory)
    return made


def renew(
    directory: Path, nodes: Sequence[str], within: float | None = None, days: float = 365
) -> list[Identity]:
    """Issue new keys and certificates to these nodes, or to all; the old ones stay valid, too.

    A revoked node gets one only if it is named, which lets it in again. With `within`, only
    certificates that expire within this many days are replaced.
    """
    _check_authority(directory)
    if within is not None and not 0 <= within <= MOST_DAYS:
        raise InputError(f"--within must be a number of days up to {MOST_DAYS:,}, got {within:g}")
    done = []
    for node in nodes or members(directory):
        old = Identity.load(_home(directory, node))
        soon = None if within is None else datetime.now(UTC) + timedelta(days=within)
        if soon is None or old.expires <= soon:
            hosts = hosts_of(old)
            draft = _home(directory, node).with_name(".renewed")
            issue(directory / AUTHORITY, old.name, hosts, draft, days)
            publish(directory)  # the others must accept it before the node shows it
            _move(draft, old.directory)
            done.append(Identity.load(old.directory))
    return done


def revoke_node(directory: Path, which: str, superseded: bool = False) -> int:
    """Take a serial number, or all certificates of a node, off the list; return how many.

    With `superseded`, only those that the node's newest certificate has replaced.
    """
    allow = directory / AUTHORITY / ALLOW
    if superseded:
        current = Identity.load(_home(directory, which))
        known = entries(listed(allow))
        old = [s for s, name in known if name == current.name and s != current.serial]
        count = sum(revoke(allow, serial) for serial in old)
    else:
        count = revoke(allow, _whole_name(directory, which) if "-" in which else which)
    publish(directory)
    return count


def rotate(directory: Path, finish: bool = False, days: float = 3650) -> int:
    """Give the authority a new key, which all nodes trust in addition to the old one.

    With `finish`, only the new key is trusted: InputError while a listed certificate needs an old
    one. Returns how many nodes got a new `ca.pem`.
    """
    _check_authority(directory)
    authority = directory / AUTHORITY
    if finish:
        newest = x509.load_pem_x509_certificates((authority / CA).read_bytes())[0]
        behind = [n for n in members(directory) if not _from(directory, n, newest)]
        if behind:
            raise InputError(
                f"the certificate of {', '.join(behind)} is from the old authority: renew all "
                f"first, and give the nodes their new ones"
            )
        retire_authorities(authority)
    else:
        rotate_authority(authority, days)
    nodes = members(directory)
    for node in nodes:
        write_atomic(_home(directory, node) / CA, (authority / CA).read_bytes())
    return len(nodes)


def publish(directory: Path) -> None:
    """Copy the authority's list to the nodes' copy, as a whole."""
    write_atomic(directory / TRUST / ALLOW, (directory / AUTHORITY / ALLOW).read_bytes())


def nodes_of(directory: Path) -> list[str]:
    """Every node that has a certificate."""
    homes = sorted((directory / NODES).glob(f"*/{IDENTITY}"))
    if not homes:
        raise InputError(f"{directory} holds no nodes: name the directory that `deploy init` wrote")
    return [home.parent.name for home in homes]


def members(directory: Path) -> list[str]:
    """Every node that has a certificate and was not revoked."""
    known = {name for _, name in entries(listed(directory / AUTHORITY / ALLOW))}
    return [n for n in nodes_of(directory) if Identity.load(_home(directory, n)).name in known]


def hosts_of(identity: Identity) -> list[str]:
    """The names and addresses of the host in a node's certificate."""
    found = x509.load_pem_x509_certificate(identity.cert)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    own = {identity.parsed.dns, identity.parsed.pinned(identity.serial)}
    dns = [name for name in names.get_values_for_type(x509.DNSName) if name not in own]
    return [*dns, *map(str, names.get_values_for_type(x509.IPAddress))]


def _home(directory: Path, node: str) -> Path:
    _slashed(node)
    return directory / NODES / node / IDENTITY


def _slashed(node: str) -> str:
    found = role_and_number(node)
    if found is None:
        raise InputError(
            f"'{node[:100]}' is not a node: write a role and a number, such as client-7"
        )
    return "{}/{}".format(*found)


def _whole_name(directory: Path, node: str) -> str:
    ends = f"/{_slashed(node)}"
    known = entries(listed(directory / AUTHORITY / ALLOW))
    return next((name for _, name in known if name.endswith(ends)), node)


def _check_authority(directory: Path) -> None:
    if not (directory / AUTHORITY / CA_KEY).exists():
        raise InputError(
            f"{directory / AUTHORITY} has no key: run this where you keep the authority"
        )


def _from(directory: Path, node: str, authority: x509.Certificate) -> bool:
    certificate = x509.load_pem_x509_certificate(Identity.load(_home(directory, node)).cert)
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # what the library raises has no common base
        return False
    return True


def _move(draft: Path, home: Path) -> None:
    """Replace the files of an identity, the certificate last: until then nothing changes."""
    for name in (CA, "key.pem", "cert.pem"):
        (draft / name).replace(home / name)
    draft.rmdir()
