"""Data sets by name, found on this machine, checked and normalised."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdfeel.core.errors import DataError, InputError, UnknownName, told, unknown
from sdfeel.core.named import Kind, is_path, recorded_name
from sdfeel.data import formats, tables
from sdfeel.data.adapters import AS_IT_IS, HowToRead
from sdfeel.data.federated import Dataset, Examples, Federated, examples, users_of
from sdfeel.data.partition import PARTITIONS, USERS
from sdfeel.data.sources import DATASETS, Arrays, Bytes, Source

__all__ = [
    "DATASETS",
    "Description",
    "default_directory",
    "describe",
    "directories",
    "find",
    "known",
    "load",
    "verify",
]


PARTITION = Kind("partition", {name: name for name in (*PARTITIONS, USERS)}, "sdfeel.partitions")
DIGITS = Path(__file__).with_name("digits.npz")  # comes with the package


def load(
    name: Any, directory: Path | None = None, reading: HowToRead = AS_IT_IS
) -> Dataset | Federated:
    """A data set by name, a user's own from files, or one that was given as an object.

    Files are looked for in `directory`, then in $SDFEEL_DATA, then in the user's cache. The first
    ones found must have the published checksums; nothing is ever downloaded here.
    """
    if not isinstance(name, str) or name not in DATASETS:
        return _users(name, reading)
    source = DATASETS[name]
    if reading.group is not None:
        raise _no_columns(name, reading.group)
    path = find(source, directory)
    if path is None:
        raise _missing(source, directory)
    x_train, y_train, x_test, y_test = _READ[source.kind](source, path)
    return Dataset(
        source.name,
        _examples(x_train, y_train, source),
        _examples(x_test, y_test, source),
        source.classes,
    )


def _users(name: Any, reading: HowToRead) -> Dataset | Federated:
    """A user's data: an object, what a package adds or a program names, a file or a folder."""
    added = Kind("data set", DATASETS, "sdfeel.data")
    if not isinstance(name, str) or is_path(name) or name in added.added():
        return _own(recorded_name(name), added.find(name), reading)
    if name.lower().endswith(".npz"):
        return _as_asked(formats.load_npz(Path(name)), reading)
    if tables.is_table(name) or Path(name).is_dir():
        return tables.load(Path(name), reading)
    raise _unknown(name)


def _own(name: str, given: Any, reading: HowToRead) -> Dataset | Federated:
    """A user's data: a pair of train and test, or already split; or a function that gives them."""
    if callable(given) and not hasattr(given, "__getitem__"):
        try:
            given = given()
        except Exception as error:  # somebody else's function may raise anything
            raise InputError(f"data {name} cannot be read: {told(error)}") from None
    if isinstance(given, Dataset | Federated):
        if reading.group is not None and (isinstance(given, Federated) or given.users is None):
            raise _no_columns(name, reading.group)
        return replace(given, train=examples(given.train), test=examples(given.test))
    if isinstance(given, Mapping) and {"train", "test"} <= set(given):
        given = given["train"], given["test"]
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise InputError(
            f"data.name must lead to (train, test), {{'train': ..., 'test': ...}} or what "
            f"sdfeel.federate gives, got {type(given).__name__}"
        )
    train, test = examples(given[0], reading, reading.lazy), examples(given[1], reading)
    users = users_of(given[0], reading), users_of(given[1], reading)
    return Dataset(name, train, test, Federated(train, (), test).classes, *users)


def _no_columns(name: str, user: str) -> InputError:
    return InputError(
        f"data.user names the column '{user}', but {name} has no named columns: leave it out"
    )


def _as_asked(data: Dataset, reading: HowToRead) -> Dataset:
    """The same with the targets that the task needs."""
    if reading.group is not None:
        raise _no_columns(data.name, reading.group)
    train, test = examples(data.train, reading), examples(data.test, reading)
    return Dataset(data.name, train, test, Federated(train, (), test).classes)


def known(name: str) -> Source:
    """The data set of this name; InputError with a guess if there is none."""
    if name not in DATASETS:
        raise _unknown(name)
    return DATASETS[name]


def _unknown(name: str) -> UnknownName:
    files = "FILE.npz", "FILE.csv", "FILE.parquet", "FOLDER"
    return unknown("data set", name, [*DATASETS, *files])


def directories(directory: Path | None = None) -> list[Path]:
    """The directories that are searched, in order."""
    given = [] if directory is None else [Path(directory)]
    named = [Path(os.environ["SDFEEL_DATA"])] if os.environ.get("SDFEEL_DATA") else []
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [*given, *named, cache / "sdfeel"]


def default_directory() -> Path:
    """Where data sets are put by default: $SDFEEL_DATA, or the user's cache."""
    return directories()[0]


def find(source: Source, directory: Path | None = None) -> Path | None:
    """The folder or file from which `load` would read; its content is not checked."""
    if source.kind == "embedded":
        return DIGITS
    found = (_FIND[source.kind](source, root) for root in directories(directory))
    return next((path for path in found if path is not None), None)


def verify(source: Source, root: Path) -> Path | None:
    """The data set's checked place below `root`, and nowhere else; None if there is none."""
    path = DIGITS if source.kind == "embedded" else _FIND[source.kind](source, root)
    if path is not None:
        _READ[source.kind](source, path)
    return path


@dataclass(frozen=True)
class Description:
    """One line of `sdfeel data`."""

    name: str
    description: str
    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    found: Path | None  # where; None if it is not on this machine


def describe(directory: Path | None = None) -> list[Description]:
    """Every data set, and whether it is on this machine."""
    return [
        Description(s.name, s.description, s.train, s.test, s.shape, s.classes, find(s, directory))
        for s in DATASETS.values()
    ]


def _missing(source: Source, directory: Path | None) -> DataError:
    searched = ", ".join(str(each) for each in directories(directory))
    return DataError(
        f"{source.title} is not on this machine (searched for its {len(source.files)} files, "
        f"such as {source.folder}/{source.files[0].name}, in: {searched}): "
        f"run `sdfeel data get {source.name}`, or set SDFEEL_DATA to the directory that has it"
    )


@cache  # they come with the package: read once for all runs of a process
def _read_digits(source: Source, path: Path) -> Arrays:
    del source
    with np.load(path, allow_pickle=False) as arrays:
        x_train, y_train, x_test, y_test = (arrays[name] for name in formats.NAMES)
    return x_train[:, None], y_train, x_test[:, None], y_test  # one channel


_FIND: dict[str, Callable[[Source, Path], Path | None]] = {
    "idx": formats.find_idx,
    "cifar": formats.find_cifar,
}
_READ: dict[str, Callable[[Source, Path], Arrays]] = {
    "embedded": _read_digits,
    "idx": formats.read_idx,
    "cifar": formats.read_cifar,
}


def _examples(pixels: Bytes, labels: Bytes, source: Source) -> Examples:
    """Pixels as float32, (x / white - mean) / std, channel by channel."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (source.mean, source.std))
    x = torch.tensor(pixels, dtype=torch.float32)  # (N, channels, height, width)
    x.div_(source.white).sub_(mean).div_(std)
    return Examples(x, torch.tensor(labels, dtype=torch.int64))
