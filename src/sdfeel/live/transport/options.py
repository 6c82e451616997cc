"""gRPC's settings, from our limits."""

from typing import Any

from sdfeel.live.limits import CHUNK, Limits

Options = list[tuple[str, Any]]


def for_both(limits: Limits) -> Options:
    largest = max(CHUNK, limits.header_bytes) + 1024
    # A ping waits behind what is buffered of a body, about a chunk, which a slow link sends first.
    ahead = limits.transfer_seconds(min(CHUNK, max(limits.bodies.values(), default=0)))
    silence = limits.keepalive_seconds + ahead
    return [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", largest),
        ("grpc.keepalive_time_ms", _ms(limits.keepalive_seconds)),
        ("grpc.keepalive_timeout_ms", _ms(silence)),
        # Longer than the silence above, or it would count although other data arrive.
        ("grpc.http2.ping_timeout_ms", _ms(2 * silence)),
        ("grpc.http2.max_pings_without_data", 0),  # a long poll is silent for minutes
    ]


def for_server(limits: Limits) -> Options:
    return [
        *for_both(limits),
        ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake, not a helper
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _ms(limits.keepalive_seconds / 2)),
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
        ("grpc.enable_retries", 0),  # they are ours, and ask why before they go on
        ("grpc.use_local_subchannel_pool", 1),  # one connection per peer object, never shared
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", _ms(limits.handshake_seconds)),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.enable_http_proxy", 0),
    ]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
