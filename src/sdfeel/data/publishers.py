"""Contents of a data set's files from the addresses of those who published it."""

import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError

from sdfeel.core.errors import DataError
from sdfeel.data import archives
from sdfeel.data.sources import Source

Report = Callable[[str, int, int | None], None]  # what is done, bytes so far, bytes in all
TIMEOUT = 20.0  # seconds without a byte
CHUNK = 1 << 18


def contents(
    source: Source, address: str, work: Path, report: Report
) -> Iterator[tuple[str, bytes]]:
    """Each file's name and unpacked content, not yet checked; `work` is a scratch directory."""
    if source.kind == "cifar":
        archive = work / "archive.tar.gz"
        size = sum(file.size for file in source.files)
        to_file(address, archive, archives.compressed(size), report)
        folder = f"{source.folder}/"
        wanted = {folder + file.name: file.size for file in source.files}
        for member, content in archives.from_tar(archive, wanted):
            yield member.removeprefix(folder), content
        return
    for file in source.files:
        path = work / f"{file.name}.gz"
        to_file(f"{address}{path.name}", path, archives.compressed(file.size), report)
        yield file.name, archives.read(path, file.size)


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
