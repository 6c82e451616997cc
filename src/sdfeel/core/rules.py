"""How the terms of a mixing's row become one row, where it is not their weighted sum.

These are decisions; `engine/combine.py` computes them. A term has a weight and a vote: its message
is its row times its weight over its vote, and the vote is how much it counts. Terms are in
ascending order of their sources, so that shelves come before servers and clients.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from sdfeel.core.errors import InputError, at_least

Moments = Literal["adam", "yogi", "adagrad"]
Spans = tuple[tuple[int, int], ...]  # (begin, end) of the numbers in a row, ascending


@dataclass(frozen=True)
class Median:
    """Each number's weighted median; half of the votes may lie."""


@dataclass(frozen=True)
class Trimmed:
    """Each number's weighted mean, without a share of the votes at either end."""

    share: Annotated[float, "of the votes left out at either end, below 0.5"] = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise InputError(
                f"a trimmed mean must leave out at least 0 and less than 0.5 of the votes at "
                f"either end, got {self.share:g}"
            )


@dataclass(frozen=True)
class Krum:
    """The weighted mean of the rows that lie closest to their nearest neighbours.

    Blanchard et al. 2017. It needs 2 * liars + 3 rows to keep its promise.
    """

    liars: Annotated[int, "rows that may contain anything"] = 1
    best: Annotated[int, "rows that are averaged; 1 takes one row as it is"] = 1

    def __post_init__(self) -> None:
        at_least("Krum's liars", self.liars, 0)
        at_least("Krum's best", self.best, 1)


@dataclass(frozen=True)
class Geometric:
    """The point with the least weighted distance to all rows, by Weiszfeld's steps.

    Half of the votes may lie. The steps begin at the median.
    """

    steps: Annotated[int, "of Weiszfeld"] = 8

    def __post_init__(self) -> None:
        at_least("a geometric median's steps", self.steps, 1)


@dataclass(frozen=True)
class Clipped:
    """The taker's row plus the weighted sum of differences from it, none longer than the radius.

    Centred clipping of clients' rows, and ClippedGossip between servers (He et al. 2022).
    """

    radius: Annotated[float, "the greatest length of a difference"] = 1.0

    def __post_init__(self) -> None:
        _positive("a clip's radius", self.radius)


@dataclass(frozen=True)
class Parts:
    """Some numbers from the first term alone, all others from the weighted sum of the others."""

    kept: Spans

    def __post_init__(self) -> None:
        last = 0
        for begin, end in self.kept:
            if not last <= begin < end:
                raise InputError(
                    f"spans of a row must be ascending, apart and not empty, got {self.kept}"
                )
            last = end


@dataclass(frozen=True)
class Squares:
    """A server's second moments of the difference between its two terms, the old and the new."""

    decay: Annotated[float, "of the moments"] = 0.99
    kind: Annotated[Moments, "adam's average, yogi's signed steps, or adagrad's sum"] = "adam"

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise InputError(f"the decay must be at least 0 and below 1, got {self.decay:g}")
        if self.kind not in get_args(Moments):
            known = ", ".join(get_args(Moments))
            raise InputError(f"second moments are one of {known}, got '{self.kind}'")


@dataclass(frozen=True)
class Scaled:
    """A server's step: before + rate * m / (sqrt(v) + floor), of the terms v, m and before."""

    rate: Annotated[float, "the server's learning rate"]
    floor: Annotated[float, "added to the root, for numbers that have not moved"] = 1e-3

    def __post_init__(self) -> None:
        _positive("a server's learning rate", self.rate)
        _positive("a server's floor", self.floor)


Rule = Median | Trimmed | Krum | Geometric | Clipped | Parts | Squares | Scaled


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise InputError(f"{name} must be above 0, got {value:g}")
