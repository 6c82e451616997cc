"""What a node remembers through any crash.

Facts and small tensors are in SQLite (write-ahead log, synchronous=FULL: a commit that returned
survives a power cut). A tensor over `LARGE` bytes is a file named by its hash, on disk before the
commit that names it. Files that no row names, as after a crash, are removed at the next start.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sdfeel.core.errors import RunError, printable
from sdfeel.core.run_files import write_atomic

FORM = 2  # version of the stored form; another number means that another version wrote it
LARGE = 1 << 20  # bytes; above it, a file is several times faster than a row
RECENT = 4 << 20  # bytes of small tensors that are kept in memory
DURABLE = "full"  # how SQLite waits for the disk: a commit that returned survives a power cut
BASE, TENSORS = "state.sqlite", "tensors"
Kind = Literal[
    "start", "hop", "result", "measured", "own", "final", "row", "signed", "given", "mask", "used"
]
TABLES = """
create table if not exists facts (name text primary key, value text not null);
create table if not exists rounds (k integer primary key, record text not null);
create table if not exists tensors (
    kind text not null, round integer not null, part integer not null,
    note text not null, sha256 text not null, body blob,
    primary key (kind, round, part)
);
"""


MARK = "\n"  # between what is written as JSON, which has no line breaks, and its checksum
# SQLite's errors that come from the disk, as opposed to a damaged file.
OF_DISK = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
}


def of_disk(error: sqlite3.Error) -> bool:
    """Is the disk at fault, so that it passes once the disk works? Else the file is damaged."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in OF_DISK


class Damaged(RunError):
    """A node's state cannot be read, or is not what the node wrote."""

    def __init__(self, directory: Path, why: object) -> None:
        super().__init__(
            f"the state in {directory} is damaged ({printable(str(why))[:200]}): stop the node and "
            f"restore a backup with `sdfeel deploy restore`, or see `sdfeel deploy reseed`"
        )
        self.why = why


def _marked(value: object, *key: object) -> str:
    """JSON and its checksum: SQLite does not notice a flipped bit."""
    text = json.dumps(value)
    return f"{text}{MARK}{_sum(text, key)}"


def _sum(text: str, key: tuple[object, ...]) -> str:
    return f"{zlib.crc32(repr(key).encode() + text.encode()):08x}"


@dataclass(frozen=True)
class Saved:
    """A packed tensor with its hash and its note."""

    body: bytes
    sha256: str
    note: dict[str, Any] = field(default_factory=dict)


