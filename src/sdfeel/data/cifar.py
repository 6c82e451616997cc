"""CIFAR-10 in each of its published forms: binary or pickled batches, in a folder or archive."""

import hashlib
import io
import pickle
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sdfeel.core.errors import DataError
from sdfeel.data import archives as packed
from sdfeel.data.sources import Arrays, Bytes, File, Source

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


def find(source: Source, root: Path) -> Path | None:
    """The folder or archive at or below `root` that has the batches, the quickest first."""
    tops = [root / name for name in ("", "cifar10", "cifar-10", "CIFAR10")]
    folders = [top / f"cifar-10-batches-{form}" for top in tops for form in _FORMS] + tops
    for folder in folders:
        if any(_complete(source, folder, form) for form in _FORMS):
            return folder
    archives = [top / name for top in tops for name in _ARCHIVES]
    return next((path for path in archives if path.is_file()), None)


def read(source: Source, path: Path, md5: Mapping[str, str] = MD5) -> Arrays:
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
            raise DataError(f"{', '.join(missing)} is missing")
    except DataError as error:
        raise source.damaged(path, str(error)) from error
    *batches, test = (found[name] for name in names)
    train = np.concatenate(batches)
    return _pictures(train, source), train[:, 0], _pictures(test, source), test[:, 0]


def _pictures(records: Bytes, source: Source) -> Bytes:
    return records[:, 1:].reshape(-1, *source.shape)


def _form(source: Source, path: Path) -> Form:
    if path.is_dir():
        return "bin" if _complete(source, path, "bin") else "py"
    return _ARCHIVES[path.name]


def _complete(source: Source, folder: Path, form: Form) -> bool:
    return all((folder / _member(file, form)).is_file() for file in source.files)


def _member(file: File, form: Form) -> str:
    return file.name if form == "bin" else file.name.removesuffix(".bin")


def _contents(path: Path, form: Form, names: Mapping[str, File]) -> Iterator[tuple[str, bytes]]:
    limits = {n: file.size if form == "bin" else PICKLE_LIMIT for n, file in names.items()}
    if path.is_dir():
        for name, limit in limits.items():
            yield name, packed.read(path / name, limit)
    else:
        folder = f"cifar-10-batches-{form}/"
        wanted = {folder + name: limit for name, limit in limits.items()}
        for member, content in packed.from_tar(path, wanted):
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
