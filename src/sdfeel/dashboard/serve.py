"""Serves the page on a socket."""

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from sdfeel.core.errors import InputError
from sdfeel.dashboard.app import build
from sdfeel.dashboard.http.access import LOOPBACK


@dataclass(frozen=True)
class ServeOptions:
    """What is served, where, and to whom."""

    directory: Path
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    allow_start: bool = False
    token: str | None = None  # None: a random one where one is needed


def serve(options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the address as soon as it is open."""
    if not options.directory.is_dir():
        raise InputError(f"no directory {options.directory}: give one that holds runs")
    token = options.token
    if options.host not in LOOPBACK:
        token = token or secrets.token_urlsafe(18)
    with _socket(options.host, options.port) as listening:
        server: list[uvicorn.Server] = []
        app = build(
            options.directory,
            options.allow_start,
            token,
            closing=lambda: bool(server) and server[0].should_exit,
        )
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, lifespan="on"
        )
        server.append(uvicorn.Server(config))
        ready(_address(listening, options.host, token))
        with suppress(KeyboardInterrupt):  # the usual end
            server[0].run(sockets=[listening])


def _socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen()  # from here on connections are accepted, even before we answer
    except (OSError, OverflowError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot listen on {host} port {port} ({reason}): choose another --port or --host"
        ) from None
    return found


def _address(listening: socket.socket, host: str, token: str | None) -> str:
    name = f"[{host}]" if ":" in host else host
    secret = f"?token={token}" if token is not None else ""
    return f"http://{name}:{listening.getsockname()[1]}/{secret}"
