"""The audit log: who called a node, and how each call ended, in lines chained by their hashes.

Every line has a hash of itself and the line before, so no line can be changed, removed or inserted
without breaking all that follow. Of several calls with the same caller, kind and outcome, the first
is written at once; later ones are counted and written together after a while. So nobody can fill a
disk by calling often.
"""

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sdfeel.core.errors import RunError

FIRST = "0" * 64  # stands for the hash before the first line
ANSWERED = "answered"
EVERY = {ANSWERED: 600.0}  # seconds between two lines about calls that are alike
OTHERS_EVERY = 60.0
MOST_KINDS = 4096  # kinds of calls that are counted; beyond that, all counts are written
_TAIL = 1 << 16  # bytes that are read at the end; no line is longer


@dataclass(frozen=True)
class AuditedCall:
    """One call that has ended."""

    who: str
    serial: str
    call: str
    outcome: str
    received: int = 0
    sent: int = 0
    address: str = ""
    reason: str = ""

    @property
    def kind(self) -> tuple[str, str, str, str]:
        return self.who, self.serial, self.call, self.outcome


@dataclass
class _Waiting:
    """Calls of one kind that are counted but not written yet, and since when."""

    since: float
    last: AuditedCall | None = None
    calls: int = 0
    received: int = 0
    sent: int = 0


@dataclass
class AuditLog:
    """The log of one node. A line that cannot be written is reported, and waits for the disk."""

    path: Path
    tell: Callable[[str], None] = lambda line: None
    clock: Callable[[], float] = time.monotonic
    lines: int = 0
    head: str = FIRST  # the hash of the last line
    _waiting: dict[tuple[str, str, str, str], _Waiting] = field(default_factory=dict)
    _unwritten: list[dict[str, Any]] = field(default_factory=list)
    _failing: bool = False

    def __post_init__(self) -> None:
        with suppress(FileNotFoundError):
            self._continue()

    def _continue(self) -> None:
        """Continue where the last process stopped; half a line at the end comes from a crash."""
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            tail = file.read()
        whole = tail[: tail.rfind(b"\n") + 1]
        if len(whole) < len(tail):
            with suppress(OSError):
                os.truncate(self.path, size - len(tail) + len(whole))
        if not whole:
            return
        try:
            last = json.loads(whole.splitlines()[-1])
            self.lines, self.head = int(last["n"]), str(last["chain"])
        except (ValueError, KeyError, TypeError):
            aside = self.path.with_name(f"damaged-{int(time.time())}-{self.path.name}")
            self.path.rename(aside)
            self.tell(f"the audit log was damaged: it is now {aside}, and a new one begins")

    def note(self, call: AuditedCall) -> None:
        """Write a call, or count it with others of its kind."""
        if call.kind not in self._waiting:
            if len(self._waiting) >= MOST_KINDS:
                self.flush(everything=True)
            self._waiting[call.kind] = _Waiting(self.clock())
            self._write(call, 1, call.received, call.sent)
            return
        waiting = self._waiting[call.kind]
        waiting.last, waiting.calls = call, waiting.calls + 1
        waiting.received += call.received
        waiting.sent += call.sent

    def flush(self, everything: bool = False) -> None:
        """Write the counts that have waited for long enough, or everything."""
        now = self.clock()
        for kind, waiting in list(self._waiting.items()):
            if everything or now - waiting.since >= EVERY.get(kind[-1], OTHERS_EVERY):
                del self._waiting[kind]
                if waiting.last is not None:
                    self._write(waiting.last, waiting.calls, waiting.received, waiting.sent)
                    self._waiting[kind] = _Waiting(now)
        self._append()

    def _write(self, call: AuditedCall, calls: int, received: int, sent: int) -> None:
        line = {**asdict(call), "calls": calls, "received": received, "sent": sent}
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._unwritten.append({"time": moment, **line})
        del self._unwritten[:-MOST_KINDS]
        self._append()

    def _append(self) -> None:
        while self._unwritten:
            fresh = not self.path.exists() or not self.path.stat().st_size  # new or rotated
            line = {"n": self.lines + 1, **self._unwritten[0]}
            if fresh:
                line["before"] = self.head
            chain = hash_of(self.head, line)
            try:
                with self.path.open("ab") as file:
                    start = file.tell()
                    try:
                        file.write(json.dumps({**line, "chain": chain}).encode() + b"\n")
                        file.flush()
                    except OSError:
                        with suppress(OSError):
                            file.truncate(start)
                        raise
            except OSError as error:
                if not self._failing:
                    self.tell(f"cannot write the audit log {self.path}: {error.strerror}")
                self._failing = True
                return
            self._failing = False
            self.lines, self.head = self.lines + 1, chain
            del self._unwritten[0]


def hash_of(before: str, line: dict[str, Any]) -> str:
    text = json.dumps(line, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()


@dataclass(frozen=True)
class Audit:
    """The content of an intact log."""

    lines: int
    head: str
    outcomes: dict[str, int]
    denied: list[str]  # calls that were turned away, with the reasons


def verified(path: Path, head: str | None = None) -> Audit:
    """Check a log line by line; a `head` that somebody noted earlier must still be in it."""
    before, number, outcomes = None, 0, Counter[str]()
    denied: dict[str, str] = {}
    seen = head is None
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for place, text in enumerate(file, start=1):
                try:
                    line: dict[str, Any] = json.loads(text)
                    chain, count = str(line.pop("chain")), int(line["calls"])
                    first = str(line["before"]) if before is None else before
                    follows = before is None or line["n"] == number + 1
                    whole = text.endswith("\n") and hash_of(first, line) == chain
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    whole = follows = False
                if not (whole and follows):
                    raise RunError(
                        f"{path}, line {place}, does not follow from the one before: something was "
                        f"changed, added or removed there"
                    )
                before, number, seen = chain, line["n"], seen or chain == head
                outcomes[line["outcome"]] += count
                if line["outcome"] not in (ANSWERED, "gone"):
                    denied[f"{line['outcome']} {line['call'] or 'a call'} of {line['who']}"] = line[
                        "reason"
                    ]
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None
    if not seen:
        raise RunError(f"{path} has no line {head}: its end was cut off, or it was rewritten")
    return Audit(
        number, before or FIRST, dict(outcomes), [f"{who}: {why}" for who, why in denied.items()]
    )
