"""Reads an event log that may be huge, growing, half-written or damaged.

A log is read once, in pieces, and afterwards only what was appended. Most rounds of a long log are
skipped: an evenly spaced sample of them is kept, and the lows and the highs of the measurements.
"""

import operator
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from heapq import merge
from math import inf, isnan
from threading import Lock
from typing import IO, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from sdfeel.core.arrays import Ints
from sdfeel.core.events import Evaluated, Event, Finished, Round, Started, Warned
from sdfeel.core.run_files import EVENTS
from sdfeel.dashboard.log_files import Root

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


Raw = TypeVar("Raw")
Item = TypeVar("Item")
Some = TypeVar("Some", covariant=True)


class Indexed(Protocol[Some]):
    """The part of a sequence's methods that is needed here."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Some: ...


class Sampled(Generic[Raw, Item]):
    """Every n-th item of a growing sequence, and the newest: never more than `limit` + 1 items.

    `read` turns an item into what is kept, or into None to leave it out; it is called for few.

    >>> few = Sampled[str, int](4, int)
    >>> few.extend("0123456789")
    >>> list(few), few.stride, few.count
    ([0, 4, 8, 9], 4, 10)
    """

    def __init__(self, limit: int, read: Callable[[Raw], Item | None]) -> None:
        self.limit, self.read = limit, read
        self.stride, self.count = 1, 0
        self._kept: list[tuple[int, Item]] = []  # with their places in the sequence
        self._newest: Item | None = None

    def extend(self, items: Indexed[Raw]) -> None:
        """Extend the sequence with `items`."""
        if len(items) == 0:
            return
        for index in range(-self.count % self.stride, len(items), self.stride):
            item = self.read(items[index])
            if item is not None:
                self._kept.append((self.count + index, item))
        self.count += len(items)
        while len(self._kept) > self.limit:
            self._halve()
        self._newest = self.read(items[len(items) - 1])

    def expect(self, more: int) -> None:
        """Prepare for this many more items, so that none is read that would not stay."""
        while (self.count + more) // self.stride > self.limit:
            self._halve()

    @property
    def newest(self) -> Item | None:
        """The last of all."""
        return self._newest

    def __iter__(self) -> Iterator[Item]:
        yield from (item for _, item in self._kept)
        if self._newest is not None and (not self._kept or self._kept[-1][0] != self.count - 1):
            yield self._newest

    def _halve(self) -> None:
        self.stride *= 2
        self._kept = [kept for kept in self._kept if kept[0] % self.stride == 0]


WATCHED = tuple(
    re.compile(rb'"%s": ([^,}]{1,40})' % name) for name in (b"accuracy", b"loss", b"spread")
)


def watched(line: LogLine) -> tuple[float | None, ...]:
    """The numbers of a measurement whose lows and highs must not be lost, without parsing it all.

    What has diverged counts as infinitely high.
    """
    found = []
    for pattern in WATCHED:
        text = pattern.search(line.data)
        try:
            value = float(text[1]) if text else None
        except ValueError:
            value = None
        found.append(inf if value is not None and isnan(value) else value)
    return tuple(found)


Extreme = tuple[float, LogLine] | None


def _further(old: Extreme, new: Extreme, beyond: Callable[[float, float], bool]) -> Extreme:
    if old is None or new is None:
        return old or new
    return new if beyond(new[0], old[0]) else old


@dataclass
class _Bucket:
    """Neighbours in a sequence: the first, and the lowest and the highest by each number."""

    first: LogLine
    low: list[Extreme]
    high: list[Extreme]

    def add(self, other: "_Bucket") -> "_Bucket":
        for place in range(len(self.low)):
            self.low[place] = _further(self.low[place], other.low[place], operator.lt)
            self.high[place] = _further(self.high[place], other.high[place], operator.gt)
        return self

    def lines(self) -> set[LogLine]:
        return {self.first, *(each[1] for each in (*self.low, *self.high) if each is not None)}


class Extremes:
    """The lows and the highs of every `stride` measurements in a growing sequence.

    A line that is the lowest or the highest of its bucket stays, so that a sudden collapse cannot
    hide between two samples. The newest is always there.
    """

    def __init__(self, limit: int, read: Callable[[LogLine], LoggedEvent | None]) -> None:
        self.limit, self.read = limit, read
        self.stride, self.count = 1, 0
        self._buckets: list[_Bucket] = []
        self._newest: LogLine | None = None
        self._known: dict[int, LoggedEvent | None] = {}  # by number, so that none is parsed twice

    def extend(self, items: Indexed[LogLine]) -> None:
        """Extend the sequence with `items`."""
        for index in range(len(items)):
            self._append(items[index])

    def _append(self, line: LogLine) -> None:
        numbers = watched(line)
        both: list[Extreme] = [None if each is None else (each, line) for each in numbers]
        bucket = _Bucket(line, list(both), list(both))
        if self.count % self.stride:
            self._buckets[-1].add(bucket)
        else:
            self._buckets.append(bucket)
        self.count += 1
        self._newest = line
        while len(self._buckets) * min(self.stride, 1 + 2 * len(WATCHED)) > self.limit:
            pairs = zip(self._buckets[::2], [*self._buckets[1::2], None], strict=False)
            self._buckets = [first.add(second or first) for first, second in pairs]
            self.stride *= 2

    def settle(self) -> None:
        """Parse the lines that are kept, unless they were parsed before."""
        lines = {line for bucket in self._buckets for line in bucket.lines()}
        if self._newest is not None:
            lines.add(self._newest)
        self._known = {
            line.number: self._known[line.number] if line.number in self._known else self.read(line)
            for line in sorted(lines)
        }

    def __iter__(self) -> Iterator[LoggedEvent]:
        return (each for each in self._known.values() if each is not None)


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
