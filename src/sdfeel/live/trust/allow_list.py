"""The allow-list: which certificates a node accepts. To revoke one is to remove its line.

It has one certificate per line, `<serial> <name>`; a `#` begins a comment. A running node reads the
file again as soon as it changes. The last line is `# end` and the checksum of everything before it.
A copy that is unfinished, cut short or mixed up with another lacks that line, and then the previous
list stays in force. A list that was edited by hand ends with `# end` alone.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from sdfeel.core.errors import DataError, InputError
from sdfeel.core.run_files import ALLOW, TRUST, write_atomic
from sdfeel.live.trust.names import Name

END = "# end"
TEXT = "utf-8-sig"  # some editors begin a file with a byte-order mark
GONE = 5.0  # seconds without the file after which nobody is trusted
SETTLED = 2.0  # seconds without a change after which a list without a last line counts as whole
_Stamp = tuple[int, int, int] | None


class AllowList:
    """The certificates in a file as it is now, read as a whole or not at all."""

    def __init__(
        self,
        path: Path | str,
        tell: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.path, self._tell, self._clock = Path(path), tell, clock
        self._stamp: _Stamp = None  # of the list in force
        self._entries: frozenset[tuple[str, str]] = frozenset()
        self._marked = False  # does the list in force end as it should?
        self._doubt: tuple[_Stamp, float] | None = None  # the file in its place, and since when
        self._known = self._warned = False  # was a list ever in force? was that file complained of?
        if not self.path.is_file():
            raise DataError(f"there is no allow-list at {self.path}: copy the authority's {ALLOW}")

    def permits(self, serial: str, name: str) -> bool:
        """Whether exactly this certificate, under exactly this name, may call."""
        return (serial, name) in self._current()

    def serials(self, name: str) -> tuple[str, ...]:
        """The serial numbers of a name's certificates; several while it is being rotated."""
        return tuple(sorted(serial for serial, holder in self._current() if holder == name))

    @property
    def gone(self) -> str:
        """What to say while there is no list; nothing if one is in force.

        Then nobody is trusted, but nobody was revoked, either: those who wait are accepted again
        when it is back.
        """
        self._current()
        if self._stamp is not None:
            return ""
        return f"the allow-list {self.path} is gone: nobody is trusted until it is back"

    def _current(self) -> frozenset[tuple[str, str]]:
        stamp = stamp_of(self.path)
        if stamp is not None and stamp == self._stamp:
            self._doubt, self._warned = None, False
            return self._entries
        text = None if stamp is None else _read(self.path)
        if text is not None and stamp == stamp_of(self.path) and self._acceptable(text, stamp):
            self._entries, self._stamp, self._marked = entries(text), stamp, is_whole(text)
            self._doubt, self._known, self._warned = None, True, False
        elif text is None and self._since(None) >= GONE and self._stamp is not None:
            self._entries, self._stamp = frozenset(), None
            self._tell(self.gone)
        return self._entries

    def _acceptable(self, text: str, stamp: _Stamp) -> bool:
        """Does a list have the right last line or, without any, has it been left alone a while?"""
        if is_whole(text) or not self._known:
            return True
        settled = self._since(stamp) >= SETTLED
        if self._marked and not self._warned:
            self._warned = True
            self._tell(
                f"the allow-list {self.path} does not end with '{END}' and the right checksum, so "
                f"it may be incomplete: {self._instead}; copy it again; if you edited it, let its "
                f"last line be '{END}' alone"
            )
        return settled and not self._marked

    @property
    def _instead(self) -> str:
        """What is in force while the file is not a whole list."""
        return "nobody is trusted" if self._stamp is None else "the last good list stays in force"

    def _since(self, stamp: _Stamp) -> float:
        """For how many seconds the file has been like this."""
        if self._doubt is None or self._doubt[0] != stamp:
            self._doubt = (stamp, self._clock())
        return self._clock() - self._doubt[1]


def permit(path: Path, serial: str, name: str) -> None:
    """Add a certificate to the list."""
    lines = listed(path).splitlines() if path.exists() else []
    _replace(path, [*lines, f"{serial} {Name.parse(name)}"])


def revoke(path: Path | str, which: str) -> int:
    """Remove a serial number, or all certificates of a name; return how many lines were removed."""
    path = Path(path)
    lines = listed(path).splitlines()
    keep = [line for line in lines if which not in line.partition("#")[0].split()]
    if len(keep) == len(lines):
        raise InputError(f"'{which}' is not on the allow-list {path}")
    _replace(path, keep)
    return len(lines) - len(keep)


def listed(path: Path) -> str:
    """The text of a list, for a command that changes it."""
    try:
        return path.read_text(encoding=TEXT)
    except OSError as error:
        raise DataError(f"cannot read the allow-list {path}: {error.strerror}") from None
    except ValueError:
        raise DataError(
            f"the allow-list {path} is damaged: it is not text; take it from a copy, such as the "
            f"one in {TRUST}"
        ) from None


def stamp_of(path: Path) -> _Stamp:
    """A value that differs whenever the file has changed; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding=TEXT, errors="replace")
    except OSError:
        return None


def is_whole(text: str) -> bool:
    """Does a list have its last line, and in it the right checksum, or none?

    >>> is_whole("5a client\\n# end\\n"), is_whole("5a cli"), is_whole("5a client\\n# end 0\\n")
    (True, False, False)
    """
    before, _, last = text.rstrip().rpartition("\n")
    return last.strip() == END or last.strip() == _end(before)


def _end(before: str) -> str:
    """The last line of a list that begins with these lines."""
    return f"{END} {hashlib.sha256(before.encode()).hexdigest()}"


def entries(text: str) -> frozenset[tuple[str, str]]:
    """The certificates in a list; a damaged line permits nobody."""
    words = [line.partition("#")[0].split() for line in text.splitlines()]
    return frozenset((found[0].lower(), found[1]) for found in words if len(found) == 2)


def _replace(path: Path, lines: list[str]) -> None:
    """Replace the list: a reader sees the old one or the new one, never a mixture."""
    kept = [line for line in lines if line.split()[:2] != END.split()]
    write_atomic(path, "".join(line + "\n" for line in (*kept, _end("\n".join(kept)))).encode())
