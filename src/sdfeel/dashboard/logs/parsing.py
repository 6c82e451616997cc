"""Lines of a log, and the events that they hold."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sdfeel.core.arrays import Ints
from sdfeel.core.events import Evaluated, Event, Finished, Round, Started, Warned

HEAD = b'{"event": "'
KINDS: dict[bytes, TypeAdapter[Any]] = {
    kind.__name__.lower().encode(): TypeAdapter(kind)
    for kind in (Started, Round, Evaluated, Warned, Finished)
}


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
    """The event of a line; None if it is none."""
    kind = kind_of(data)
    if kind is None:
        return None
    try:
        event: Event = KINDS[kind].validate_json(data)
    except ValidationError:
        return None
    return event


def kind_of(data: bytes) -> bytes | None:
    """The name of a line's event, by its first bytes."""
    if not data.startswith(HEAD):
        return None
    name = data[len(HEAD) : data.find(b'"', len(HEAD))]
    return name if name in KINDS else None


@dataclass(frozen=True)
class Lines:
    """Some lines of a piece, made only when they are asked for."""

    indices: Ints
    make: Callable[[int], LogLine]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> LogLine:
        return self.make(int(self.indices[index]))