class Store:
    """One node's state in one directory. Not for use by two processes at once.

    If it is not `durable`, a power cut may destroy it, which is fine for recomputing a run.
    """

    def __init__(self, directory: Path, durable: bool = True) -> None:
        self.directory, self._durable = directory, durable
        self._recent: dict[tuple[str, int, int], Saved] = {}  # the same as on disk
        self._files = directory / TENSORS
        self._files.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # a volume may belong to somebody else
            directory.chmod(0o700)  # models reveal something about data
        try:
            self._base = sqlite3.connect(directory / BASE, timeout=1.0, isolation_level=None)
            self._base.execute(f"pragma synchronous={DURABLE if durable else 'off'}")
            self._base.execute("pragma journal_mode=wal")
            self._base.execute("pragma locking_mode=exclusive")
            self._check_form()
            self._check_pages()
            self._base.executescript(TABLES)
            self._sweep()
        except sqlite3.DatabaseError as error:
            self._base.close()
            if "locked" in str(error):
                raise RunError(
                    f"the state in {directory} is in use: another process runs this node; stop one"
                ) from None
            if of_disk(error):
                raise  # it is full, or cannot be written
            raise Damaged(directory, error) from None
        except (Damaged, UnicodeDecodeError) as error:  # SQLite quotes what it cannot read
            self._base.close()
            raise (error if isinstance(error, Damaged) else Damaged(directory, error)) from None

        self._opened = (directory / BASE).stat()

    def close(self) -> None:
        self._base.close()

    def exists(self) -> bool:
        return (self.directory / BASE).exists()

    @property
    def blank(self) -> bool:
        """Is the store empty, as at the very beginning?"""
        tables = ("facts", "rounds", "tensors")
        return not any(self._rows(f"select 1 from {table} limit 1") for table in tables)

    def in_place(self) -> bool:
        """Is the open file still the one in the directory?"""
        try:
            return os.path.samestat(self._opened, (self.directory / BASE).stat())
        except OSError as error:
            return not isinstance(error, FileNotFoundError)

    def _check_form(self) -> None:
        """Refuse a state of another version; mark a new one as ours."""
        (tables,) = self._base.execute("select count(*) from sqlite_master").fetchone()
        (form,) = self._base.execute("pragma user_version").fetchone()
        if tables and form != FORM:
            self._base.close()
            raise RunError(
                f"the state in {self.directory} was kept by another version of sdfeel: finish the "
                f"run with that version, or start afresh in another directory"
            )
        self._base.execute(f"pragma user_version={FORM}")

    def _check_pages(self) -> None:
        """Check the file: with a damaged index, SQLite would silently not find some rows.

        It takes about 30 ms for 100 MB.
        """
        ((found,),) = self._rows("pragma integrity_check(1)")
        if found != "ok":
            raise Damaged(self.directory, found)

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Everything inside becomes durable, or none of it does."""
        self._base.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._recent.clear()
            with suppress(sqlite3.OperationalError):  # a full disk has rolled it back already
                self._base.execute("rollback")
            raise
        try:
            self._base.execute("commit")
        except BaseException:
            self._recent.clear()
            raise

    def _rows(self, question: str, about: tuple[Any, ...] = ()) -> list[Any]:
        """The database's answer; `Damaged` if it cannot be read."""
        try:
            return self._base.execute(question, about).fetchall()
        except sqlite3.DatabaseError as error:
            if of_disk(error):
                raise
            raise Damaged(self.directory, error) from None
        except UnicodeDecodeError as error:  # SQLite quotes what it cannot read
            raise Damaged(self.directory, error) from None

    def _read(self, text: str, *key: object) -> Any:
        """A value from JSON; its checksum is checked if it has one: version 0.1 wrote none."""
        try:
            plain, mark, told = text.rpartition(MARK)
            if mark and told != _sum(plain, key):
                raise Damaged(self.directory, f"{key[0]} does not fit its checksum")
            return json.loads(plain if mark else text)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(self.directory, error) from None

    def fact(self, name: str) -> Any:
        """The fact of this name; None if there is none."""
        rows = self._rows("select value from facts where name = ?", (name,))
        return self._read(rows[0][0], name) if rows else None

    def remember(self, name: str, value: Any) -> None:
        text = _marked(value, name)
        self._base.execute("insert or replace into facts values (?, ?)", (name, text))

    def record(self, k: int, record: dict[str, Any]) -> None:
        """The report of a finished round."""
        text = _marked(record, "round", k)
        self._base.execute("insert or replace into rounds values (?, ?)", (k, text))

    def records(self, first: int = 0, limit: int = -1) -> list[dict[str, Any]]:
        """The reports of finished rounds, from round `first` on."""
        rows = self._rows(
            "select record, k from rounds where k >= ? order by k limit ?", (first, limit)
        )
        return [self._read(text, "round", k) for text, k in rows]

    def last_record(self) -> dict[str, Any] | None:
        """The newest report."""
        return next(iter(self.recent_records(1)), None)

    def recent_records(self, count: int) -> list[dict[str, Any]]:
        """The newest reports, newest first."""
        rows = self._rows("select record, k from rounds order by k desc limit ?", (count,))
        return [self._read(text, "round", k) for text, k in rows]

    def prune_records(self, before: int) -> None:
        """Forget the reports of rounds below `before`. Call it inside a commit."""
        self._base.execute("delete from rounds where k < ?", (before,))

    def put(
        self,
        kind: Kind,
        k: int,
        part: int,
        body: bytes,
        note: dict[str, Any] | None = None,
        replace: bool = False,
        sha256: str | None = None,  # of the body, where it was checked already
    ) -> bool:
        """Keep a tensor; the first write wins unless `replace`. Returns whether it was kept."""
        digest = sha256 or hashlib.sha256(body).hexdigest()
        if len(body) > LARGE:
            self._write(digest, body)
        verb = "insert or replace" if replace else "insert or ignore"
        text = _marked(note or {}, kind, k, part)
        done = self._base.execute(
            f"{verb} into tensors values (?, ?, ?, ?, ?, ?)",
            (kind, k, part, text, digest, None if len(body) > LARGE else body),
        )
        if done.rowcount > 0:
            self._lately(kind, k, part, Saved(body, digest, note or {}))
        return done.rowcount > 0

    def _lately(self, kind: str, k: int, part: int, saved: Saved) -> None:
        """Keep in memory what was just written, if it is small; drop the oldest beyond a bound."""
        self._recent.pop((kind, k, part), None)
        if len(saved.body) > LARGE:
            return
        self._recent[kind, k, part] = saved
        while sum(len(each.body) for each in self._recent.values()) > RECENT:
            del self._recent[next(iter(self._recent))]

    def get(self, kind: Kind, k: int, part: int = 0) -> Saved | None:
        """A tensor, checked against its hash; None if it is not there (any more)."""
        if (kind, k, part) in self._recent:
            return self._recent[kind, k, part]
        rows = self._rows(
            "select note, sha256, body from tensors where kind = ? and round = ? and part = ?",
            (kind, k, part),
        )
        if not rows:
            return None
        note, digest, body = rows[0]
        if body is None:
            try:
                body = (self._files / str(digest)).read_bytes()
            except FileNotFoundError:
                raise Damaged(self.directory, f"there is no {TENSORS}/{digest}") from None
        # A flipped bit can turn bytes into a text or a number for SQLite.
        if not isinstance(body, bytes) or hashlib.sha256(body).hexdigest() != digest:
            raise Damaged(self.directory, "a tensor does not fit its checksum")
        return Saved(body, digest, self._read(note, kind, k, part))

    def kept(self, kind: Kind, k: int, part: int = 0) -> Saved:
        """A tensor that must be there, as it was written before anything relied on it."""
        saved = self.get(kind, k, part)
        if saved is None:
            raise Damaged(self.directory, f"{kind} {k} is missing")
        return saved

    def has(self, kind: Kind, k: int, part: int = 0) -> bool:
        question = "select 1 from tensors where kind = ? and round = ? and part = ?"
        return bool(self._rows(question, (kind, k, part)))

    def note(self, kind: Kind, k: int, part: int) -> dict[str, Any] | None:
        """What was noted with one tensor; None if it is not there (any more)."""
        question = "select note from tensors where kind = ? and round = ? and part = ?"
        rows = self._rows(question, (kind, k, part))
        return dict(self._read(rows[0][0], kind, k, part)) if rows else None

    def notes(self, kind: Kind, k: int) -> dict[int, dict[str, Any]]:
        """What was noted with all parts of a round, by part."""
        rows = self._rows(
            "select part, note from tensors where kind = ? and round = ? order by part", (kind, k)
        )
        return {part: self._read(note, kind, k, part) for part, note in rows}

    def hashes(self, kind: Kind, k: int) -> dict[int, str]:
        """The hashes of all tensors of a round, by part."""
        return dict(
            self._rows(
                "select part, sha256 from tensors where kind = ? and round = ? order by part",
                (kind, k),
            )
        )

    def newest(self, kind: Kind, count: int) -> list[int]:
        """The last `count` rounds of a kind, newest first."""
        rows = self._rows(
            "select distinct round from tensors where kind = ? order by round desc limit ?",
            (kind, count),
        )
        return [row[0] for row in rows]

    def drop(self, kind: Kind, k: int, part: int) -> None:
        """Forget one tensor. Call it inside a commit."""
        self._recent.pop((kind, k, part), None)
        question = "delete from tensors where kind = ? and round = ? and part = ?"
        self._base.execute(question, (kind, k, part))

    def prune(self, kind: Kind, before: int, parts: Iterable[int] | None = None) -> None:
        """Forget tensors of a kind from rounds below `before`: all, or these parts.

        Call it inside a commit.
        """
        for key in [key for key in self._recent if key[0] == kind and key[1] < before]:
            del self._recent[key]
        question = "delete from tensors where kind = ? and round < ?"
        if parts is None:
            self._base.execute(question, (kind, before))
            return
        rows = [(kind, before, part) for part in parts]
        self._base.executemany(f"{question} and part = ?", rows)

    def sweep_files(self) -> None:
        """Remove files that no row names any more. Call it outside a commit."""
        if any(self._files.iterdir()):
            self._sweep()

    def backup(self, target: Path) -> None:
        """Copy the whole state to `target`, completely or not at all. Call it outside a commit."""
        draft = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        (draft / TENSORS).mkdir(parents=True)
        with closing(sqlite3.connect(draft / BASE)) as copy:
            self._base.backup(copy)
            copy.execute("pragma journal_mode=delete")
        for name in self._named():
            shutil.copy2(self._files / name, draft / TENSORS / name)
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)

    def check(self) -> None:
        """Raise an error unless everything in the store can be read and fits its checksum."""
        self._recent.clear()
        self._check_pages()
        for (name,) in self._rows("select name from facts"):
            self.fact(name)
        self.records()
        for kind, k, part in self._rows("select kind, round, part from tensors"):
            self.kept(kind, k, part)

    def _named(self) -> set[str]:
        """The tensors that are files."""
        return {row[0] for row in self._rows("select sha256 from tensors where body is null")}

    def _sweep(self) -> None:
        named = self._named()
        for path in self._files.iterdir():
            if path.name not in named:
                path.unlink()

    def _write(self, digest: str, body: bytes) -> None:
        write_atomic(self._files / digest, body, self._durable)
