"""One server says anything at all; the others end with sound models and blame nobody else."""

import pytest

from tests.tools.twisted import play


# `python -m tests.tools.twisted` plays as many as one likes.
@pytest.mark.parametrize("seed", [1011, 1, 3, 20])
def test_whatever_one_server_says_the_others_end_and_blame_nobody_else(seed: int) -> None:
    assert play(seed) > 0
