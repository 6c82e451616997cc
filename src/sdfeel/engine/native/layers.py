"""The layers that the native engine knows, each with the numbers that it is made of."""

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
class Average:
    """AvgPool2d, and layers that compute the same."""

    shape: Shape
    kernel: Pair
    stride: Pair
    padding: Pair
    padded: bool = True  # does padding count?

    @property
    def result(self) -> Shape:
        return (self.shape[0], *_slid(self.shape, self.kernel, self.stride, self.padding))


@dataclass(frozen=True)
class Relu:
    shape: Shape


@dataclass(frozen=True)
class Smooth:
    """An activation other than ReLU."""

    shape: Shape
    name: str  # of its function in smooth_activations.hpp
    parameter: float = 0.0


@dataclass(frozen=True)
class SampleNorm:
    """LayerNorm over an example, or GroupNorm."""

    shape: Shape
    groups: int
    each: int  # neighbouring numbers that share a weight
    epsilon: float
    weight: int | None  # where they begin in a model's row
    bias: int | None


@dataclass(frozen=True)
class Drop:
    shape: Shape
    p: float
    channels: bool
    number: int  # the layer of engine/dropout.py


@dataclass(frozen=True)
class Norm:
    """BatchNorm2d, or BatchNorm1d of one line: channels of one number each."""

    shape: Shape
    epsilon: float
    momentum: float  # of the running statistics
    weight: int | None  # where they begin in a model's row
    bias: int | None
    mean: int
    variance: int


@dataclass(frozen=True)
class Embed:
    """Words of an example become vectors, and these become their mean, or one line of numbers."""

    length: int  # words of an example
    words: int  # of the vocabulary
    size: int  # of a vector
    padding: int | None  # the word whose vector has no gradient
    weight: int
    mean: bool = False


@dataclass(frozen=True)
class WordMean:
    """The mean of the vectors of an example's words."""


@dataclass(frozen=True)
class Residual:
    """Two branches of layers whose results are added up; an empty one is the input itself."""

    shape: Shape
    result: Shape
    body: tuple["Layer", ...]
    other: tuple["Layer", ...]


Layer = (
    Conv
    | Linear
    | Pool
    | Average
    | Relu
    | Smooth
    | Drop
    | Norm
    | SampleNorm
    | Embed
    | WordMean
    | Residual
)


def _slid(shape: Shape, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    y, x = (
        (size + 2 * pad - width) // step + 1
        for size, width, step, pad in zip(shape[1:], kernel, stride, padding, strict=True)
    )
    return y, x
