"""The random words are NumPy's."""

import numpy as np
import pytest

from sdfeel.engine.base import Training
from sdfeel.models.zoo import build
from tests.engine.native.helpers import examples, native, needs_compiler

LARGEST = 2**64 - 1


@needs_compiler
@pytest.mark.parametrize(
    "address", [(0, 0, 0, 0), (1, 2, 3, 4), (LARGEST, LARGEST, LARGEST, LARGEST), (2**63, 7, 1, 0)]
)
def test_words_are_those_of_numpy(address: tuple[int, int, int, int]) -> None:
    key, client, step, layer = address
    own = native(build("logistic", (1, 9, 9), 10, 0), examples((1, 9, 9)), Training(0.1, 10))
    ours = [own._native.library.philox(key, client, step, layer, block) for block in (1, 2, 3)]
    theirs = np.random.Philox(
        key=np.array([key, client], dtype=np.uint64),
        counter=np.array([0, step, layer, 0], dtype=np.uint64),
    ).random_raw(12)
    np.testing.assert_array_equal(np.concatenate(ours), theirs)


@needs_compiler
def test_a_known_answer() -> None:
    """Philox4x64-10 with all bits set, from the test vectors of its authors (Random123)."""
    own = native(build("logistic", (1, 9, 9), 10, 0), examples((1, 9, 9)), Training(0.1, 10))
    words = own._native.library.philox(0, 0, 0, 0, 0)
    expected = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert [int(word) for word in words] == expected
