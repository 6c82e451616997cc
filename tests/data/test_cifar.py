"""CIFAR-10's four published forms, and bytes that must never be unpickled."""

import hashlib
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from sdfeel.core.errors import DataError
from sdfeel.data import formats
from sdfeel.data.sources import Source
from tests.data.conftest import put

Small = tuple[Source, dict[str, bytes]]


def pickled(contents: dict[str, bytes]) -> dict[str, bytes]:
    """The same batches in the pickled form, written as today's Python writes them."""
    batches = {}
    for name, content in contents.items():
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, formats.RECORD)
        batch = {b"labels": records[:, 0].tolist(), b"data": records[:, 1:].copy()}
        batches[name.removesuffix(".bin")] = pickle.dumps(batch, protocol=4)
    return batches


def md5(contents: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}


def archive(path: Path, folder: str, contents: dict[str, bytes]) -> None:
    put(path.parent / "staging", contents)
    with tarfile.open(path, "w:gz") as tar:
        for name in contents:
            tar.add(path.parent / "staging" / name, f"{folder}/{name}")


@pytest.mark.parametrize("top", ["", "cifar10", "CIFAR10"], ids=lambda top: top or ".")
@pytest.mark.parametrize("form", ["bin", "py"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_form_gives_the_same_pictures(
    top: str, form: str, packed: bool, small_cifar: Small, tmp_path: Path
) -> None:
    source, contents = small_cifar
    files = contents if form == "bin" else pickled(contents)
    (tmp_path / top).mkdir(exist_ok=True)
    if packed:
        name = {"bin": "cifar-10-binary.tar.gz", "py": "cifar-10-python.tar.gz"}[form]
        archive(tmp_path / top / name, f"cifar-10-batches-{form}", files)
    else:
        put(tmp_path / top / f"cifar-10-batches-{form}", files)
    path = formats.find_cifar(source, tmp_path)
    assert path is not None
    x_train, y_train, x_test, y_test = formats.read_cifar(source, path, md5(pickled(contents)))
    expected = np.frombuffer(contents["data_batch_2.bin"], dtype=np.uint8).reshape(4, 3073)
    assert x_train.shape == (20, 3, 32, 32)
    assert np.array_equal(x_train[4:8].reshape(4, -1), expected[:, 1:])
    assert np.array_equal(y_train[4:8], expected[:, 0])
    assert (x_test.shape, y_test.shape) == ((4, 3, 32, 32), (4,))


def test_the_folder_of_batches_may_be_given_itself(small_cifar: Small, tmp_path: Path) -> None:
    source, contents = small_cifar
    put(tmp_path, contents)
    assert formats.find_cifar(source, tmp_path) == tmp_path


def test_a_changed_batch_is_noticed(small_cifar: Small, tmp_path: Path) -> None:
    source, contents = small_cifar
    contents["test_batch.bin"] = bytes(len(contents["test_batch.bin"]))
    put(tmp_path, contents)
    with pytest.raises(DataError, match=r"test_batch\.bin: its sha1 .*`sdfeel data get cifar10`"):
        formats.read_cifar(source, tmp_path)


def test_an_archive_without_a_batch_is_noticed(small_cifar: Small, tmp_path: Path) -> None:
    source, contents = small_cifar
    del contents["data_batch_3.bin"]
    path = tmp_path / "cifar-10-binary.tar.gz"
    archive(path, "cifar-10-batches-bin", contents)
    with pytest.raises(DataError, match=r"data_batch_3\.bin is missing"):
        formats.read_cifar(source, path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match="cannot be unpacked"):
        formats.read_cifar(source, path)


class Trap:
    """An object that leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def test_unknown_bytes_are_never_unpickled(small_cifar: Small, tmp_path: Path) -> None:
    source, contents = small_cifar
    good = pickled(contents)
    bad = {**good, "data_batch_1": pickle.dumps(Trap(tmp_path / "sprung"))}
    put(tmp_path / "cifar-10-batches-py", bad)
    with pytest.raises(DataError, match="data_batch_1: its md5 checksum is not the published"):
        formats.read_cifar(source, tmp_path / "cifar-10-batches-py", md5(good))
    assert not (tmp_path / "sprung").exists()


def test_even_known_bytes_may_name_nothing_but_arrays(small_cifar: Small, tmp_path: Path) -> None:
    source, contents = small_cifar
    bad = {**pickled(contents), "data_batch_1": pickle.dumps(Trap(tmp_path / "sprung"))}
    put(tmp_path / "cifar-10-batches-py", bad)
    with pytest.raises(DataError, match=r"asks for \w+\.mkdir, which no batch needs"):
        formats.read_cifar(source, tmp_path / "cifar-10-batches-py", md5(bad))
    assert not (tmp_path / "sprung").exists()
