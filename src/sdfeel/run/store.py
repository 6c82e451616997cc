"""A run's directory: what is written, and how it survives a crash.

    experiment.toml          the experiment with every choice filled in
    events.jsonl             one event per line, only ever appended to
    metrics.csv              the measurements as a table
    checkpoint.safetensors   the newest state; replaced as a whole
    checkpoint.changes       what has changed since; only of large states, while they are running
    model.safetensors        the final model, once finished

The log is flushed to disk before a checkpoint that depends on it, and a checkpoint records how
long the log was. A resume cuts the log back to that length, so whatever was written later, whole
lines or half a line, is simply done again.
"""

import csv
import fcntl
import json
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import IO, Any

from sdfeel.core.errors import RunError
from sdfeel.core.events import Evaluated, Event, from_record, to_record
from sdfeel.core.forks import not_inherited
from sdfeel.core.run_files import EVENTS, EXPERIMENT, LOCK, METRICS, MODEL

COLUMNS = ["number", "iterations", "seconds", "bytes", "joules"]
COLUMNS += ["accuracy", "loss", "test_loss", "spread"]


def create(directory: Path) -> None:
    """Make an empty directory for a run."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        occupied = any(not entry.name.startswith(".") for entry in directory.iterdir())
    except OSError as error:
        raise RunError(f"cannot write to {directory}: {error.strerror}") from None
    if occupied and (directory / EXPERIMENT).exists():
        finished = (directory / MODEL).exists()
        more = "" if finished else f" continue it with `sdfeel resume {directory}`,"
        raise RunError(
            f"{directory} holds {'a finished' if finished else 'another'} run: see it with "
            f"`sdfeel show {directory}`,{more} or choose another directory with --out"
        )
    if occupied:
        raise RunError(f"{directory} is not empty: choose another directory with --out")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One process at a time may write into a run's directory."""
    try:
        file = (directory / LOCK).open("w")
    except OSError as error:
        raise RunError(f"cannot write to {directory}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{directory} is in use by another process: wait for it") from None
        not_inherited(file)  # a worker that is still busy must not keep the run locked
        yield


class Log:
    """The event log and its table, open for appending."""

    def __init__(self, directory: Path, keep: int = 0) -> None:
        """Continue after the first `keep` bytes."""
        path = directory / EVENTS
        earlier = list(read_events(directory, keep)) if path.exists() else []
        size = path.stat().st_size if path.exists() else 0
        if size < keep:  # before anything is changed
            raise RunError(
                f"the log {path} is shorter than when its checkpoint was written ({size} of {keep} "
                f"bytes): it is damaged; start the experiment again"
            )
        path.touch()
        os.truncate(path, keep)
        self._events: IO[str] = path.open("a", encoding="utf-8")
        self._table = Table(directory / METRICS)
        for event in earlier:
            self._measure(event)

    def append(self, event: Event) -> None:
        self._events.write(json.dumps(to_record(event)) + "\n")
        self._events.flush()
        self._measure(event)

    def _measure(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self._table.append(event)

    def secure(self) -> int:
        """Flush everything to disk; return the log's length."""
        os.fsync(self._events.fileno())
        return self._events.tell()

    def close(self) -> None:
        self._events.close()
        self._table.close()


class Table:
    """The measurements as a CSV file: the columns that every run has, then those of its metrics.

    A metric that appears later gets its own column: the file is then written again.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._columns, self._rows = path, COLUMNS, list[dict[str, Any]]()
        self._open()

    def append(self, event: Evaluated) -> None:
        named = {n: v for n, v in event.metrics.items() if n not in COLUMNS}
        row = {name: getattr(event, name) for name in COLUMNS} | named
        self._rows.append(row)
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns = [*self._columns, *new]
            self.close()
            self._open()
        else:
            self._writer.writerow(row)
        self._file.flush()

    def _open(self) -> None:
        self._file: IO[str] = self._path.open("w", encoding="utf-8", newline="")
        self._writer = csv.DictWriter(self._file, self._columns)
        self._writer.writeheader()
        self._writer.writerows(self._rows)

    def close(self) -> None:
        self._file.close()


def read_events(directory: Path, limit: float = inf) -> Iterator[Event]:
    """The events in the first `limit` bytes of a log; half a line at the end is ignored."""
    path = directory / EVENTS
    try:
        file = path.open("rb")
    except OSError:
        raise RunError(f"{directory} is not a run: it has no {EVENTS}") from None
    with file:
        end = 0
        for number, line in enumerate(file, 1):
            end += len(line)
            if end > limit or not line.endswith(b"\n"):
                return
            try:
                yield from_record(json.loads(line))
            except (ValueError, KeyError, TypeError):
                raise RunError(
                    f"line {number} of {path} is not an event: the log is damaged"
                ) from None


def last_event(directory: Path) -> Event | None:
    """The newest whole line; None if it is not an event."""
    with (directory / EVENTS).open("rb") as file:
        lines = deque(file, maxlen=1)
    try:
        return from_record(json.loads(lines[0]))
    except (IndexError, ValueError, KeyError, TypeError):
        return None
