"""The files that data come in: archives, IDX (MNIST), CIFAR-10's batches, a user's own .npz."""

import gzip
import hashlib
import io
import pickle
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdfeel.core.errors import DataError
from sdfeel.data.federated import Dataset, Examples
from sdfeel.data.sources import DATASETS, Arrays, Bytes, File, Source


def compressed(size: int) -> int:
    """The most bytes that a compressed file or archive of this content may take.

    Content that cannot be compressed grows a little: by a header, and by some bytes in every block.
    """
    return size + size // 1000 + 20_000


def read_file(path: Path, limit: int) -> bytes:
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


def find_idx(source: Source, root: Path) -> Path | None:
    """The folder below `root` that holds all of the data set's files, if there is one.

    Both data sets use the same file names. A folder named after one of them is trusted; any other
    (`root` itself, when it holds the files directly) belongs to the data set whose checksum its
    smallest file has, or, if that is unknown, to the one being looked for.
    """
    torch = source.folder.split("/")[0]
    named = (source.folder, f"{source.name}/{source.folder}", source.name, torch)
    for folder in (root / below for below in named):
        if _complete_idx(source, folder):
            return folder
    for folder in (root, root / "raw"):
        if _complete_idx(source, folder) and _owner_of(folder) in (source.name, None):
            return folder
    return None


def read_idx(source: Source, folder: Path) -> Arrays:
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
        content = read_file(path, file.size)
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


def _complete_idx(source: Source, folder: Path) -> bool:
    return all(locate(file, folder) for file in source.files)


def _owner_of(folder: Path) -> str | None:
    """The data set to which a folder's smallest file belongs."""
    return next((s.name for s in _idx_sources() if _has_its_smallest_file(s, folder)), None)


def _has_its_smallest_file(source: Source, folder: Path) -> bool:
    file = min(source.files, key=lambda file: file.size)
    path = locate(file, folder)
    try:
        return path is not None and file.fault(read_file(path, file.size)) is None
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


Form = Literal["bin", "py"]
RECORD = 3073  # a label, then 1024 red, 1024 green, 1024 blue
PICKLE_LIMIT = 40_000_000  # the largest is 31 MB
_FORMS: tuple[Form, ...] = ("bin", "py")
_ARCHIVES: dict[str, Form] = {"cifar-10-binary.tar.gz": "bin", "cifar-10-python.tar.gz": "py"}

# Checksums of the published pickled batches. Only these bytes are ever unpickled.
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def find_cifar(source: Source, root: Path) -> Path | None:
    """The folder or archive at or below `root` that has the batches, the quickest first."""
    tops = [root / name for name in ("", "cifar10", "cifar-10", "CIFAR10")]
    folders = [top / f"cifar-10-batches-{form}" for top in tops for form in _FORMS] + tops
    for folder in folders:
        if any(_complete_cifar(source, folder, form) for form in _FORMS):
            return folder
    archives = [top / name for top in tops for name in _ARCHIVES]
    return next((path for path in archives if path.is_file()), None)


def read_cifar(source: Source, path: Path, md5: Mapping[str, str] = MD5) -> Arrays:
    """Training pictures and labels, test pictures and labels, after checking every byte."""
    form = _form(source, path)
    names = {_member(file, form): file for file in source.files}
    found: dict[str, Bytes] = {}
    try:
        for name, content in _contents(path, form, names):
            plain = content if form == "bin" else _unpickled(name, content, md5[name])
            fault = names[name].fault(plain)
            if fault:
                raise DataError(f"{name}: {fault}")
            found[name] = np.frombuffer(plain, dtype=np.uint8).reshape(-1, RECORD)
        missing = [name for name in names if name not in found]
        if missing:
            raise DataError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    except DataError as error:
        raise source.damaged(path, str(error)) from error
    *batches, test = (found[name] for name in names)
    train = np.concatenate(batches)
    return _pictures(train, source), train[:, 0], _pictures(test, source), test[:, 0]


def _pictures(records: Bytes, source: Source) -> Bytes:
    return records[:, 1:].reshape(-1, *source.shape)


def _form(source: Source, path: Path) -> Form:
    if path.is_dir():
        return "bin" if _complete_cifar(source, path, "bin") else "py"
    return _ARCHIVES[path.name]


def _complete_cifar(source: Source, folder: Path, form: Form) -> bool:
    return all((folder / _member(file, form)).is_file() for file in source.files)


def _member(file: File, form: Form) -> str:
    return file.name if form == "bin" else file.name.removesuffix(".bin")


