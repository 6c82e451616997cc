"""A log from its end, page by page."""

from dataclasses import dataclass
from typing import IO

from sdfeel.dashboard.logs.parsing import LogLine, kind_of

LOOKED = 16 << 20  # bytes looked through for one page


@dataclass(frozen=True)
class LogPage:
    """Some lines of a log, newest first; `before` asks for older ones (None: there are none)."""

    lines: tuple[LogLine, ...]
    before: int | None


def backwards(file: IO[bytes], end: int, count: int, kind: bytes | None) -> LogPage:
    """Lines from `end` to the front; at most LOOKED bytes are looked at."""
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
