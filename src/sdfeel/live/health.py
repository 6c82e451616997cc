"""How a node is doing: an HTTP page for probes and metrics (metrics.py), and a file for people.

A node is healthy if it can do its part: nothing has failed, its files can be written, and its
certificate is valid. A node that waits for others is healthy, too; `lag` tells for how long.
"""

import asyncio
import errno
import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sdfeel.core.errors import InputError
from sdfeel.core.run_files import STATUS, write_atomic
from sdfeel.live.store import of_disk
from sdfeel.version import __version__

Status = dict[str, Any]
Tell = Callable[[str], None]
# What reading a damaged status file may raise.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
MOST_PROBES = 32  # at once: strangers must not use up this node's descriptors
MOST_FIELDS = 100  # of one request


@dataclass
class Health:
    """Collects a node's status; `lag` is the time since its last progress."""

    name: str
    role: str
    ask: Callable[[], Mapping[str, Any]]
    failed: str = ""  # why it ends
    trouble: str = ""  # what its own look at itself finds
    paused: str = ""  # why its work cannot go on for now
    expires: float | None = None  # when its certificate expires
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
        trouble = self.failed or self.paused or self.trouble
        if not trouble and self.expires is not None and now >= self.expires:
            trouble = "this node's certificate has expired: renew it with `sdfeel deploy renew`"
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


def write_status(directory: Path, status: Status) -> None:
    """Replace the status file; a reader never finds half of it."""
    write_atomic(directory / STATUS, f"{json.dumps(status, indent=1)}\n".encode(), durable=False)


class HealthPage:
    """A tiny HTTP server for /healthz, /metrics and /status, meant for loopback."""

    def __init__(self, health: Health, patience: float = 5.0) -> None:
        self._health, self._patience = health, patience  # seconds for one probe
        self._server: asyncio.Server | None = None
        self.probes = 0  # under way

    async def start(self, address: str) -> str:
        """Listen on host:port and return it; for port 0, with the port that the system chose."""
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
        self.probes += 1
        try:
            if self.probes > MOST_PROBES:
                return
            async with asyncio.timeout(self._patience):
                request = await reader.readline()
                for _ in range(MOST_FIELDS):
                    if not (await reader.readline()).strip():
                        break
                writer.write(self._answer(request.decode("latin-1").split()))
                await writer.drain()
        except (TimeoutError, OSError, ValueError):
            pass  # a probe that went away
        finally:
            self.probes -= 1
            writer.close()

    def _answer(self, words: list[str]) -> bytes:
        status = self._health.status()
        path = words[1] if len(words) > 1 and words[0] == "GET" else ""
        code, kind, text = "200 OK", "text/plain", "ok\n"
        if path == "/healthz":
            text = text if status["healthy"] else f"{status['last_error']}\n"
        elif path == "/status":
            kind, text = "application/json", json.dumps(status) + "\n"
        elif path == "/metrics" and find_spec("prometheus_client") is not None:
            from sdfeel.live.metrics import metrics, process_metrics

            kind, text = "text/plain; version=0.0.4", metrics(status) + process_metrics()
        elif path == "/metrics":  # on a small device
            code, text = "404 Not Found", "metrics need the package prometheus_client\n"
        else:
            code, text = "404 Not Found", "try /healthz, /metrics or /status\n"
        if path == "/healthz" and not status["healthy"]:
            code = "503 Service Unavailable"
        body = text.encode()
        head = f"HTTP/1.0 {code}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


def disk_trouble(error: Exception) -> str | None:
    """Why the disk failed; None if something else went wrong."""
    if isinstance(error, sqlite3.Error) and of_disk(error):
        return str(error)
    if isinstance(error, OSError) and error.errno in _DISK:
        return error.strerror
    return None


_DISK = {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EACCES}


def cannot_write(directory: Path, why: str) -> str:
    """A sentence: the disk cannot be written to, what that means, and what to do."""
    return (
        f"cannot write to {directory} ({why}): nothing that was acknowledged is lost; make room or "
        f"make it writable, and the node continues on its own"
    )


def last_round(directory: Path) -> int:
    """How many rounds a node had finished when it last wrote its status."""
    try:
        return int(json.loads((directory / STATUS).read_text(encoding="utf-8"))["round"])
    except UNREADABLE:
        return 0


def last_time(directory: Path, tell: Tell) -> None:
    """Log it if the previous process ended without logging why."""
    try:
        ended = json.loads((directory / STATUS).read_text(encoding="utf-8"))["ended"]
    except UNREADABLE:
        return
    if ended is False:
        kills = _killed_for_memory()
        memory = f" (the system has killed {kills} here for lack of memory)" if kills else ""
        tell(
            f"the previous process ended without saying why: it was killed{memory}, or the "
            f"power failed; nothing that was acknowledged is lost"
        )


def _killed_for_memory() -> int:
    """How many processes of this control group the system has killed for lack of memory."""
    with suppress(OSError, ValueError):
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        events = Path(f"/sys/fs/cgroup{own}/memory.events").read_text().split()
        return int(dict(zip(events[::2], events[1::2], strict=True)).get("oom_kill", 0))
    return 0
