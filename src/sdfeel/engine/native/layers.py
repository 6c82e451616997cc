"""The layers that the native engine knows, as records of numbers."""

from dataclasses import dataclass

Shape = tuple[int, ...]  # of one example: (channels, height, width), or (size,)
Pair = tuple[int, int]  # (y, x)


@dataclass(frozen=True)
class Conv:
    shape: Shape  # of the input
    out: int
    kernel: Pair
    stride: Pair
    padding: Pair
    weight: int  # where it begins in a model's row
    bias: int | None

    @property
    def result(self) -> Shape:
        return (self.out, *_slid(self.shape, self.kernel, self.stride, self.padding))


@dataclass(frozen=True)
class Linear:
    size: int
    out: int
    weight: int
    bias: int | None


@dataclass(frozen=True)
class Pool:
    shape: Shape
    kernel: Pair
    stride: Pair
    padding: Pair

    @property
    def result(self) -> Shape:
        return (self.shape[0], *_slid(self.shape, self.kernel, self.stride, self.padding))

    @property
    def by_two(self) -> bool:
        return self.kernel == self.stride == (2, 2) and self.padding == (0, 0)


@dataclass(frozen=True)
class Relu:
    shape: Shape


@dataclass(frozen=True)
class Drop:
    shape: Shape
    p: float
    channels: bool
    number: int  # the layer of engine/dropout.py


@dataclass(frozen=True)
class Norm:
    """BatchNorm2d."""

    shape: Shape
    epsilon: float
    momentum: float  # of the running statistics
    weight: int | None  # where they begin in a model's row
    bias: int | None
    mean: int
    variance: int


Layer = Conv | Linear | Pool | Relu | Drop | Norm


def _slid(shape: Shape, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    y, x = (
        (size + 2 * pad - width) // step + 1
        for size, width, step, pad in zip(shape[1:], kernel, stride, padding, strict=True)
    )
    return y, x
