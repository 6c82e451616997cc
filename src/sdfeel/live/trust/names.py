"""The name of a node: which federation, which role, which number."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sdfeel.core.errors import InputError

ROLES = ("edge", "client", "operator")
_SHORT = re.compile(rf"({'|'.join(ROLES)})-(0|[1-9][0-9]{{0,8}})")
_NAME = re.compile(r"sdfeel://([a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?)/([a-z]+)/(0|[1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Name:
    """The parsed name of a node.

    >>> name = Name.parse("sdfeel://harbour/edge/3")
    >>> name.role, name.number, name.dns
    ('edge', 3, 'edge-3.harbour.sdfeel')
    >>> str(name)
    'sdfeel://harbour/edge/3'
    """

    federation: str
    role: str
    number: int

    @classmethod
    def parse(cls, text: str, federation: str | None = None) -> "Name":
        """The name in a text: whole, or `role/number` where the federation is known."""
        whole = text if "://" in text or federation is None else f"sdfeel://{federation}/{text}"
        match = _NAME.fullmatch(whole)
        if match is None or match[2] not in ROLES:
            raise InputError(
                f"'{text}' is not a node's name: write sdfeel://<federation>/<role>/<number> with "
                f"a role of {', '.join(ROLES)}, such as sdfeel://sdfeel/edge/0"
            )
        return cls(match[1], match[2], int(match[3]))

    def __str__(self) -> str:
        return f"sdfeel://{self.federation}/{self.role}/{self.number}"

    @property
    def dns(self) -> str:
        """The name in the form that TLS compares."""
        return f"{self.role}-{self.number}.{self.federation}.sdfeel"

    def pinned(self, serial: str) -> str:
        """The DNS name that only the certificate with this serial number carries."""
        return f"{serial}.{self.dns}"


def role_and_number(node: str) -> tuple[str, int] | None:
    """The role and number in a node's short name; None if it is written in any other way.

    >>> role_and_number("client-7"), role_and_number("client-07"), role_and_number("root-1")
    (('client', 7), None, None)
    """
    match = _SHORT.fullmatch(node)
    return None if match is None else (match[1], int(match[2]))


def addresses(peers: Mapping[str, str]) -> dict[int, str]:
    """Addresses of edge servers by number, as a node file's [peers] gives them.

    >>> addresses({"edge-3": "cell.example:7400"})
    {3: 'cell.example:7400'}
    """
    found = {}
    for name, address in peers.items():
        role, number = role_and_number(name) or ("", 0)
        if role != "edge":
            raise InputError(f"[peers] names edge servers such as edge-0, got '{name[:100]}'")
        found[number] = address
    return found
