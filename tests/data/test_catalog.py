"""Data sets by name: found in every usual layout, checked, normalised."""

from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch

from sdfeel.core.errors import DataError, InputError
from sdfeel.data import formats
from sdfeel.data.catalog import DATASETS, default_directory, describe, directories, load, verify
from sdfeel.data.federated import Dataset
from sdfeel.data.sources import Source
from tests.data.conftest import put

Small = tuple[Source, dict[str, bytes]]


def test_digits_come_with_the_package() -> None:
    data = load("digits")
    assert data.train.x.shape == (1437, 1, 8, 8)
    assert data.test.x.shape == (360, 1, 8, 8)
    assert (data.train.x.dtype, data.train.y.dtype) == (torch.float32, torch.int64)
    assert data.classes == 10
    assert data.test.y.bincount().tolist() == [36] * 10
    assert abs(data.train.x.mean()) < 1e-3
    assert abs(data.train.x.std() - 1) < 1e-3


def test_digits_of_training_and_test_are_different_pictures() -> None:
    data = load("digits")
    train = {row.numpy().tobytes() for row in data.train.x}
    assert not train & {row.numpy().tobytes() for row in data.test.x}


def test_digits_are_a_small_file_of_the_package() -> None:
    """So that whoever tries something need not wait for its data."""
    (path,) = (each.found for each in describe() if each.name == "digits")
    assert path is not None
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("name", "first", "counts"),
    [
        ("mnist", [5, 0, 4, 1, 9], [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        ("fashion-mnist", [9, 0, 0, 3, 0], [6000] * 10),
    ],
)
def test_the_real_thing_is_recognised(
    name: str, first: list[int], counts: list[int], real_data: Path
) -> None:
    data = load(name, real_data)
    assert data.train.x.shape == (60_000, 1, 28, 28)
    assert data.test.x.shape == (10_000, 1, 28, 28)
    assert data.train.y[:5].tolist() == first
    assert data.train.y.bincount().tolist() == counts
    assert abs(data.train.x.mean()) < 1e-3
    assert abs(data.train.x.std() - 1) < 1e-3


def test_the_environment_names_a_directory(
    real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDFEEL_DATA", str(real_data))
    assert default_directory() == real_data
    found = {line.name: line.found for line in describe()}
    assert found["digits"] is not None
    assert found["mnist"] == formats.find_idx(DATASETS["mnist"], real_data)


def test_two_real_data_sets_with_the_same_file_names_are_told_apart(
    real_data: Path, tmp_path: Path
) -> None:
    folder = formats.find_idx(DATASETS["fashion-mnist"], real_data)
    assert folder is not None
    assert formats.find_idx(DATASETS["fashion-mnist"], folder) == folder
    assert formats.find_idx(DATASETS["mnist"], folder) is None
    copytree(folder, tmp_path / "MNIST" / "raw")  # taken at its word, and found out
    with pytest.raises(DataError, match=r"MNIST.* is not MNIST's file: it is Fashion-MNIST's"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize(
    "layout", ["MNIST/raw", "mnist/MNIST/raw", "mnist", "MNIST", "", "raw"], ids=lambda s: s or "."
)
def test_mnist_is_found_in_every_layout(
    layout: str, dotted: bool, packed: bool, small_mnist: Small, tmp_path: Path
) -> None:
    source, contents = small_mnist
    if dotted:
        contents = {name.replace("-idx", ".idx"): c for name, c in contents.items()}
    put(tmp_path / layout, contents, packed)
    assert verify(source, tmp_path) == tmp_path / layout
    x_train, y_train, x_test, y_test = formats.read_idx(source, tmp_path / layout)
    assert (x_train.shape, y_train.shape) == ((6, 1, 28, 28), (6,))
    assert (x_test.shape, y_test.shape) == ((3, 1, 28, 28), (3,))


def test_an_incomplete_folder_is_passed_over(small_mnist: Small, tmp_path: Path) -> None:
    source, contents = small_mnist
    put(tmp_path / "MNIST/raw", dict(list(contents.items())[:3]))
    assert verify(source, tmp_path) is None
    put(tmp_path / "mnist", contents, packed=True)
    assert verify(source, tmp_path) == tmp_path / "mnist"


@pytest.mark.parametrize("packed", [False, True])
def test_a_changed_pixel_is_noticed(packed: bool, small_mnist: Small, tmp_path: Path) -> None:
    source, contents = small_mnist
    name = "train-images-idx3-ubyte"
    contents[name] = contents[name][:-1] + bytes([contents[name][-1] ^ 1])
    put(tmp_path / "mnist", contents, packed)
    with pytest.raises(
        DataError, match=rf"{name}.* sha256 checksum is not .*`sdfeel data get mnist`"
    ):
        verify(source, tmp_path)


def test_a_truncated_file_is_noticed(small_mnist: Small, tmp_path: Path) -> None:
    source, contents = small_mnist
    name = "t10k-images-idx3-ubyte"
    put(tmp_path / "mnist", contents)
    (tmp_path / "mnist" / name).write_bytes(contents[name][:-5])
    with pytest.raises(DataError, match=rf"{name} is not MNIST's file: it has 2,363 bytes instead"):
        verify(source, tmp_path)
    (tmp_path / "mnist" / name).write_bytes(contents[name] + b"x")
    with pytest.raises(DataError, match=rf"{name} is larger than the 2,368 bytes"):
        verify(source, tmp_path)


def test_a_truncated_archive_is_noticed(small_mnist: Small, tmp_path: Path) -> None:
    source, contents = small_mnist
    put(tmp_path / "mnist", contents, packed=True)
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=rf"{path.name} cannot be unpacked.*sdfeel data get mnist"):
        verify(source, tmp_path)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(DataError, match=rf"{path.name} cannot be unpacked"):
        verify(source, tmp_path)


@pytest.mark.usefixtures("_no_data")
def test_a_missing_data_set_says_where_it_was_sought(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"not on this machine.*`sdfeel data get cifar10`"
    ) as caught:
        load("cifar10", tmp_path)
    assert all(str(each) in str(caught.value) for each in directories(tmp_path))


def test_places_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDFEEL_DATA", "/from/environment")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    expected = [tmp_path, Path("/from/environment"), Path("/cache/sdfeel")]
    assert directories(tmp_path) == expected
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("SDFEEL_DATA")
    assert directories() == [Path.home() / ".cache" / "sdfeel"]


def test_an_unknown_name_is_guessed() -> None:
    with pytest.raises(
        InputError, match="unknown data set 'fashion': did you mean 'fashion-mnist'"
    ):
        load("fashion")


@pytest.mark.usefixtures("_no_data")
def test_describe_lists_everything(tmp_path: Path) -> None:
    lines = describe(tmp_path)
    assert [line.name for line in lines] == ["digits", "mnist", "fashion-mnist", "cifar10"]
    assert [line.found is not None for line in lines] == [True, False, False, False]
    assert (lines[3].train, lines[3].test, lines[3].shape) == (50_000, 10_000, (3, 32, 32))


def test_a_file_that_is_not_idx_is_refused() -> None:
    with pytest.raises(DataError, match="not an IDX file of bytes"):
        formats.decode(b"\x89PNG")


def own_file(folder: Path, **changes: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    arrays = {
        "x_train": np.zeros((4, 2), dtype=np.float64),
        "y_train": np.array([0, 1, 2, 0]),
        "x_test": np.ones((2, 2), dtype=np.float64),
        "y_test": np.array([1, 1]),
    }
    path = folder / "mine.npz"
    np.savez(path, **(arrays | changes))
    return str(path)


def test_a_users_own_file_is_loaded_as_it_is(tmp_path: Path) -> None:
    data = load(own_file(tmp_path))
    assert isinstance(data, Dataset)
    assert (data.name, data.classes) == ("mine", 3)
    assert (data.train.x.dtype, data.train.y.dtype) == (torch.float32, torch.int64)
    assert data.test.x.tolist() == [[1, 1], [1, 1]]


def test_a_users_pixels_are_scaled_and_values_are_not_classes(tmp_path: Path) -> None:
    white = np.full((4, 2), 255, dtype=np.uint8)
    values = {"y_train": np.linspace(0, 1, 4), "y_test": np.zeros(2)}
    data = load(own_file(tmp_path, x_train=white, **values))
    assert data.train.x.tolist() == [[1, 1]] * 4
    assert data.classes == 0
    assert data.train.y.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.array([object()] * 4)}, "not an .npz file of numbers"),
        ({"y_train": np.array(["a"] * 4)}, "y_train holds <U1, but only numbers"),
        ({"y_train": np.array([0, 1])}, "4 inputs but 2 targets in train"),
        ({"x_test": np.zeros((2, 3))}, "differ in shape"),
        ({"x_test": np.full((2, 2), np.nan)}, "x_test holds values that are not finite"),
        ({"x_test": np.zeros((0, 2))}, "x_test is empty"),
        ({"y_test": np.array([1, -1])}, "class numbers start at 0, got -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_users_mistake_is_named(
    changes: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]],
    message: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(DataError, match=message):
        load(own_file(tmp_path, **changes))


def test_other_files_are_not_data_sets(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*none\.npz: No such file"):
        load(str(tmp_path / "none.npz"))
    path = tmp_path / "other.npz"
    np.savez(path, x_train=np.zeros(1))
    with pytest.raises(DataError, match=r"has no y_train \(it has: x_train\)"):
        load(str(path))
    path.write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(DataError, match=r"not an \.npz file of numbers"):
        load(str(path))
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"not an \.npz file of numbers"):
        load(str(path))
