"""Whatever a scheme repeats within a round has an upper limit."""

from typing import Any

import numpy as np
import pytest

from sdfeel.core.errors import MOST, InputError
from sdfeel.core.mixing import of_matrix
from sdfeel.core.rules import Clipped, Geometric
from sdfeel.core.scheme import defaults
from sdfeel.schemes import SCHEMES

REPEATED = ("tau1", "alpha", "theta_min", "tau_max")
OPTIONS = [(name, each) for name, kind in SCHEMES.items() for each in defaults(kind)]
LOOPS = [(name, each) for name, each in OPTIONS if each in REPEATED]


def test_most_schemes_repeat_something() -> None:
    assert {name for name, _ in LOOPS} >= {"sd-feel", "async-sd-feel", "adaptive", "fedavg", "d2"}


@pytest.mark.parametrize(("scheme", "option"), LOOPS)
@pytest.mark.parametrize("value", [MOST + 1, 10**12])
def test_a_round_that_would_hardly_ever_end_is_refused(
    scheme: str, option: str, value: int
) -> None:
    kind: Any = SCHEMES[scheme]
    with pytest.raises(
        InputError, match=rf"scheme\.{option} must be at most 1,000,000,000, got 1,0"
    ):
        kind(**{option: value})
    assert getattr(kind(**{option: MOST}), option) == MOST


def test_endless_exchanges_and_rules_of_a_users_own_scheme_are_refused() -> None:
    with pytest.raises(InputError, match="hops must be at most 1,000,000,000, got 1,0"):
        of_matrix(np.eye(2), hops=10**12)
    for rule in (lambda: Geometric(10**12), lambda: Clipped(1.0, 10**12)):
        with pytest.raises(InputError, match="steps must be at most 1,000,000,000"):
            rule()
