"""Data sets of torchvision and Hugging Face, by the real packages: `make test-data` installs them.

Neither is needed to use sdfeel, and this file is skipped where they are not installed.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sdfeel
from sdfeel.core.errors import InputError
from sdfeel.core.events import Evaluated, Finished
from sdfeel.data.adapters import HowToRead
from sdfeel.data.federated import examples


def blocks(directory: Path, count: int = 24) -> Path:
    """A folder of pictures of two classes: bright at the top, or at the bottom."""
    image = pytest.importorskip("PIL.Image")
    for n in range(count):
        pixels = np.full((8, 8, 3), 20 + n, dtype=np.uint8)
        kind = n % 2
        pixels[4 * kind : 4 * kind + 4] = 200
        folder = directory / ("bottom" if kind else "top")
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels).save(folder / f"{n:02}.png")
    return directory


def trained(train: Any, test: Any, **data: Any) -> tuple[str, Evaluated]:
    run = sdfeel.Run(
        {
            "network": {"clients": 4, "servers": 2},
            "data": {"name": (train, test), "partition": "iid", **data},
            "model": {"name": "logistic"},
            "training": {"iterations": 20, "engine": "loop", "batch_size": 4},
        }
    )
    events = list(run)
    end, measured = events[-1], [each for each in events if isinstance(each, Evaluated)]
    assert isinstance(end, Finished)
    return end.model_sha256, measured[-1]


def test_torchvisions_pictures_go_in_as_they_are(tmp_path: Path) -> None:
    vision = pytest.importorskip("torchvision")
    folder = vision.datasets.ImageFolder(blocks(tmp_path / "p"))  # gives pictures of Pillow's
    bits, last = trained(folder, folder)
    assert last.accuracy == 1.0
    whole = vision.transforms.ToTensor()
    tensors = vision.datasets.ImageFolder(tmp_path / "p", transform=whole)
    assert trained(tensors, tensors)[0] == bits


def test_torchvisions_augmentation_is_random_and_addressed(tmp_path: Path) -> None:
    vision = pytest.importorskip("torchvision")
    change = pytest.importorskip("torchvision.transforms.v2")
    steps = [change.RandomHorizontalFlip(), change.RandomCrop(8, padding=1), change.ToImage()]
    whole = change.Compose([*steps, change.ToDtype(torch.float32, scale=True)])
    folder = vision.datasets.ImageFolder(blocks(tmp_path / "p"), transform=whole)
    plain = vision.datasets.ImageFolder(tmp_path / "p")
    bits, last = trained(sdfeel.lazy(folder), plain)
    assert bits == trained(folder, plain, lazy=True)[0]
    assert bits != trained(folder, plain)[0]
    assert last.accuracy == 1.0


def test_rows_of_hugging_face_go_in_as_they_are() -> None:
    hub = pytest.importorskip("datasets")
    tokens = [[n % 5, (n + 1) % 5, 7] for n in range(24)]
    whole = hub.Dataset.from_dict(
        {"input_ids": tokens, "label": [n % 2 for n in range(24)], "user": ["a", "b"] * 12}
    )
    found = examples(whole)
    assert found.x.tolist() == tokens
    assert found.x.dtype == torch.int64
    lazily = examples(sdfeel.lazy(whole.with_format("torch")))
    assert torch.equal(lazily.x, found.x)
    assert torch.equal(lazily.y, found.y)
    split = hub.DatasetDict({"train": whole, "test": whole.select(range(8))})
    run = sdfeel.Run(
        {
            "network": {"clients": 4, "servers": 2},
            "data": {"name": lambda: split, "partition": "iid"},
            "model": {"name": "logistic"},
            "training": {"iterations": 4, "engine": "loop"},
        }
    )
    assert isinstance(list(run)[-1], Finished)
    words = hub.Dataset.from_dict({"text": ["good", "bad"], "label": [1, 0]})
    with pytest.raises(InputError, match="column text of example 0 is text"):
        examples(words)
    pairs = examples(whole, HowToRead(task="language"))
    assert pairs.y.tolist() == [each[1:] for each in tokens]


def test_pictures_of_hugging_face_go_in_as_they_are(tmp_path: Path) -> None:
    hub = pytest.importorskip("datasets")
    files = sorted(blocks(tmp_path / "p").rglob("*.png"))
    whole = hub.Dataset.from_dict(
        {"image": list(map(str, files)), "label": [int(f.parent.name == "bottom") for f in files]}
    ).cast_column("image", hub.Image())
    assert examples(whole).x.shape == (24, 3, 8, 8)
    assert trained(whole, whole)[1].accuracy == 1.0
