"""Finds runs below a directory, and opens nothing outside it.

Every path is walked part by part from the directory itself, and no part may be a link: no name
leads outside, and neither does a race with a program that swaps links.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sdfeel.core.run_files import EVENTS, EXPERIMENT, LOCK, METRICS, MODEL, NODES, PAGE

BEST = "best.toml"  # what a plan found
FILES: tuple[str, ...] = (EVENTS, EXPERIMENT, METRICS, MODEL, PAGE)
FILES += (BEST, "plan.json", "plan.png")  # everything that can be saved
DEPTH, MOST = 8, 20_000  # how deep runs are looked for, and in how many directories


class NotHere(Exception):
    """There is no such run or file below the directory."""


@dataclass(frozen=True)
class RunFolder:
    """A run's directory: its name below the root, and the stamp of its log (None: no log)."""

    name: str
    log: "Stamp | None"
    experiment: bool
    nodes: bool


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

    def runs(self) -> Iterator[RunFolder]:
        """All runs below the root; there are no runs inside a run."""
        waiting, seen = [("", 0)], 0
        while waiting and seen < MOST:
            name, depth = waiting.pop()
            seen += 1
            found, below = self._look(name)
            if found is not None:
                yield found
            elif depth < DEPTH:
                waiting += ((inner, depth + 1) for inner in below)

    def folder(self, name: str) -> RunFolder:
        """One run by its name."""
        self.directory(name)
        found, _ = self._look("/".join(_parts(name)))
        if found is None:
            raise NotHere(f"{name} is not a run")
        return found

    def _look(self, name: str) -> tuple[RunFolder | None, list[str]]:
        log, experiment, nodes = None, False, False
        below: list[str] = []
        try:
            with os.scandir(self.path / name) as entries:
                for entry in entries:
                    if entry.name == EVENTS and entry.is_file(follow_symlinks=False):
                        log = Stamp.of(entry.stat(follow_symlinks=False))
                    elif entry.name == EXPERIMENT and entry.is_file(follow_symlinks=False):
                        experiment = True
                    elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        nodes = nodes or entry.name == NODES
                        below.append(f"{name}/{entry.name}" if name else entry.name)
        except OSError:  # gone, or not ours to read
            return None, []
        if log is None and not experiment:
            return None, below
        return RunFolder(name or ".", log, experiment, nodes), []

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


def held(locks: Path = LOCKS) -> set[int] | None:
    """Inodes of all locked files on this machine; None where the system does not say.

    We only look: trying a lock would stop a run that begins at that moment.
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
