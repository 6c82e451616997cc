"""How the terms of a mixing's row become one row, where it is not their weighted sum.

These are decisions; `engine/combine.py` computes them. A term has a weight and a vote: its message
is its row times its weight over its vote, and the vote is how much it counts. Terms are in
ascending order of their sources, so that shelves come before servers and clients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import InputError, at_least, repeated

Moments = Literal["adam", "yogi", "adagrad"]
Spans = tuple[tuple[int, int], ...]  # (begin, end) of the numbers in a row, ascending


class AnyRule:
    """What every rule says about itself."""

    differences: ClassVar[bool] = False  # does it add differences from the taker's row to that row?


@dataclass(frozen=True)
class Median(AnyRule):
    """Each number's weighted median; half of the votes may lie."""


@dataclass(frozen=True)
class Trimmed(AnyRule):
    """Each number's weighted mean, without a share of the votes at either end."""

    share: Annotated[float, "of the votes left out at either end, below 0.5"] = 0.2

    def __post_init__(self) -> None:
        _minority("a trimmed mean must leave out", "of the votes at either end", self.share)


@dataclass(frozen=True)
class Krum(AnyRule):
    """The weighted mean of the rows that lie closest to their nearest neighbours.

    Blanchard et al. 2017. It needs 2 * liars + 3 rows to keep its promise.
    """

    liars: Annotated[int, "rows that may contain anything"] = 1
    best: Annotated[int, "rows that are averaged; 1 takes one row as it is"] = 1

    def __post_init__(self) -> None:
        at_least("Krum's liars", self.liars, 0)
        at_least("Krum's best", self.best, 1)


@dataclass(frozen=True)
class MultiKrum(AnyRule):
    """Krum for a share of liars, of any number of rows: the mean of all but this many."""

    share: Annotated[float, "of the rows that may contain anything, below 0.5"] = 0.2

    def __post_init__(self) -> None:
        _minority("multi-Krum must expect", "of the rows to lie", self.share)

    def among(self, rows: int) -> Krum:
        """The rule for this many rows."""
        liars = share_of(self.share, rows)
        return Krum(liars, rows - liars)


@dataclass(frozen=True)
class Geometric(AnyRule):
    """The point with the least weighted distance to all rows, by Weiszfeld's steps.

    Half of the votes may lie. The steps begin at the median.
    """

    steps: Annotated[int, "of Weiszfeld"] = 3

    def __post_init__(self) -> None:
        repeated("a geometric median's steps", self.steps, "steps")


@dataclass(frozen=True)
class Clipped(AnyRule):
    """The taker's row plus the weighted sum of differences from it, none longer than the radius.

    Centred clipping of clients' rows (Karimireddy et al. 2021, there with more than one step), and
    ClippedGossip between servers (He et al. 2022).
    """

    differences: ClassVar[bool] = True

    radius: Annotated[float | None, "the greatest length of a difference; None: their median"] = 1.0
    steps: Annotated[int, "each begins where the last one ended"] = 1

    def __post_init__(self) -> None:
        if self.radius is not None:
            _positive("a clip's radius", self.radius)
        repeated("a clip's steps", self.steps, "steps")


@dataclass(frozen=True)
class ClippedSum(AnyRule):
    """CS+: like `Clipped`, but the rows themselves decide how long a difference may be.

    The longest differences, of twice the weight that liars may have, are clipped to the shortest of
    them. Then the honest rows that are clipped weigh at least as much as the liars, and what liars
    add is at most what these rows lose: the result is never further from the honest sum than the
    clipped honest differences are long. Gaucher, Dieuleveut and Hendrikx 2025.
    """

    differences: ClassVar[bool] = True

    liars: Annotated[int, "of a server's neighbours that may send anything"] = 1

    def __post_init__(self) -> None:
        at_least("CS+'s liars", self.liars, 0)


@dataclass(frozen=True)
class Nearest(AnyRule):
    """Each row is replaced by the mean of its nearest rows before a rule judges them.

    Nearest-neighbour mixing, Allouah et al. 2023: it makes honest rows alike, which other rules
    count on, where clients hold different data.
    """

    then: "Rule"
    share: Annotated[float, "of the rows that may contain anything, below 0.5"] = 0.2

    def __post_init__(self) -> None:
        _minority("nearest-neighbour mixing must expect", "of the rows to lie", self.share)


@dataclass(frozen=True)
class OwnRule(AnyRule):
    """A user's own: a function of messages (N, P), votes (N,) and the row they replace (P,)."""

    function: Callable[[Floats, Floats, Floats], Floats]


@dataclass(frozen=True)
class Parts(AnyRule):
    """Some numbers from the first term alone, the rest from the other terms' weighted sum."""

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
class Squares(AnyRule):
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
class Scaled(AnyRule):
    """A server's step: before + rate * m / (sqrt(v) + floor), of the terms v, m and before."""

    rate: Annotated[float, "the server's learning rate"]
    floor: Annotated[float, "added to the root, for numbers that have not moved"] = 1e-3

    def __post_init__(self) -> None:
        _positive("a server's learning rate", self.rate)
        _positive("a server's floor", self.floor)


Voted = (
    Median | Trimmed | Krum | MultiKrum | Geometric | Clipped | ClippedSum | Nearest | OwnRule
)  # a term counts by its vote, and a row that is not finite has none
Rule = Voted | Parts | Squares | Scaled


def share_of(share: float, count: int) -> int:
    """How many whole rows this share of all of them is.

    >>> share_of(0.2, 5), share_of(0.2, 9), share_of(0.3, 10)
    (1, 1, 3)
    """
    return int(share * count + 1e-9)


def _minority(begin: str, end: str, share: float) -> None:
    if not 0 <= share < 0.5:
        raise InputError(f"{begin} at least 0 and less than 0.5 {end}, got {share:g}")


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise InputError(f"{name} must be above 0, got {value:g}")
