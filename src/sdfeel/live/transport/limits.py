"""How many bytes, calls, connections and seconds a node grants to others."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sdfeel.core.errors import InputError

CHUNK = 1 << 20  # bytes of a body per message
HANDSHAKE_SECONDS = 0.06  # of a slow processor, per caller
INLINE = CHUNK // 4  # bytes; a body up to this long travels in one message with its envelope


@dataclass(frozen=True)
class Limits:
    """What a node grants to others. A kind of message that is not in `bodies` has no body."""

    bodies: Mapping[str, int] = field(default_factory=dict)  # kind -> most bytes, either direction
    header_bytes: int = 64 << 10
    calls: int = 4096  # at once, of all callers
    calls_per_caller: int = 16  # at once, of one certificate
    uploads_per_caller: int = 2  # bodies on their way at once, of one certificate
    downloads_per_caller: int = 4  # long answers on their way at once, of one certificate
    connections: int = 900  # a process often has 1,024 descriptors
    connections_per_caller: int = 8  # of one certificate; those used least recently go first
    fresh_per_address: int = 128  # from one address, without a call so far
    first_call_seconds: float = 15.0  # until a new connection's first call, handshake included
    # For one chunk. A link must carry 140 kbit/s, as the slowest mobile ones do; a node's share of
    # a link that is slower than that counts as an outage.
    chunk_seconds: float = 60.0
    call_seconds: float = 600.0  # the longest call, including waiting but not transfers
    handshake_seconds: float = 10.0
    idle_seconds: float = 900.0  # a connection without calls is closed
    connection_seconds: float = 3600.0  # then it is opened again, which checks certificates again
    connect_seconds: float = 5.0  # for one attempt to connect, handshake included
    keepalive_seconds: float = 2.0  # a silent connection is tested this often
    # Until the other machine acknowledges a packet, however long a body takes on a slow link. After
    # a silent outage, the next attempt comes within half of this.
    silence_seconds: float = 5.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "bodies" and not value > 0:
                raise InputError(f"limits.{name} must be more than 0, got {value}")
        for kind, most in self.bodies.items():
            if most < 0:
                raise InputError(f"limits.bodies['{kind}'] must be at least 0, got {most}")

    def body_bytes(self, kind: str) -> int:
        """The most bytes that a message of this kind, or the answer to it, may carry."""
        return self.bodies.get(kind, 0)

    def with_room_for(self, callers: int) -> "Limits":
        """The limits for this many callers, each with two connections, perhaps all at once.

        Half of all connections are for callers whose identity is known.
        """
        return replace(
            self,
            calls=max(self.calls, 4 * callers),
            connections=max(self.connections, 4 * callers),
            fresh_per_address=max(self.fresh_per_address, 2 * callers),
            # If all come back at once, each waits for the handshakes of the others.
            first_call_seconds=max(self.first_call_seconds, callers * HANDSHAKE_SECONDS),
        )

    def transfer_seconds(self, size: int) -> float:
        """How long a body of this many bytes may take: `chunk_seconds` for each chunk."""
        return size / CHUNK * self.chunk_seconds


Options = list[tuple[str, Any]]


def for_both(limits: Limits) -> Options:
    largest = max(CHUNK, limits.header_bytes) + 1024
    # A ping waits until the buffered part of a body, about a chunk, has passed a slow link. A dead
    # link is noticed long before that: see `silence_seconds` and `hasten`.
    ahead = limits.transfer_seconds(min(CHUNK, max(limits.bodies.values(), default=0)))
    silence = limits.silence_seconds + ahead
    return [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", largest),
        ("grpc.keepalive_time_ms", _ms(limits.keepalive_seconds)),
        ("grpc.keepalive_timeout_ms", _ms(silence)),
        # Longer than the timeout above, or gRPC would hang up although other data arrive.
        ("grpc.http2.ping_timeout_ms", _ms(2 * silence)),
        ("grpc.http2.max_pings_without_data", 0),  # a long poll is silent for minutes
    ]


def for_server(limits: Limits) -> Options:
    return [
        *for_both(limits),
        ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake, not a helper
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _ms(limits.keepalive_seconds / 4)),
        ("grpc.http2.max_ping_strikes", 10),  # after an outage, many pings arrive together
        ("grpc.server_handshake_timeout_ms", _ms(limits.handshake_seconds)),
        ("grpc.max_connection_idle_ms", _ms(limits.idle_seconds)),
        ("grpc.max_connection_age_ms", _ms(limits.connection_seconds)),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_concurrent_streams", limits.calls_per_caller),  # more wait at the caller
    ]


def for_peer(limits: Limits, server_name: str) -> Options:
    return [
        *for_both(limits),
        ("grpc.ssl_target_name_override", server_name),
        ("grpc.enable_retries", 0),  # we retry ourselves, and ask why first
        ("grpc.use_local_subchannel_pool", 1),  # one connection per peer object, never shared
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", _ms(limits.connect_seconds)),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.dns_min_time_between_resolutions_ms", 1000),  # a server may be back elsewhere
        ("grpc.enable_http_proxy", 0),
    ]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
