"""Tables and pictures in files: CSV, Parquet, and folders of these or of pictures.

A folder may have parts called `train...` and `test...`, files or folders, and then only these are
read. Without them, and from a single file, a fifth of the rows is for testing: of every user's
rows, where a column says whose they are.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sdfeel.core.arrays import Ints, ints
from sdfeel.core.errors import DataError
from sdfeel.core.seeds import rng
from sdfeel.data.adapters import HowToRead, chosen, picture
from sdfeel.data.federated import Dataset, Examples, Federated, examples

TABLES = (".csv", ".parquet")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FILE = "file"  # a column of every table in a folder: which file a row is from
FOLDER = "folder"  # a column of pictures in folders of folders: whose they are
TESTED = 5  # where nothing says which rows are for testing, every fifth in a drawn order is one
Array = NDArray[Any]


def is_table(name: str) -> bool:
    """Does this name a file with a table?"""
    return name.lower().endswith(TABLES)


def load(path: Path, reading: HowToRead) -> Dataset:
    """The data in a table, or in a folder of tables or of pictures."""
    if not path.is_dir():
        return _of_tables(path.stem, [path], None, reading, path)
    trained, tested = _train_and_test(path)
    kinds = {file.suffix.lower() in PICTURES for file in (*trained, *tested)}
    if len(kinds) != 1:
        what = "both tables and pictures" if kinds else "neither tables nor pictures"
        raise DataError(
            f"{path} contains {what}: give a folder of {' or '.join(TABLES)} files, or of pictures "
            f"in one folder for each class"
        )
    read = _of_pictures if kinds.pop() else _of_tables
    return read(path.name, trained, tested or None, reading, path)


def held_out(count: int, users: Sequence[str] | None) -> tuple[Ints, Ints]:
    """The rows for training, and a fifth for testing: of each user's, where they have users.

    >>> [len(rows) for rows in held_out(10, None)]
    [8, 2]
    """
    order = rng(0, "test rows").permutation(count)
    owners = np.unique(["" for _ in order] if users is None else users, return_inverse=True)[1]
    by_owner = order[np.argsort(owners[order], kind="stable")]
    owns = np.split(by_owner, np.cumsum(np.bincount(owners))[:-1])
    picked = np.sort(np.concatenate([own[: len(own) // TESTED] for own in owns]))
    return ints(np.setdiff1d(np.arange(count), picked)), ints(picked)


def _train_and_test(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files for training, and for testing if the folder says which these are."""
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    sides: dict[str, list[Path]] = {"train": [], "test": []}
    for entry in entries:
        if side := re.match(r"(train|test)(?![a-z])", entry.name.lower()):
            sides[side[1]] += _files(entry)
    if not any(sides.values()):
        return [file for entry in entries for file in _files(entry)], []
    for missing, other in (("train", "test"), ("test", "train")):
        if not sides[missing]:
            raise DataError(
                f"{folder} has files called {other}, but none called {missing}: give both, or "
                f"neither"
            )
    return sides["train"], sides["test"]


def _files(entry: Path) -> list[Path]:
    """The tables and pictures in a folder and its folders; or the file itself."""
    found = sorted(entry.rglob("*")) if entry.is_dir() else [entry]
    return [path for path in found if path.suffix.lower() in TABLES + PICTURES and path.is_file()]


@dataclass(frozen=True, eq=False)
class Sheet:
    """The columns of one file that are used."""

    path: Path
    columns: Mapping[str, Sequence[Any] | Array]  # texts of a CSV file, or arrays
    first: int = 0  # how its first row is counted
    row: str = "row"

    def place(self, n: int, column: str) -> str:
        """Where a cell is."""
        return f"{self.path}, {self.row} {n + self.first}, column {column}"


def _of_tables(
    name: str,
    trained: Sequence[Path],
    tested: Sequence[Path] | None,
    reading: HowToRead,
    root: Path,
) -> Dataset:
    known = [FILE] if root.is_dir() else []
    files = (*trained, *(tested or ()))
    names = _names(files[0])
    inputs, target = chosen([*names, *known] if reading.group in known else names, reading)
    wanted = list(dict.fromkeys(filter(None, (*inputs, target, reading.group))))
    sheets = [_sheet(path, names, wanted, root) for path in files]
    counts = [len(next(iter(sheet.columns.values()))) for sheet in sheets]
    columns = {each: _column(sheets, each, each == target) for each in (*inputs, target) if each}
    users = None if reading.group is None else _texts(sheets, reading.group)
    if tested is None:
        if sum(counts) < TESTED:
            raise DataError(f"{root} has {sum(counts)} rows: give at least {TESTED}")
        train, test = held_out(sum(counts), users)
    else:
        cut = sum(counts[: len(trained)])
        train, test = ints(np.arange(cut)), ints(np.arange(cut, sum(counts)))
    whole = _examples([columns[each] for each in inputs], columns.get(target), reading)
    return _dataset(name, whole.some(train), whole.some(test), users, (train, test), root)


