"""The IDX format of MNIST and Fashion-MNIST, and the folders where people keep such files."""

import hashlib
from pathlib import Path

import numpy as np

from sdfeel.core.errors import DataError
from sdfeel.data import archives
from sdfeel.data.sources import DATASETS, Arrays, Bytes, File, Source


def decode(content: bytes) -> Bytes:
    """The array in an IDX file of bytes.

    >>> decode(encode(np.array([[1, 2], [3, 4]], dtype=np.uint8)))
    array([[1, 2],
           [3, 4]], dtype=uint8)
    """
    if content[:3] != b"\0\0\x08":
        raise DataError("not an IDX file of bytes: it must begin with 00 00 08")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], dtype=">u4").astype(int)
    return np.frombuffer(content[start:], dtype=np.uint8).reshape(shape)


def encode(array: Bytes) -> bytes:
    """An array as an IDX file: the inverse of `decode`."""
    header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return header + array.tobytes()


def find(source: Source, root: Path) -> Path | None:
    """The folder below `root` that holds all of the data set's files, if there is one.

    Both data sets use the same file names. A folder named after one of them is trusted; any other
    (`root` itself, when it holds the files directly) belongs to the data set whose checksum its
    smallest file has, or, if that is unknown, to the one being looked for.
    """
    torch = source.folder.split("/")[0]
    named = (source.folder, f"{source.name}/{source.folder}", source.name, torch)
    for folder in (root / below for below in named):
        if _complete(source, folder):
            return folder
    for folder in (root, root / "raw"):
        if _complete(source, folder) and _belongs(folder) in (source.name, None):
            return folder
    return None


def read(source: Source, folder: Path) -> Arrays:
    """Training pictures and labels, test pictures and labels, after checking every byte."""
    arrays = [decode(checked(source, file, folder)) for file in source.files]
    x_train, y_train, x_test, y_test = arrays
    return x_train[:, None], y_train, x_test[:, None], y_test  # one channel


def checked(source: Source, file: File, folder: Path) -> bytes:
    """One file's content; DataError if it is not the published one."""
    path = locate(file, folder)
    if path is None:
        raise source.damaged(folder / file.name, "it is missing")
    try:
        content = archives.read(path, file.size)
    except DataError as error:
        raise source.damaged(path, str(error)) from error
    fault = file.fault(content)
    if fault:
        raise source.damaged(path, _taken_for(content, source) or fault)
    return content


def locate(file: File, folder: Path) -> Path | None:
    """The file under any of its usual names, unpacked ones first."""
    dotted = file.name.replace("-idx", ".idx")
    for name in (file.name, dotted, f"{file.name}.gz", f"{dotted}.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def _complete(source: Source, folder: Path) -> bool:
    return all(locate(file, folder) for file in source.files)


def _belongs(folder: Path) -> str | None:
    """The data set to which a folder's smallest file belongs."""
    return next((s.name for s in _idx_sources() if _is_its(s, folder)), None)


def _is_its(source: Source, folder: Path) -> bool:
    file = min(source.files, key=lambda file: file.size)
    path = locate(file, folder)
    try:
        return path is not None and file.fault(archives.read(path, file.size)) is None
    except DataError:
        return False


def _taken_for(content: bytes, source: Source) -> str | None:
    """A fault if these are another data set's bytes under the same file name."""
    digest = hashlib.sha256(content).hexdigest()
    for other in _idx_sources():
        if other.name != source.name and digest in {file.digest for file in other.files}:
            return f"it is {other.title}'s"
    return None


def _idx_sources() -> list[Source]:
    return [source for source in DATASETS.values() if source.kind == "idx"]
