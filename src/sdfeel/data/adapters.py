"""Other people's data sets as they are: torch's, torchvision's, Hugging Face's, or any rows.

Nothing here imports those packages: a data set is whatever has a length and gives an example for a
number, as a pair (input, target) or as a row of named columns.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdfeel.core.errors import InputError, said
from sdfeel.core.seeds import alone

Task = Literal["auto", "classification", "regression", "labelling", "language"]

# Columns that are taken, the first that is there, unless others are named.
TARGETS = ("label", "labels", "target", "targets", "y", "class")
INPUTS = ("input_ids", "image", "img", "pixel_values", "x", "inputs", "features", "tokens")


@dataclass(frozen=True)
class HowToRead:
    """How a data set is read."""

    inputs: tuple[str, ...] = ()  # columns; none: the usual ones, or all others
    target: str | None = None  # column; None: the usual one
    group: str | None = None  # column that says whose example it is
    task: Task = "auto"
    lazy: bool = False  # are training examples read anew at every step?
    pixels: int | None = None  # width and height that pictures in files are resized to


AS_IT_IS = HowToRead()


class LazyData:
    """A data set whose examples are read anew whenever they are used: see `lazy`."""

    def __init__(self, dataset: Any) -> None:
        if not is_dataset(dataset) or isinstance(dataset, str | bytes | Mapping):
            raise InputError(
                f"sdfeel.lazy takes a data set with __len__ and __getitem__, got "
                f"{type(dataset).__name__}"
            )
        self.dataset = dataset


def lazy(dataset: Any) -> LazyData:
    """The data set, read anew at every step, so that random augmentation stays random.

    What is random must come from the global generators of torch, NumPy or Python. These are seeded
    for every example by (seed, client, step, place in the batch) and restored afterwards: the same
    seed gives the same bits, with any number of workers and after any interruption. A data set that
    has an attribute `lazy = True` is read in the same way without this wrapper.

    >>> lazy([([0.0], 0), ([1.0], 1)]).dataset[1]
    ([1.0], 1)
    """
    return LazyData(dataset)


def is_dataset(given: Any) -> bool:
    """Does it have a length, and an example for every number?"""
    return hasattr(given, "__getitem__") and hasattr(given, "__len__")


@contextmanager
def seeded() -> Iterator[Callable[[int], None]]:
    """A function that seeds the generators of torch, NumPy and Python, restored at the end."""
    generator = torch.default_generator

    def seed(number: int) -> None:
        generator.manual_seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002 (what users' transforms draw from)
        random.seed(number)

    with alone():
        kept = generator.get_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
        try:
            yield seed
        finally:
            generator.set_state(kept[0])
            np.random.set_state(kept[1])  # noqa: NPY002
            random.setstate(kept[2])


class DatasetRows:
    """A data set, example by example, as pairs of tensors."""

    def __init__(self, dataset: Any, reading: HowToRead = AS_IT_IS) -> None:
        if len(dataset) == 0:
            raise InputError(f"the data set {_kind(dataset)} is empty: give at least one example")
        self._dataset, self._reading = dataset, reading
        self._columns: tuple[tuple[str, ...], str] | None = None

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def task(self) -> Task:
        """What is to be learned from them."""
        return self._reading.task

    def pair(self, n: int) -> tuple[Tensor, Tensor]:
        """Input and target of example n."""
        item = self._dataset[n]
        if isinstance(item, Mapping):
            inputs, target = self._chosen(item)
            for name in (*inputs, *filter(None, [target])):
                if name not in item:
                    raise InputError(
                        f"example {n} has no column '{name}', which others have: its columns are "
                        f"{', '.join(map(str, item))}"
                    )
            parts = [tensor(item[name], f"column {name} of example {n}") for name in inputs]
            x = parts[0] if len(parts) == 1 else torch.cat([p.reshape(-1).float() for p in parts])
            x = x if x.ndim else x[None]
            if not target:
                return next_of(x)
            return x, tensor(item[target], f"column {target} of example {n}")
        if self.task == "language" and not isinstance(item, tuple):
            return next_of(tensor(item, f"example {n}"))
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(
                f"example {n} of {_kind(self._dataset)} is a {type(item).__name__}: it must be "
                f"(input, target) or a row of named columns"
            )
        return tensor(item[0], f"input {n}"), tensor(item[1], f"target {n}")

    def stacked(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these examples, which must all have one shape."""
        pairs = [self.pair(n) for n in numbers]
        return self.joined([x for x, _ in pairs], numbers), self.joined(
            [y for _, y in pairs], numbers
        )

    @staticmethod
    def joined(parts: Sequence[Tensor], numbers: Sequence[int]) -> Tensor:
        """All in one tensor; InputError naming the first that has another shape."""
        for n, part in zip(numbers, parts, strict=True):
            if part.shape != parts[0].shape:
                raise InputError(
                    f"example {n} has the shape {tuple(part.shape)}, and example {numbers[0]} "
                    f"{tuple(parts[0].shape)}: cut or pad all of them to one shape"
                )
        return torch.stack(list(parts))

    def targets(self) -> Tensor | None:
        """All targets without reading the inputs, where the data set keeps them aside."""
        found: Any = None
        for name in ("targets", "labels"):
            found = getattr(self._dataset, name, None) if found is None else found
        if found is None and hasattr(self._dataset, "column_names"):
            _, target = self._chosen(self._dataset[0])
            found = self._dataset[target] if target else None
        try:
            known = tensor(found, "targets")
            if len(known) != len(self):
                return None
            # A transform may turn targets into others.
            some = sorted({0, len(self) // 2, len(self) - 1})
            return known if all(torch.equal(known[n], self.pair(n)[1]) for n in some) else None
        except (InputError, TypeError, ValueError, RuntimeError, IndexError):
            return None

    def column(self, name: str) -> list[Any]:
        """A column's values, one for each example."""
        with seeded():
            first = self._dataset[0]
        if not isinstance(first, Mapping) or name not in first:
            has = (
                f"its columns are {', '.join(map(str, first))}"
                if isinstance(first, Mapping)
                else "its examples have no named columns"
            )
            raise InputError(f"the data have no column '{name}': {has}")
        if hasattr(self._dataset, "column_names"):
            return list(self._dataset[name])
        return [self._dataset[n][name] for n in range(len(self))]

    def _chosen(self, row: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
        """The columns of the inputs and of the target."""
        if self._columns is None:
            self._columns = chosen(list(map(str, row)), self._reading)
        return self._columns


def next_of(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens, and for each the one that follows."""
    return tokens[..., :-1], tokens[..., 1:]


def chosen(columns: Sequence[str], reading: HowToRead) -> tuple[tuple[str, ...], str]:
    """Which columns are inputs and which is the target; none where tokens follow one another.

    >>> chosen(["user", "height", "weight", "label"], HowToRead(group="user"))
    (('height', 'weight'), 'label')
    """
    there = ", ".join(columns)
    for name in (*reading.inputs, *filter(None, (reading.target, reading.group))):
        if name not in columns:
            raise InputError(f"the data have no column '{name}': its columns are {there}")
    usual = next((name for name in TARGETS if name in columns), "")
    target = reading.target or ("" if reading.task == "language" else usual)
    if not target and reading.task != "language":
        if not columns:
            raise InputError("the data have no columns: is the file empty?")
        raise InputError(f"which column is the target? set data.target to one of {there}")
    others = [name for name in columns if name not in (target, reading.group)]
    inputs = reading.inputs or tuple([name for name in INPUTS if name in others][:1] or others)
    if not inputs:
        raise InputError(f"there is no column but {target}: give at least one input")
    return inputs, target


def tensor(value: Any, what: str) -> Tensor:
    """Numbers or a picture as a tensor; a picture becomes (channels, height, width) from 0 to 1."""
    if isinstance(value, Tensor):
        if value.is_complex() or value.layout != torch.strided or value.is_quantized:
            raise InputError(
                f"{what} must be plain real numbers, got {value.dtype} in a tensor that is "
                f"{str(value.layout).removeprefix('torch.')}: convert it first"
            )
        return value
    if hasattr(value, "getbands") and hasattr(value, "convert"):  # a picture of Pillow's
        return picture(value)
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        if array.dtype.kind in "US":
            raise InputError(f"{what} must be numbers, got text: number its words first")
        raise InputError(f"{what} must be numbers, or arrays of one shape, got {said(value)}")
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(
            f"some numbers of {what} are masked: fill them in (.filled()), or leave these examples "
            f"out"
        )
    return torch.as_tensor(_plain(array))


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in a form that torch takes: in this machine's byte order, without long
    doubles, neither backwards nor read-only."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    kind = array.dtype.newbyteorder("=")
    backwards = any(step < 0 for step in array.strides)
    if kind != array.dtype or backwards or not array.flags.writeable:
        return array.astype(kind, order="C")
    return array


def picture(image: Any) -> Tensor:
    """A picture of Pillow's as (channels, height, width), from 0 to 1."""
    plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
    pixels = np.array(plain, dtype=np.uint8)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(pixels)).float().div_(255)


def _kind(dataset: Any) -> str:
    return type(dataset).__name__
