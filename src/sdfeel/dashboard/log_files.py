"""Finds runs below a directory and opens nothing outside it.

Every path is walked part by part from the directory itself, and no part may be a link: no name
leads outside, and neither does a race with a program that swaps links.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident

from sdfeel.core.errors import InputError, SdfeelError
from sdfeel.core.run_files import (
    EVENTS,
    EXPERIMENT,
    GROUP,
    LOCK,
    METRICS,
    MODEL,
    NODES,
    NOTES,
    PAGE,
)

BEST, PLAN = "best.toml", "plan.json"  # what a plan found, and its record
FILES: tuple[str, ...] = (EVENTS, EXPERIMENT, METRICS, MODEL, PAGE)
FILES += (BEST, PLAN, "plan.png")  # everything that can be saved
DEPTH, MOST = 8, 20_000  # how deep runs are looked for, and in how many directories


class NotHere(Exception):
    """There is no such run or file below the directory."""


# What reading can raise when files are damaged, or come and go while we look.
UNREADABLE = (NotHere, SdfeelError, ArithmeticError, LookupError, ValueError, TypeError, OSError)


@dataclass(frozen=True)
class RunFolder:
    """A run's directory: its name below the root, and the stamp of its log (None: no log)."""

    name: str
    log: "Stamp | None"
    experiment: bool
    nodes: bool
    notes: "Stamp | None" = None  # of what people have written about it


@dataclass(frozen=True)
class GroupFolder:
    """A directory of runs that were made together, or of a plan."""

    name: str
    file: str  # group.json or plan.json
    stamp: "Stamp"


@dataclass(frozen=True)
class Stamp:
    """Changes whenever the file changes."""

    inode: int
    size: int
    modified: int  # nanoseconds

    @classmethod
    def of(cls, found: os.stat_result) -> "Stamp":
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class Root:
    """The directory that is served."""

    def __init__(self, directory: Path) -> None:
        self.path = directory.resolve(strict=True)

    def directory(self, name: str) -> Path:
        """The directory with this name below the root."""
        os.close(self._descend(_parts(name)))
        return self.path.joinpath(*_parts(name))

    def open(self, name: str, *inside: str) -> int:
        """A descriptor of the regular file `inside` the directory `name`, to read."""
        *above, last = (*_parts(name), *inside)
        parent = self._descend(above)
        try:
            # Without blocking: a named pipe in place of a file would block us for ever.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            found = os.open(last, flags, dir_fd=parent)
        except OSError as error:
            raise NotHere(f"{name} has no readable {'/'.join(inside)}") from error
        finally:
            os.close(parent)
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise NotHere(f"{'/'.join(inside)} of {name} is not a file")
        return found

    def read(self, name: str, *inside: str, limit: int = 1 << 20) -> bytes:
        """The first `limit` bytes of a file."""
        with os.fdopen(self.open(name, *inside), "rb") as file:
            return file.read(limit)

    def files(self, name: str) -> list[str]:
        """Which of a run's files exist and can be saved."""
        with os.scandir(self.directory(name)) as entries:
            there = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
        return [file for file in FILES if file in there]

    def replace(self, name: str, file: str, content: bytes) -> None:
        """Write a file of a run as a whole: readers find the old one or the new one."""
        parent = self._descend(_parts(name))
        draft = f".{file}.{os.getpid()}.{get_ident()}.tmp"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o644, dir_fd=parent), "wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            os.rename(draft, file, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            with suppress(OSError):
                os.unlink(draft, dir_fd=parent)
            raise InputError(
                f"{file} of {name} cannot be written ({error.strerror}): ask who owns the directory"
            ) from None
        finally:
            os.close(parent)

    def runs(self) -> Iterator[RunFolder]:
        """All runs below the root; there are no runs inside a run."""
        return (each for each in self.walk() if isinstance(each, RunFolder))

    def walk(self) -> Iterator[RunFolder | GroupFolder]:
        """All runs below the root, and the directories that hold groups of them, or a plan."""
        waiting, seen = [("", 0)], 0
        while waiting and seen < MOST:
            name, depth = waiting.pop()
            seen += 1
            found, below = self._look(name)
            if found is not None:
                yield found
            if not isinstance(found, RunFolder) and depth < DEPTH:
                waiting += ((inner, depth + 1) for inner in below)

    def folder(self, name: str) -> RunFolder:
        """One run by its name."""
        self.directory(name)
        found, _ = self._look("/".join(_parts(name)))
        if not isinstance(found, RunFolder):
            raise NotHere(f"{name} is not a run")
        return found

    def _look(self, name: str) -> tuple[RunFolder | GroupFolder | None, list[str]]:
        log, experiment, nodes, notes = None, False, False, None
        kept: dict[str, Stamp] = {}
        below: list[str] = []
        try:
            with os.scandir(self.path / name) as entries:
                for entry in entries:
                    if entry.name == EVENTS and entry.is_file(follow_symlinks=False):
                        log = Stamp.of(entry.stat(follow_symlinks=False))
                    elif entry.name == EXPERIMENT and entry.is_file(follow_symlinks=False):
                        experiment = True
                    elif entry.name == NOTES and entry.is_file(follow_symlinks=False):
                        notes = Stamp.of(entry.stat(follow_symlinks=False))
                    elif entry.name in (GROUP, PLAN) and entry.is_file(follow_symlinks=False):
                        kept[entry.name] = Stamp.of(entry.stat(follow_symlinks=False))
                    elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        nodes = nodes or entry.name == NODES
                        below.append(f"{name}/{entry.name}" if name else entry.name)
        except OSError:  # gone, or not ours to read
            return None, []
        if log is not None or experiment:
            return RunFolder(name or ".", log, experiment, nodes, notes), []
        for file, stamp in sorted(kept.items()):
            return GroupFolder(name or ".", file, stamp), below
        return None, below

    def _descend(self, parts: list[str]) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        here = os.open(self.path, flags)
        for part in parts:
            try:
                inner = os.open(part, flags, dir_fd=here)
            except OSError as error:
                raise NotHere(f"no directory {'/'.join(parts)} here") from error
            finally:
                os.close(here)
            here = inner
        return here


def _parts(name: str) -> list[str]:
    """The parts of a name, none of which may climb or hide.

    >>> _parts("race/sd-feel"), _parts(".")
    (['race', 'sd-feel'], [])
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or "\0" in name or any(part.startswith(".") for part in parts):
        raise NotHere(f"no run is called {name!r}")
    return parts


LOCKS = Path("/proc/locks")


def locked_inodes(locks: Path = LOCKS) -> set[int] | None:
    """Inodes of all locked files on this machine; None where the system does not list them.

    Locks are only listed: trying to take one would stop a run that begins at that moment.
    """
    try:
        lines = locks.read_text().splitlines()
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 12479 fe:00:2146550 0 EOF
    locked = (line.split() for line in lines if " FLOCK " in f" {line} ")
    return {int(words[-3].rpartition(":")[2]) for words in locked if len(words) >= 8}


def lock_inode(directory: Path) -> int | None:
    """The inode of a run's lock; None if it has none."""
    try:
        return os.stat(directory / LOCK, follow_symlinks=False).st_ino
    except OSError:
        return None
