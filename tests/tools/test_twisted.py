"""One server says anything at all; the others end with sound models and blame nobody else."""

import pytest

from tests.tools.twisted import play


# `python -m tests.tools.twisted` plays as many as one likes.
@pytest.mark.parametrize("seed", [1011, 1, 3, 50253])
def test_whatever_one_server_says_the_others_end_and_blame_nobody_else(seed: int) -> None:
    assert play(seed) > 0


def test_a_client_keeps_no_row_that_is_not_finite() -> None:
    """It would be broken for good, even with an honest server: 1065 is such a story."""
    assert play(1065) > 0
