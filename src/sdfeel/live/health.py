"""How a node is: an HTTP page for probes, metrics for Prometheus, and a file for people."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdfeel.core.errors import InputError
from sdfeel.core.run_files import STATUS, write_atomic

Status = dict[str, Any]
COUNTERS = (
    *("results", "repeated", "rejected", "dropped", "rounds_trained", "bytes"),
    *("withheld", "denied", "refused", "cut"),
)
GAUGES = ("round", "iterations", "lag", "healthy", "over")


@dataclass
class Health:
    """Collects what a node says about itself; `lag` is the time since its last progress."""

    name: str
    role: str
    ask: Callable[[], Mapping[str, Any]]
    stuck_after: float = 300.0  # seconds without progress until a node counts as unhealthy
    failed: str = ""
    page: str = ""  # host:port of the HTTP page
    clock: Callable[[], float] = time.time
    _progress: tuple[int, float] | None = field(default=None)

    def status(self) -> Status:
        told = dict(self.ask())
        now = self.clock()
        done = int(told.get("round", 0))
        if self._progress is None or self._progress[0] != done:
            self._progress = (done, now)
        lag = 0.0 if told.get("over") else now - self._progress[1]
        error = self.failed or str(told.pop("last_error", ""))
        return {
            "name": self.name,
            "role": self.role,
            "healthy": not self.failed and lag < self.stuck_after,
            "lag": round(lag, 3),
            **told,
            "last_error": error,
            "health": self.page,
            "updated": now,
        }


def metrics(status: Mapping[str, Any]) -> str:
    """The status as Prometheus text.

    >>> print(metrics({"name": "edge-0", "role": "edge", "round": 3, "bytes": 10}), end="")
    # TYPE sdfeel_bytes_total counter
    sdfeel_bytes_total{node="edge-0",role="edge"} 10
    # TYPE sdfeel_round gauge
    sdfeel_round{node="edge-0",role="edge"} 3
    """
    labels = f'{{node="{status["name"]}",role="{status["role"]}"}}'
    lines = []
    for kind, names, suffix in (("counter", COUNTERS, "_total"), ("gauge", GAUGES, "")):
        for name in names:
            if name in status:
                lines.append(f"# TYPE sdfeel_{name}{suffix} {kind}")
                lines.append(f"sdfeel_{name}{suffix}{labels} {float(status[name]):g}")
    offences: Mapping[str, int] = status.get("offences", {})
    if offences:
        lines.append("# TYPE sdfeel_offences_total counter")
        lines += [
            f'sdfeel_offences_total{labels[:-1]},offender="{name}"}} {times}'
            for name, times in offences.items()
        ]
    return "\n".join(lines) + "\n"


def write_status(directory: Path, status: Status) -> None:
    """Replace the status file; a reader never finds half of it."""
    write_atomic(directory / STATUS, f"{json.dumps(status, indent=1)}\n".encode(), durable=False)


class HealthPage:
    """A tiny HTTP server for /healthz, /metrics and /status, meant for loopback."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> str:
        """Listen on host:port; return the same with the port that the system chose for 0."""
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(self._serve, host, int(port))
        except (OSError, ValueError, OverflowError):
            raise InputError(
                f"cannot serve health on {address}: give a free host:port, or port 0 for any"
            ) from None
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                request = await reader.readline()
                while (await reader.readline()).strip():
                    pass
                writer.write(self._answer(request.decode("latin-1").split()))
                await writer.drain()
        except (TimeoutError, OSError, ValueError):
            pass  # a probe that went away
        finally:
            writer.close()

    def _answer(self, words: list[str]) -> bytes:
        status = self._health.status()
        pages = {
            "/healthz": (
                "text/plain",
                "ok\n" if status["healthy"] else f"{status['last_error']}\n",
            ),
            "/metrics": ("text/plain; version=0.0.4", metrics(status)),
            "/status": ("application/json", json.dumps(status) + "\n"),
        }
        path = words[1] if len(words) > 1 and words[0] == "GET" else ""
        kind, text = pages.get(path, ("text/plain", "try /healthz, /metrics or /status\n"))
        code = "200 OK" if path in pages else "404 Not Found"
        if path == "/healthz" and not status["healthy"]:
            code = "503 Service Unavailable"
        body = text.encode()
        head = f"HTTP/1.0 {code}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body
