"""A few lines in place of many: every n-th, and the lows and highs that must not be lost."""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, isnan
from typing import Generic, Protocol, TypeVar

from sdfeel.dashboard.log_lines import LoggedEvent, LogLine

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
