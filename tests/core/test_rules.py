from collections.abc import Callable

import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.rules import (
    Clipped,
    ClippedSum,
    Geometric,
    Krum,
    Median,
    MultiKrum,
    Nearest,
    Parts,
    Rule,
    Scaled,
    Squares,
    Trimmed,
)

BAD: list[tuple[Callable[[], Rule], str]] = [
    (lambda: Trimmed(0.5), "less than 0.5 of the votes at either end, got 0.5"),
    (lambda: Trimmed(-0.1), "at least 0 and less than 0.5"),
    (lambda: Krum(-1), "Krum's liars must be at least 0, got -1"),
    (lambda: Krum(1, 0), "Krum's best must be at least 1, got 0"),
    (lambda: MultiKrum(0.5), "expect at least 0 and less than 0.5 of the rows to lie, got 0.5"),
    (lambda: Nearest(Median(), 0.7), "nearest-neighbour mixing must expect at least 0"),
    (lambda: ClippedSum(-1), r"CS\+'s liars must be at least 0, got -1"),
    (lambda: Clipped(1.0, 0), "a clip's steps must be at least 1, got 0"),
    (lambda: Geometric(0), "a geometric median's steps must be at least 1, got 0"),
    (lambda: Clipped(0), "a clip's radius must be above 0, got 0"),
    (lambda: Clipped(float("nan")), "a clip's radius must be above 0, got nan"),
    (lambda: Parts(((0, 4), (3, 6))), "must be ascending, apart and not empty"),
    (lambda: Parts(((2, 2),)), "must be ascending, apart and not empty"),
    (lambda: Squares(1.0), "the decay must be at least 0 and below 1, got 1"),
    (
        lambda: Squares(0.9, "adamw"),  # type: ignore[arg-type]
        "second moments are one of adam, yogi, adagrad, got 'adamw'",
    ),
    (lambda: Scaled(0.0), "a server's learning rate must be above 0, got 0"),
    (lambda: Scaled(0.1, 0.0), "a server's floor must be above 0, got 0"),
]


@pytest.mark.parametrize(("make", "sentence"), BAD)
def test_impossible_rules_are_refused_in_a_sentence(
    make: Callable[[], Rule], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


def test_rules_are_values() -> None:
    assert Parts(((0, 3), (3, 5))) == Parts(((0, 3), (3, 5)))
    assert len({Krum(), Krum(1, 1), Krum(2)}) == 2
