"""The allow-list: which certificates a node accepts. Revocation is the removal of a line.

One certificate per line, `<serial> <name>`; what follows a `#` is a comment. The file is read
again as soon as it changes, so a running node needs no restart.
"""

from collections.abc import Callable
from pathlib import Path

from sdfeel.core.errors import DataError, InputError
from sdfeel.core.run_files import ALLOW, write_atomic
from sdfeel.live.trust.names import Name

_Stamp = tuple[int, int, int] | None


class AllowList:
    """The certificates in a file, always as the file stands now; no file, nobody."""

    def __init__(self, path: Path | str, tell: Callable[[str], None] = lambda line: None) -> None:
        self.path, self._tell = Path(path), tell
        self._stamp: _Stamp = None
        self._entries: frozenset[tuple[str, str]] = frozenset()
        if not self.path.is_file():
            raise DataError(f"there is no allow-list at {self.path}: copy the authority's {ALLOW}")

    def permits(self, serial: str, name: str) -> bool:
        """Whether exactly this certificate, under exactly this name, may call."""
        return (serial, name) in self._current()

    def serials(self, name: str) -> tuple[str, ...]:
        """The serial numbers of a name's certificates; several while it is being rotated."""
        return tuple(sorted(serial for serial, holder in self._current() if holder == name))

    def _current(self) -> frozenset[tuple[str, str]]:
        stamp = _stamp(self.path)
        if stamp is None or stamp != self._stamp:
            self._entries = _read(self.path)
            if stamp is None and self._stamp is not None:
                self._tell(
                    f"the allow-list {self.path} is gone: nobody is trusted until it is back"
                )
            self._stamp = stamp
        return self._entries


def permit(path: Path, serial: str, name: str) -> None:
    """Add a certificate to the list."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    _replace(path, [*lines, f"{serial} {Name.parse(name)}"])


def revoke(path: Path | str, which: str) -> int:
    """Remove a serial number, or every certificate of a name; tell how many lines went."""
    path = Path(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    keep = [line for line in lines if which not in line.partition("#")[0].split()]
    if len(keep) == len(lines):
        raise InputError(f"'{which}' is not on the allow-list {path}")
    _replace(path, keep)
    return len(lines) - len(keep)


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> frozenset[tuple[str, str]]:
    try:
        return entries(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return frozenset()


def entries(text: str) -> frozenset[tuple[str, str]]:
    """The certificates in a list; a damaged line permits nobody."""
    words = [line.partition("#")[0].split() for line in text.splitlines()]
    return frozenset((found[0].lower(), found[1]) for found in words if len(found) == 2)


def _replace(path: Path, lines: list[str]) -> None:
    """A reader sees the old list or the new one, never a part."""
    write_atomic(path, "".join(line + "\n" for line in lines).encode())
