"""Reads an event log that may be huge, growing, half-written or damaged.

A log is read once, in pieces, and afterwards only what was appended. Most rounds of a long log are
skipped: an evenly spaced sample of them is kept, and the lows and the highs of the measurements.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from threading import Lock
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.arrays import Ints
from sdfeel.core.events import Event, Round
from sdfeel.core.run_files import EVENTS
from sdfeel.dashboard.log_files import Root
from sdfeel.dashboard.log_lines import HEAD, Lines, LoggedEvent, LogLine, LogPage, backwards, parse
from sdfeel.dashboard.log_samples import Extremes, Sampled

CHUNK, LONGEST = 4 << 20, 64 << 20  # bytes read at once; bytes of one line
ROUNDS, EVALUATIONS, CREWS = 4096, 4096, 2048  # this many are kept
EDGE = 256  # bytes by which a log is recognised
FEW = 200  # of everything else
NEWLINE, BRACE = b"\n}"
ROUND, EVALUATED, NO_CREW = HEAD + b'round"', HEAD + b'evaluated"', b'"crew": null'


class LogReader:
    """What is known about one log; `refresh` reads what was appended."""

    def __init__(self, root: Root, name: str) -> None:
        self.root, self.name = root, name
        self._lock = Lock()
        self._forget(0)

    def _forget(self, inode: int) -> None:
        self._inode = inode
        self.end = 0  # of the last whole line
        self._front = self._seam = b""  # first bytes, and last: they differ if it was rewritten
        self.lines = 0
        self.half = False  # is there half a line after the last whole one?
        self.damaged: list[int] = []  # the first numbers of lines that are not events
        self.damages = 0
        self.rounds = Sampled[LogLine, LoggedEvent](ROUNDS, self._read_round)
        self.evaluations = Extremes(EVALUATIONS, self._read)
        self.crews = Sampled[LogLine, LoggedEvent](CREWS, self._read_crew)
        self.others: list[LoggedEvent] = []

    def refresh(self) -> None:
        """Read what is new. Raises NotHere if there is no log (any more)."""
        with self._lock, os.fdopen(self.root.open(self.name, EVENTS), "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or not self._goes_on(file):
                self._forget(found.st_ino)
            size = CHUNK
            while True:
                file.seek(self.end)
                data = file.read(size)
                cut = data.rfind(b"\n") + 1
                if cut:
                    self._take(data[:cut], found.st_size - self.end - cut)
                elif len(data) == size < LONGEST:
                    size *= 2
                    continue
                elif len(data) == LONGEST:
                    self._skip(len(data))
                if len(data) < size:
                    self.half = cut < len(data)
                    self.evaluations.settle()
                    return

    def events(self) -> list[Event]:
        """What is kept, in the order of the log."""
        with self._lock:
            return [logged.event for logged in merge(self.others, self.evaluations, self.rounds)]

    @property
    def thinned(self) -> bool:
        return self.rounds.stride > 1 or self.evaluations.stride > 1

    def tail(self, before: int | None, count: int, kind: str | None) -> "LogPage":
        """The last `count` lines (of a kind) that end before an offset, newest first."""
        with os.fdopen(self.root.open(self.name, EVENTS), "rb") as file:
            return backwards(file, self.end if before is None else min(before, self.end), count,
                              kind.encode() if kind else None)  # fmt: skip

    def between(self, begin: float, end: float, most: int) -> list[Event]:
        """The rounds that touch a window of virtual time, each lane's first with its crew.

        At most `most` lines are read.
        """
        with self._lock:
            before = [p for p in self.rounds if p.event.seconds <= begin]
            crews = [p for p in self.crews if not before or p.offset <= before[-1].offset]
            first = before[-1].offset if before else 0
        latest = {logged.event.lane: logged.event.crew for logged in crews}
        found: list[Event] = []
        seen: set[tuple[int, ...]] = set()
        past: set[tuple[int, ...]] = set()
        for line in self._from(first, most):
            event = parse(line.data)
            if not isinstance(event, Round):
                continue
            if event.lane not in seen:
                seen.add(event.lane)
                found += _opened(event, latest.get(event.lane))
            else:
                found.append(event)
            if event.seconds >= end:
                past.add(event.lane)
            if past and past == seen:
                break
        return found

    def _from(self, offset: int, most: int) -> Iterator[LogLine]:
        with os.fdopen(self.root.open(self.name, EVENTS), "rb") as file:
            file.seek(offset)
            for number in range(most):
                data = file.readline(LONGEST)
                if not data.endswith(b"\n"):
                    return
                yield LogLine(number, offset, data[:-1])
                offset += len(data)

    def _goes_on(self, file: IO[bytes]) -> bool:
        """Does the file still contain what was read?"""
        same = file.read(len(self._front)) == self._front
        file.seek(max(0, self.end - len(self._seam)))
        return same and file.read(len(self._seam)) == self._seam

    def _take(self, data: bytes, left: int) -> None:
        """Add whole lines, which end `left` bytes before the log does. Most are not parsed, only
        classified."""
        letters = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(letters == NEWLINE)
        starts = np.concatenate([[0], ends[:-1] + 1])

        def line(index: int) -> LogLine:
            begin, end = int(starts[index]), int(ends[index])
            return LogLine(self.lines + index, self.end + begin, data[begin:end])

        whole = letters[ends - 1] == BRACE
        is_round = whole & _there(letters, starts, ROUND)
        is_measured = whole & ~is_round & _there(letters, starts, EVALUATED)
        rounds, evaluations = np.flatnonzero(is_round), np.flatnonzero(is_measured)
        crews = rounds[:0]
        if data.count(NO_CREW) != len(rounds):
            crews = np.array(
                [i for i in rounds.tolist() if NO_CREW not in line(i).data], rounds.dtype
            )
        # Half as many as if the log continued like this; any excess is thinned later.
        self.rounds.expect(int(len(rounds) * left / len(data) / 2))
        self.rounds.extend(Lines(rounds, line))
        self.evaluations.extend(Lines(evaluations, line))
        self.crews.extend(Lines(crews, line))
        for index in np.flatnonzero(~is_round & ~is_measured):
            self._keep(line(int(index)))
        self.lines += len(ends)
        self.end += len(data)
        self._front = self._front or data[:EDGE]
        self._seam = data[-EDGE:]

    def _skip(self, size: int) -> None:
        self._bad(self.lines)
        self.end += size
        self._seam = b""

    def _keep(self, line: LogLine) -> None:
        logged = self._read(line)
        if logged is not None:
            self.others.append(logged)
            if len(self.others) > FEW:  # the first and the newest matter most
                del self.others[FEW // 2]

    def _read(self, line: LogLine) -> LoggedEvent | None:
        event = parse(line.data)
        if event is None:
            self._bad(line.number)
            return None
        return LoggedEvent(line.number, line.offset, event)

    def _read_round(self, line: LogLine) -> LoggedEvent | None:
        logged = self._read(line)
        return logged and replace(logged, event=replace(logged.event, crew=None))

    def _read_crew(self, line: LogLine) -> LoggedEvent | None:
        logged = self._read(line)
        return logged if logged is not None and logged.event.crew is not None else None

    def _bad(self, number: int) -> None:
        if number + 1 not in self.damaged:
            self.damages += 1
            if len(self.damaged) < FEW:
                self.damaged.append(number + 1)


def _opened(event: Round, crew: Any) -> list[Event]:
    """A lane's first round in a window, and the round before it, which shows when it began."""
    event = replace(event, crew=event.crew if event.crew is not None else crew)
    began = event.seconds - sum(event.phases.values())
    return [replace(event, seconds=began, mixed=()), event] if began > 0 else [event]


def _there(letters: NDArray[np.uint8], offsets: Ints, word: bytes) -> NDArray[np.bool_]:
    """Is the word at each of these offsets?"""
    found = np.ones(len(offsets), bool)
    last = len(letters) - 1
    for offset, letter in enumerate(word):
        found &= letters[np.clip(offsets + offset, 0, last)] == letter
    return found