def _contents(path: Path, form: Form, names: Mapping[str, File]) -> Iterator[tuple[str, bytes]]:
    limits = {n: file.size if form == "bin" else PICKLE_LIMIT for n, file in names.items()}
    if path.is_dir():
        for name, limit in limits.items():
            yield name, read_file(path / name, limit)
    else:
        folder = f"cifar-10-batches-{form}/"
        wanted = {folder + name: limit for name, limit in limits.items()}
        for member, content in from_tar(path, wanted):
            yield member.removeprefix(folder), content


def _unpickled(name: str, content: bytes, md5: str) -> bytes:
    """A pickled batch as the bytes of its binary form; nothing unknown is unpickled."""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise DataError(f"{name}: its md5 checksum is not the published one")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns about how arrays were pickled in 2009
        batch = _Plain(io.BytesIO(content), encoding="bytes").load()
    labels = np.array(batch[b"labels"], dtype=np.uint8)
    return np.concatenate([labels[:, None], batch[b"data"]], axis=1).tobytes()


class _Plain(pickle.Unpickler):
    """Unpickles arrays of plain numbers, and refuses to name anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ARRAY_PARTS:
            return _ARRAY_PARTS[module, name]
        raise DataError(f"a pickled batch asks for {module}.{name}, which no batch needs")


# The function that rebuilds arrays has no public name, but every array refers to it.
_REBUILD = np.empty(0).__reduce__()[0]
_ARRAY_PARTS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


NAMES = ("x_train", "y_train", "x_test", "y_test")
Array = NDArray[Any]


def load_npz(path: Path) -> Dataset:
    """The data set in an .npz file, named after it; DataError says what is wrong with it."""
    x_train, y_train, x_test, y_test = _read(path)
    _check_pair(path, "train", x_train, y_train)
    _check_pair(path, "test", x_test, y_test)
    if x_train.shape[1:] != x_test.shape[1:] or y_train.shape[1:] != y_test.shape[1:]:
        raise DataError(
            f"{path}: training and test examples differ in shape "
            f"({x_train.shape[1:]}, {y_train.shape[1:]} and {x_test.shape[1:]}, "
            f"{y_test.shape[1:]}): give both the same"
        )
    labelled = all(y.dtype.kind in "iu" and y.ndim == 1 for y in (y_train, y_test))
    return Dataset(
        path.stem,
        Examples(_inputs(x_train), _targets(y_train, labelled)),
        Examples(_inputs(x_test), _targets(y_test, labelled)),
        _count_classes(path, y_train, y_test) if labelled else 0,
    )


def _read(path: Path) -> list[Array]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in NAMES if name not in arrays.files]
            if missing:
                raise DataError(
                    f"{path} has no {missing[0]} (it has: {', '.join(arrays.files) or 'nothing'}): "
                    f"save {', '.join(NAMES)} with numpy.savez"
                )
            return [arrays[name] for name in NAMES]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        # A lone .npy array cannot be opened like this; objects need pickle, which could run
        # anything.
        why = f" ({error})" if isinstance(error, zipfile.BadZipFile) else ""  # others advise pickle
        raise DataError(
            f"{path} is not an .npz file of numbers{why}: save it with numpy.savez"
        ) from error


def _check_pair(path: Path, part: str, x: Array, y: Array) -> None:
    for name, array in ((f"x_{part}", x), (f"y_{part}", y)):
        if array.dtype.kind not in "biuf":
            raise DataError(f"{path}: {name} holds {array.dtype}, but only numbers are allowed")
        if array.ndim == 0 or array.size == 0:
            raise DataError(f"{path}: {name} is empty; give at least one example")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{path}: {name} holds values that are not finite; remove them")
    if len(x) != len(y):
        raise DataError(
            f"{path}: {len(x)} inputs but {len(y)} targets in {part}: "
            f"give one target for each input"
        )


def _inputs(x: Array) -> Tensor:
    if x.dtype.kind == "i" and x.dtype.itemsize > 1:  # whole numbers, such as tokens, stay whole
        return torch.tensor(x.astype(np.int64))
    values = torch.tensor(x.astype(np.float32))
    return values.div_(255) if x.dtype == np.uint8 else values


def _targets(y: Array, labelled: bool) -> Tensor:
    whole = labelled or (y.dtype.kind in "iu" and y.ndim > 1)  # a class for every place
    return torch.tensor(y.astype(np.int64 if whole else np.float32))


def _count_classes(path: Path, y_train: Array, y_test: Array) -> int:
    lowest = min(int(y_train.min()), int(y_test.min()))
    if lowest < 0:
        raise DataError(f"{path}: class numbers start at 0, got {lowest}; renumber the targets")
    highest = max(int(y_train.max()), int(y_test.max()))
    if highest >= max(1000, len(y_train)):
        raise DataError(
            f"{path}: class number {highest} with {len(y_train)} training examples cannot be "
            f"learned; number the classes from 0 without gaps"
        )
    return highest + 1
