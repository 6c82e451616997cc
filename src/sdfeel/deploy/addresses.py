"""Addresses as people write them: a name or an IP address, with a port or without."""

import ipaddress

from sdfeel.core.errors import InputError
from sdfeel.live.trust.authority import named_host

TOP = 1 << 16  # ports are below this


def host_and_port(text: str) -> tuple[str, int | None]:
    """The host and, if there is one, the port of an address; InputError if it cannot be one.

    >>> host_and_port("cell.example:7400"), host_and_port("fd00::5"), host_and_port("[::1]:80")
    (('cell.example', 7400), ('fd00::5', None), ('::1', 80))
    """
    host, colon, port = text.rpartition(":")
    if _version6(text.strip("[]")):
        host, port, colon = text.strip("[]"), "", ""
    elif not colon:
        host, port = port, ""
    bare = host.strip("[]")
    sound = bare and (":" not in bare or _version6(bare))
    numeric = port.isascii() and port.isdecimal()
    if not sound or (colon and not (numeric and len(port) < 6 and 0 < int(port) < TOP)):
        raise InputError(
            f"'{text}' is not a host: write name or name:port, an IPv6 address as [address]:port"
        )
    named_host(bare)  # before anything is written
    return bare, int(port) if colon else None


def written(host: str, port: int) -> str:
    """An address in the form of node files and gRPC."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening(host: str, port: int) -> str:
    """The address on which a server listens, on all interfaces of its host."""
    return written("::" if ":" in host else "0.0.0.0", port)


def known_as(host: str) -> str:
    """A host in one spelling, so that two spellings of it are equal."""
    return str(ipaddress.ip_address(host)) if _version6(host) else host.lower()


def _version6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
