"""Lines of an event log: each parsed when it is needed, and read backwards from any place."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from sdfeel.core.arrays import Ints
from sdfeel.core.events import Evaluated, Event, Finished, Round, Started, Warned

HEAD = b'{"event": "'
KINDS: dict[bytes, TypeAdapter[Any]] = {
    kind.__name__.lower().encode(): TypeAdapter(kind)
    for kind in (Started, Round, Evaluated, Warned, Finished)
}
# What an event counts: never below 0.
COUNTS = {
    kind.__name__.lower().encode(): [
        each.name for each in fields(kind) if each.type in (int, "int") and each.name != "seed"
    ]
    for kind in (Started, Round, Evaluated, Warned, Finished)
}
MOST = 1 << 1000  # a larger number would not fit a float


@dataclass(frozen=True, order=True)
class LogLine:
    """A line of the log: its number, where it begins, and its bytes."""

    number: int
    offset: int
    data: bytes = field(compare=False)


@dataclass(frozen=True, order=True)
class LoggedEvent:
    """An event, and its line's number and offset."""

    number: int
    offset: int
    event: Any = field(compare=False)


def parse(data: bytes) -> Event | None:
    """The event in a line; None if it is not an event."""
    kind = kind_of(data)
    if kind is None:
        return None
    try:
        event: Event = KINDS[kind].validate_json(data)
    except ValidationError:
        return None
    counted = all(0 <= getattr(event, name) < MOST for name in COUNTS[kind])
    return event if counted else None


def kind_of(data: bytes) -> bytes | None:
    """The name of a line's event, by its first bytes."""
    if not data.startswith(HEAD):
        return None
    name = data[len(HEAD) : data.find(b'"', len(HEAD))]
    return name if name in KINDS else None


@dataclass(frozen=True)
class Lines:
    """Some lines of a piece, made only on demand."""

    indices: Ints
    make: Callable[[int], LogLine]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> LogLine:
        return self.make(int(self.indices[index]))


LOOKED = 16 << 20  # bytes searched for one page


@dataclass(frozen=True)
class LogPage:
    """Some lines of a log, newest first; older ones end at `before` (None: there are none)."""

    lines: tuple[LogLine, ...]
    before: int | None


def backwards(file: IO[bytes], end: int, count: int, kind: bytes | None) -> LogPage:
    """Lines from `end` backwards; at most LOOKED bytes are searched."""
    found: list[LogLine] = []
    stop, carried = max(0, end - LOOKED), b""
    position = end
    while position > stop and len(found) < count:
        size = min(1 << 18, position - stop)
        position -= size
        file.seek(position)
        data = file.read(size) + carried
        pieces = data.split(b"\n")
        carried = pieces[0] if position > 0 else b""
        here = position + len(pieces[0]) + 1
        lines = [] if position > 0 else [LogLine(0, 0, pieces[0])]
        for piece in pieces[1:]:
            lines.append(LogLine(0, here, piece))
            here += len(piece) + 1
        for line in reversed(lines):
            if line.data and (kind is None or kind_of(line.data) == kind):
                found.append(line)
            if len(found) == count:
                return LogPage(tuple(found), line.offset or None)
    return LogPage(tuple(found), position or None if stop else None)
