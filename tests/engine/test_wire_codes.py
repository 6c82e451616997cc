"""What is counted is what travels, and what arrives is what the simulator computes."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.seeds import rng
from sdfeel.engine.messages import Codec, Feedback, TopK, Uniform, coding_of
from sdfeel.engine.wire_codes import send

SIZES = (7, 1, 40)


def codecs() -> st.SearchStrategy[Codec]:
    wide = st.integers(2, 31).map(lambda width: Uniform(width=width))
    largest = st.integers(1, 47).map(lambda k: TopK(k=k))
    return st.one_of(wide, largest)


@given(codecs(), st.integers(0, 1000))
def test_messages_have_the_counted_bits_and_arrive_as_simulated(codec: Codec, seed: int) -> None:
    coding = coding_of(codec, SIZES, seed)
    row = drawn(seed)
    code = coding.encode(row, rng(seed, "quantise", 3, 1))
    assert coding.bits == codec.bits(SIZES)
    assert len(code) == -(-codec.bits(SIZES) // 8)
    expected = codec.encode(torch.from_numpy(row), SIZES, rng(seed, "quantise", 3, 1))
    assert torch.equal(torch.from_numpy(coding.decode(code)), expected)


@given(codecs(), st.integers(0, 1000))
def test_what_is_owed_is_what_the_simulator_keeps(codec: Codec, seed: int) -> None:
    coding, feedback = coding_of(codec, SIZES, seed), Feedback(codec, SIZES, seed)
    owed = None
    for k in range(4):
        row = drawn(seed + k)
        sent = send(coding, row, owed, 3, k)
        arrived, owed = coding.decode(sent.code), sent.owed
        expected = feedback.send(torch.from_numpy(row), 3, k)
        assert torch.equal(torch.from_numpy(arrived), expected)
        kept = feedback.owed.get(3)
        assert (kept is None) == (owed is None)
        if kept is not None and owed is not None:
            assert torch.equal(kept, torch.from_numpy(owed))


@given(codecs(), st.binary(min_size=1, max_size=300))
def test_any_bytes_of_the_right_number_can_be_read(codec: Codec, content: bytes) -> None:
    coding = coding_of(codec, SIZES, 0)
    wanted = np.resize(np.frombuffer(content, dtype=np.uint8), coding.bytes)
    assert coding.decode(wanted).shape == (sum(SIZES),)


def drawn(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Numbers of which some are equal, some zero and one tensor may be zero altogether."""
    draws = np.random.default_rng(seed)
    row = draws.standard_normal(sum(SIZES)).round(1).astype(np.float32)
    if seed % 3 == 0:
        row[: SIZES[0]] = 0
    return row
