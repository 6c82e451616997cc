"""Training and test examples as tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sdfeel.core.errors import InputError


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets, row by row."""

    x: Tensor  # (N, ...) float, already normalised
    y: Tensor  # (N,) class numbers, or any targets

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InputError(f"{len(self.x)} inputs but {len(self.y)} targets: give one of each")

    def __len__(self) -> int:
        return len(self.x)

    def to(self, dtype: torch.dtype) -> "Examples":
        """The same examples with their floats in the model's type; class numbers stay."""
        x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        y = self.y.to(dtype) if self.y.is_floating_point() else self.y
        return Examples(x, y)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set, loaded."""

    name: str
    train: Examples
    test: Examples
    classes: int  # 0 where targets are not class numbers
