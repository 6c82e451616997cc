"""How a node is: an HTTP page for probes, metrics for Prometheus, and a file for people.

Healthy means that this node can do its part: nothing has failed, its files can be written, and its
certificate is valid. A node that waits for others is healthy; how long it has waited is `lag`.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sdfeel.core.errors import InputError
from sdfeel.core.run_files import STATUS, write_atomic
from sdfeel.version import __version__

Status = dict[str, Any]
COUNTERS = {
    "results": "Results of clients that were kept.",
    "repeated": "Messages that came more than once, and changed nothing.",
    "rejected": "Models that did not pass the checks.",
    "dropped": "Clients that a round was closed without.",
    "withheld": "Averages that did not pass the checks, and were not kept.",
    "rounds_trained": "Rounds that this client has trained in.",
    "bytes": "Bytes of models sent and received.",
    "denied": "Calls with a certificate that is not accepted.",
    "refused": "Calls that were understood, and refused.",
    "busy": "Calls of somebody who had too many under way.",
    "slow": "Calls that stalled or took too long.",
    "failed": "Calls that this node failed to handle.",
    "cut": "Connections that were ended because they were too many or denied.",
    "audit_lines": "Lines of the audit log.",
}
GAUGES = {
    "round": "Rounds finished.",
    "iterations": "Local iterations that this server counts.",
    "lag_seconds": "Seconds since the last progress.",
    "healthy": "1 if this node can do its part.",
    "over": "1 if all rounds are done.",
    "certificate_expiry_timestamp_seconds": "When this node's certificate expires.",
    "waiting_for": "Nodes that this one waits for.",
    "absent": "Nodes that this one goes on without.",
    "guests": "Clients of other servers that work here.",
    "quarantined": "Nodes that are left out because of what they sent.",
}
OFFENCES = "What each node sent that no honest node sends."


@dataclass
class Health:
    """Collects what a node says about itself; `lag` is the time since its last progress."""

    name: str
    role: str
    ask: Callable[[], Mapping[str, Any]]
    failed: str = ""  # why it ends
    trouble: str = ""  # why it cannot do its part now
    expires: float | None = None  # when its certificate does
    page: str = ""  # host:port of the HTTP page
    clock: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic  # never jumps
    _progress: tuple[int, float] | None = field(default=None)

    def status(self) -> Status:
        told = dict(self.ask())
        now, steady = self.clock(), self.steady()
        done = int(told.get("round", 0))
        if self._progress is None or self._progress[0] != done:
            self._progress = (done, steady)
        lag = 0.0 if told.get("over") else steady - self._progress[1]
        trouble = self.failed or self.trouble
        if not trouble and self.expires is not None and now >= self.expires:
            trouble = "this node's certificate has expired: renew it"
        last = str(told.pop("last_error", ""))
        return {
            "name": self.name,
            "role": self.role,
            "healthy": not trouble,
            "lag": round(lag, 3),
            **told,
            "last_error": trouble or last,
            "certificate_expires": self.expires,
            "health": self.page,
            "version": __version__,
            "updated": now,
        }


class _Told(Collector):
    """A status as metrics."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status
        labels, values = ["node", "role"], [str(status["name"]), str(status["role"])]
        known = {
            **status,
            "lag_seconds": status.get("lag"),
            "certificate_expiry_timestamp_seconds": status.get("certificate_expires"),
            "audit_lines": (status.get("audit") or {}).get("lines"),
        }
        for name, text in COUNTERS.items():
            if known.get(name) is not None:
                family = CounterMetricFamily(f"sdfeel_{name}", text, labels=labels)
                family.add_metric(values, _number(known[name]))
                yield family
        for name, text in GAUGES.items():
            if known.get(name) is not None:
                gauge = GaugeMetricFamily(f"sdfeel_{name}", text, labels=labels)
                gauge.add_metric(values, _number(known[name]))
                yield gauge
        offences: Mapping[str, int] = status.get("offences") or {}
        if offences:
            family = CounterMetricFamily("sdfeel_offences", OFFENCES, labels=[*labels, "offender"])
            for offender, times in offences.items():
                family.add_metric([*values, offender], times)
            yield family
        if status.get("version"):
            built = GaugeMetricFamily(
                "sdfeel_build_info", "The version of sdfeel.", labels=[*labels, "version"]
            )
            built.add_metric([*values, str(status["version"])], 1)
            yield built


def _number(value: Any) -> float:
    """A list counts by its length."""
    return float(len(value)) if isinstance(value, list) else float(value)


def metrics(status: Mapping[str, Any]) -> str:
    """The status as Prometheus text.

    >>> print(metrics({"name": "edge-0", "role": "edge", "round": 12345678}), end="")
    # HELP sdfeel_round Rounds finished.
    # TYPE sdfeel_round gauge
    sdfeel_round{node="edge-0",role="edge"} 1.2345678e+07
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Told(status))
    return generate_latest(registry).decode()


def process_metrics() -> str:
    """Memory, descriptors and processor time of this process as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


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
            self._server = await asyncio.start_server(self._serve, host.strip("[]"), int(port))
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
            "/metrics": ("text/plain; version=0.0.4", metrics(status) + process_metrics()),
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