def _dataset(
    name: str,
    train: Examples,
    test: Examples,
    users: Sequence[str] | None,
    rows: tuple[Ints, Ints],
    root: Path,
) -> Dataset:
    if not len(test):
        raise DataError(
            f"no user in {root} has {TESTED} rows, so none is left for testing: give a folder "
            f"with one part called train and one called test"
        )
    own = [None if users is None else tuple(users[n] for n in side) for side in rows]
    return Dataset(name, train, test, Federated(train, (), test).classes, *own)


def _examples(inputs: list[Array], target: Array | None, reading: HowToRead) -> Examples:
    """Columns side by side; one column alone stays what it is, such as rows of tokens."""
    if len(inputs) > 1:
        flat = [np.asarray(each, np.float32).reshape(len(each), -1) for each in inputs]
        inputs = [np.concatenate(flat, axis=1)]
    x = inputs[0] if inputs[0].ndim > 1 else inputs[0][:, None]
    return examples(torch.as_tensor(x) if target is None else (x, target), reading)


def _names(path: Path) -> list[str]:
    """The names of a table's columns."""
    if path.suffix.lower() != ".csv":
        return [str(each) for each in _parquet(path).schema_arrow.names]
    return next(iter(_lines(path)), [])


def _sheet(path: Path, names: Sequence[str], wanted: Sequence[str], root: Path) -> Sheet:
    own = _names(path)
    if list(own) != list(names):
        raise DataError(
            f"the columns of {path} are {', '.join(own)}, and those of the first file "
            f"{', '.join(names)}: give all files the same columns"
        )
    read = [name for name in wanted if name in own]
    sheet = _csv(path, own, read) if path.suffix.lower() == ".csv" else _arrays(path, read)
    if FILE in wanted and FILE not in own:
        rows = len(next(iter(sheet.columns.values())))
        label = path.relative_to(root).with_suffix("").as_posix()
        sheet = Sheet(path, {**sheet.columns, FILE: [label] * rows}, sheet.first, sheet.row)
    return sheet


