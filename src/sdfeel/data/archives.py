"""Reads archives from elsewhere: never more than expected, never to a place that they name."""

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from sdfeel.core.errors import DataError


def compressed(size: int) -> int:
    """The most bytes that a compressed file or archive of this content may take.

    Content that cannot be compressed grows a little: by a header, and by some bytes in every block.
    """
    return size + size // 1000 + 20_000


def read(path: Path, limit: int) -> bytes:
    """A file's content, unpacked if its name ends in .gz; DataError beyond `limit` bytes."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                return capped(stream, limit, path)
        with path.open("rb") as stream:
            return capped(stream, limit, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} cannot be unpacked: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def gunzipped(content: bytes, limit: int, what: object) -> bytes:
    """Compressed bytes, unpacked; DataError beyond `limit` bytes."""
    try:
        with gzip.open(io.BytesIO(content)) as stream:
            return capped(stream, limit, what)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{what} cannot be unpacked: {error}") from error


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def capped(stream: Readable, limit: int, what: object) -> bytes:
    """The whole stream, if it is no longer than `limit` bytes."""
    content = stream.read(limit + 1)  # one more than allowed shows whether there is more
    if len(content) > limit:
        raise DataError(f"{what} is larger than the {limit:,} bytes that were expected")
    return content


def from_tar(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the wanted members (name: byte limit), in the archive's order.

    Members are read as data and nothing is written, so their names cannot lead anywhere.
    """
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name in wanted and member.isfile():
                    stream = archive.extractfile(member)
                    assert stream is not None  # it is a file
                    yield member.name, capped(stream, wanted[member.name], member.name)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked: {error}") from error


def from_zip(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Like `from_tar`, from a zip file (a wheel is one)."""
    try:
        with zipfile.ZipFile(path) as archive:
            present = set(archive.namelist())
            for name in (name for name in wanted if name in present):
                with archive.open(name) as stream:
                    yield name, capped(stream, wanted[name], name)
    except (zipfile.BadZipFile, RuntimeError, OSError, EOFError, zlib.error) as error:
        # RuntimeError: encrypted, or compressed in a way that Python cannot read.
        raise DataError(f"{path} cannot be unpacked: {error}") from error
