"""Why a connection failed: a plain TLS handshake distinguishes an outage from a lack of trust.

gRPC reports both as UNAVAILABLE. Here the peer's certificate is checked step by step. In TLS 1.3, a
peer that does not trust us shows it only after our side of the handshake is done: it hangs up
without sending a byte, while a server that accepts us answers our greeting.
"""

import asyncio
import contextlib
import ssl

from sdfeel.core.errors import InputError
from sdfeel.live.transport.errors import NotTrusted
from sdfeel.live.trust.authority import CERT, KEY
from sdfeel.live.trust.identity import Identity, described
from sdfeel.live.trust.names import Name

_EXPIRED, _NOT_YET = 10, 9  # OpenSSL's codes of a failed certificate check
# How HTTP/2 begins: the preface and a frame of no settings.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH")


async def probe(address: str, identity: Identity, meant: Name, seconds: float) -> str | None:
    """The serial number of the peer's certificate; None if the peer cannot be reached.

    Raises `NotTrusted` if one side does not accept the other.
    """
    with contextlib.suppress(OSError, TimeoutError, UnicodeError):  # UnicodeError: invalid host
        async with asyncio.timeout(seconds):
            try:
                serial, welcome = await _shake(address, identity, meant)
                if not welcome:  # perhaps the server died at this very moment: try once more
                    serial, welcome = await _shake(address, identity, meant)
            except ssl.SSLCertVerificationError as error:
                raise NotTrusted(_about_theirs(address, meant, error.verify_code)) from None
            except ssl.SSLError as error:
                if any(known in (error.reason or "") for known in _NO_TLS):
                    raise NotTrusted(
                        f"{address} answers without TLS, so it cannot be {meant}: check the address"
                    ) from None
                if "ALERT" not in (error.reason or ""):
                    return None
                welcome = False
            if not welcome:
                raise NotTrusted(
                    f"{meant} at {address} does not accept our certificate, {identity.name}: it "
                    f"must be from its authority and not have expired"
                )
            return serial
    return None


async def _shake(address: str, identity: Identity, meant: Name) -> tuple[str, bool]:
    """The serial number that the peer shows, and whether it answers once it has seen ours."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(
        host.strip("[]"), int(port), ssl=_context(identity), server_hostname=meant.dns
    )
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        serial = _recognised(ssl.DER_cert_to_PEM_cert(shown), address, meant)
        try:
            writer.write(GREETING)
            return serial, bool(await reader.read(1))
        except ConnectionError:
            return serial, False
    finally:
        writer.transport.abort()  # a polite goodbye would wait for the peer


def _context(identity: Identity) -> ssl.SSLContext:
    """TLS checks the chain and the dates; we check the name, for a better error message."""
    context = ssl.create_default_context(cadata=identity.ca.decode())
    context.check_hostname = False
    context.load_cert_chain(identity.directory / CERT, identity.directory / KEY)
    context.set_alpn_protocols(["h2"])
    return context


def _recognised(pem: str, address: str, meant: Name) -> str:
    try:
        name, serial = described(pem.encode())
    except InputError:
        raise NotTrusted(f"{address} is not {meant}: its certificate names no node") from None
    if name != meant:
        raise NotTrusted(f"{address} is {name}, not {meant}: check the addresses")
    return serial


def _about_theirs(address: str, meant: Name, code: int) -> str:
    if code == _EXPIRED:
        return (
            f"the certificate of {meant} at {address} has expired: renew it with "
            f"`sdfeel deploy renew`"
        )
    if code == _NOT_YET:
        return f"the certificate of {meant} at {address} is not valid yet: compare the clocks"
    return f"the certificate at {address} is not from our authority, so it cannot be {meant}"
