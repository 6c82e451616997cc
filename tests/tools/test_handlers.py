"""Whatever well-formed calls others make, an edge server keeps serving, even when restarted."""

import pytest

from tests.tools.handlers import play


# `python -m tests.tools.handlers` plays as many games as one likes.
@pytest.mark.parametrize("seed", range(4))
def test_any_calls_of_others_leave_a_server_that_serves(seed: int) -> None:
    counts = play(seed, 150)
    assert counts["answered"] > 2
    assert counts["refused"] > 10
