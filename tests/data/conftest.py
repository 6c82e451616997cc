"""Small data sets in the real formats, and the real ones where this machine has them."""

import dataclasses
import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from sdfeel.data import formats
from sdfeel.data.sources import DATASETS, Bytes, File, Source


@pytest.fixture
def real_data() -> Path:
    """A directory with both MNISTs: $SDFEEL_DATA, or shared/data next to the checkout."""
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    directory = Path(os.environ.get("SDFEEL_DATA") or beside)
    if any(
        formats.find_idx(DATASETS[name], directory) is None for name in ("mnist", "fashion-mnist")
    ):
        pytest.skip("no MNIST and Fashion-MNIST here: set SDFEEL_DATA to their directory")
    return directory


@pytest.fixture
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory that a test gives is the only one with data."""
    monkeypatch.delenv("SDFEEL_DATA", raising=False)


def pictures(count: int, shape: tuple[int, ...], seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(256, size=(count, *shape), dtype=np.uint8)


def digits(count: int, seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(10, size=count, dtype=np.uint8)


@pytest.fixture
def small_mnist() -> tuple[Source, dict[str, bytes]]:
    """MNIST with 6 + 3 pictures, and the contents of its files."""
    arrays = (pictures(6, (28, 28), 1), digits(6, 2), pictures(3, (28, 28), 3), digits(3, 4))
    real = DATASETS["mnist"]
    contents = {f.name: formats.encode(a) for f, a in zip(real.files, arrays, strict=True)}
    files = tuple(
        File(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    )
    return dataclasses.replace(real, files=files, addresses=(), packages=()), contents


@pytest.fixture
def small_cifar() -> tuple[Source, dict[str, bytes]]:
    """CIFAR-10 with 4 pictures in each batch, and the contents of its binary files."""
    real = DATASETS["cifar10"]
    contents = {
        file.name: np.column_stack([digits(4, seed), pictures(4, (3072,), seed)]).tobytes()
        for seed, file in enumerate(real.files)
    }
    files = tuple(
        File(name, len(content), hashlib.sha1(content).hexdigest(), "sha1")
        for name, content in contents.items()
    )
    return dataclasses.replace(real, files=files, addresses=(), packages=()), contents


def put(folder: Path, contents: dict[str, bytes], packed: bool = False) -> None:
    """Write files into a new folder, compressed or not."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1))
        else:
            (folder / name).write_bytes(content)