def _lines(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file: save it as CSV in UTF-8") from error
    return [row for row in csv.reader(text.splitlines()) if row]


def _csv(path: Path, names: Sequence[str], wanted: Sequence[str]) -> Sheet:
    rows = _lines(path)[1:]
    for line, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise DataError(f"{path}, line {line}: {len(row)} cells, but {len(names)} columns")
    places = {name: names.index(name) for name in wanted}
    return Sheet(path, {n: [row[at] for row in rows] for n, at in places.items()}, 2, "line")


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(
            f"reading {path} needs pyarrow: install it with `pip install 'sdfeel[data]'`"
        ) from None
    try:
        return parquet.ParquetFile(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except ArrowException as error:
        raise DataError(f"{path} is not a Parquet file: {error}") from None


def _arrays(path: Path, wanted: Sequence[str]) -> Sheet:
    """Columns of a Parquet file: numbers, texts, lists of one length, or pictures."""
    table = _parquet(path).read(columns=list(wanted))
    found: dict[str, Sequence[Any] | Array] = {}
    for name in wanted:
        column = table.column(name)
        if column.null_count:
            empty = column.is_null().to_pylist().index(True)
            raise DataError(f"{path}, row {empty}, column {name}: the cell is empty")
        values = column.to_pylist() if column.type.num_fields else None  # lists, structures
        if values is None:
            array = column.to_numpy()
            found[name] = array.tolist() if array.dtype.kind == "O" else array
        else:
            found[name] = [_opened(path, n, each) for n, each in enumerate(values)]
    return Sheet(path, found)


def _opened(path: Path, n: int, value: Any) -> Any:
    """A cell; pictures are kept as the bytes of their files, the way Hugging Face writes them."""
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
        return picture(_image(io.BytesIO(value["bytes"]), f"{path}, row {n}")).numpy()
    return value


def _column(sheets: Sequence[Sheet], name: str, target: bool) -> Array:
    """A column's numbers from all files; the texts of a target are numbered in their order."""
    cells = [sheet.columns[name] for sheet in sheets]
    texts = [not isinstance(own, np.ndarray) and _is_text(own) for own in cells]
    if target and any(texts):
        words = _texts(sheets, name)
        return np.unique(words, return_inverse=True)[1].astype(np.int64)
    parts = [_numbers(sheet, name) for sheet in sheets]
    whole = all(part.dtype.kind in "iu" for part in parts)
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise DataError(
            f"column {name} has rows of the shapes {', '.join(map(str, sorted(shapes)))} in "
            f"different files: cut or pad them to one shape"
        )
    return np.concatenate([part.astype(np.int64 if whole else np.float32) for part in parts])


def _is_text(cells: Iterable[Any]) -> bool:
    return any(isinstance(cell, str) and not _is_float(cell) for cell in cells)


def _texts(sheets: Sequence[Sheet], name: str) -> list[str]:
    return [str(cell) for sheet in sheets for cell in sheet.columns[name]]


def _numbers(sheet: Sheet, name: str) -> Array:
    """One file's numbers: whole ones if all are."""
    cells = sheet.columns[name]
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        array = cells.astype(np.int64) if cells.dtype.kind == "b" else cells
        _check_finite(sheet, name, array)
        return array
    if all(isinstance(cell, str) for cell in cells):
        for n, cell in enumerate(cells):
            if not _is_float(cell):
                what = f"'{cell}' is not a finite number" if cell.strip() else "the cell is empty"
                raise DataError(f"{sheet.place(n, name)}: {what}")
        whole = all(cell.strip().lstrip("+-").isdecimal() for cell in cells)
        return np.array([int(cell) if whole else np.float32(cell) for cell in cells])
    for n, cell in enumerate(cells):
        if np.shape(cell) != np.shape(cells[0]):
            raise DataError(
                f"{sheet.place(n, name)}: {np.size(cell)} values, but {np.size(cells[0])} in the "
                f"first row: cut or pad all rows to one length"
            )
    array = np.array(list(cells))
    if array.dtype.kind not in "biuf":
        raise DataError(f"{sheet.place(0, name)}: {cells[0]!r} is not a number")
    _check_finite(sheet, name, array)
    return array


def _check_finite(sheet: Sheet, name: str, array: Array) -> None:
    bad = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
    for n in np.flatnonzero(bad):
        raise DataError(f"{sheet.place(int(n), name)}: {array[n]} is not a finite number")


def _is_float(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _image(file: Any, what: object) -> Any:
    from PIL import Image

    try:
        image = Image.open(file)
        image.load()
    except Exception as error:  # Pillow raises many kinds for files that are damaged
        raise DataError(f"{what} is not a picture that can be read: {error}") from None
    return image


class Pictures:
    """Pictures in files, opened when they are asked for: rows of `image` and `label`."""

    column_names = ("image", "label", FOLDER)

    def __init__(
        self,
        files: Sequence[Path],
        labels: Sequence[int],
        users: Sequence[str],
        pixels: int | None,
    ) -> None:
        self.files, self.targets, self._users, self._pixels = files, labels, users, pixels
        self._first: SizeAndMode | None = None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, n: int | str) -> Any:
        if isinstance(n, str):
            return {"label": self.targets, FOLDER: self._users}[n]
        return {"image": self._opened(n), "label": self.targets[n], FOLDER: self._users[n]}

    def _opened(self, n: int) -> Any:
        image = self._sized(n)
        if self._first is None:
            self._first = _size_and_mode(self._sized(0))
        if _size_and_mode(image) != self._first:
            raise DataError(
                f"{self.files[n]} is {_described(_size_and_mode(image))}, and {self.files[0]} "
                f"{_described(self._first)}: give all of them one size with data.pixels, and "
                f"save all with colours or all without"
            )
        return image

    def _sized(self, n: int) -> Any:
        """A picture in the size that was asked for."""
        image = _image(self.files[n], self.files[n])
        if self._pixels is None:
            return image
        return image.convert(_mode(image)).resize((self._pixels, self._pixels))


SizeAndMode = tuple[tuple[int, int], str]


def _mode(image: Any) -> str:
    return "L" if image.mode in ("1", "L") else "RGB"


def _size_and_mode(image: Any) -> SizeAndMode:
    """A picture's size, and whether it has colours."""
    return image.size, _mode(image)


def _described(shape: SizeAndMode) -> str:
    (width, height), mode = shape
    return f"{width} x {height} {'without' if mode == 'L' else 'with'} colours"


def _of_pictures(
    name: str,
    trained: Sequence[Path],
    tested: Sequence[Path] | None,
    reading: HowToRead,
    root: Path,
) -> Dataset:
    files = [*trained, *(tested or ())]
    deep = (2 if tested is None else 3) + (reading.group is not None)
    for file in files:
        if len(file.relative_to(root).parts) < deep:
            where = ", below one for each user" if reading.group else ""
            raise DataError(
                f"{file} is not deep enough: put pictures into one folder for each class{where}"
            )
    kinds = sorted({file.parent.name for file in files})
    labels = [kinds.index(file.parent.name) for file in files]
    users = [file.parent.parent.name for file in files]
    if tested is None:
        owners = users if reading.group else None
        rows = held_out(len(files), owners)
    else:
        cut = len(trained)
        rows = ints(np.arange(cut)), ints(np.arange(cut, len(files)))
    if not len(rows[1]):
        raise DataError(f"{root} has {len(files)} pictures: give at least {TESTED}")
    sides = [
        Pictures(
            [files[n] for n in side],
            [labels[n] for n in side],
            [users[n] for n in side],
            reading.pixels,
        )
        for side in rows
    ]
    train = examples(sides[0], reading, reading.lazy)
    test = examples(sides[1], reading)
    return _dataset(name, train, test, users if reading.group else None, rows, root)
