"""A user's own data set: an .npz file of numbers.

It holds x_train, y_train, x_test and y_test. Inputs of type uint8 are taken for pixels and
divided by 255; others are used as they are, so normalise them first. Whole-number targets
are class numbers from 0; any others are values to be predicted.
"""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdfeel.core.errors import DataError
from sdfeel.data.federated import Dataset, Examples

NAMES = ("x_train", "y_train", "x_test", "y_test")
Array = NDArray[Any]


def load(path: Path) -> Dataset:
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
        raise DataError(
            f"{path} is not an .npz file of numbers ({error}): save it with numpy.savez"
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
        raise DataError(f"{path}: {len(x)} inputs but {len(y)} targets in {part}: give one of each")


def _inputs(x: Array) -> Tensor:
    values = torch.tensor(x.astype(np.float32))
    return values.div_(255) if x.dtype == np.uint8 else values


def _targets(y: Array, labelled: bool) -> Tensor:
    return torch.tensor(y.astype(np.int64 if labelled else np.float32))


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
