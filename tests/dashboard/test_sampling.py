"""A thinned sequence is an even sample of the whole, however it arrived."""

from hypothesis import given
from hypothesis import strategies as st

from sdfeel.dashboard.log import Sampled

pieces = st.lists(st.integers(0, 40), max_size=12)


@given(pieces, st.integers(1, 9))
def test_what_is_kept_is_few_evenly_spaced_and_ends_with_the_newest(
    sizes: list[int], limit: int
) -> None:
    kept = Sampled[int, int](limit, lambda item: item)
    count = 0
    for size in sizes:
        kept.extend(range(count, count + size))
        count += size
    found = list(kept)
    assert kept.count == count
    assert len(found) <= limit + 1
    assert found[-1:] == ([count - 1] if count else [])
    assert found[:-1] == list(range(0, count, kept.stride))[: len(found) - 1]


@given(pieces, st.integers(1, 9), st.integers(0, 400))
def test_an_expectation_saves_reading_and_changes_nothing_else(
    sizes: list[int], limit: int, more: int
) -> None:
    count = sum(sizes)
    plain, warned = (Sampled[int, int](limit, lambda item: item) for _ in range(2))
    plain.extend(range(count))
    warned.expect(min(more, count))
    warned.extend(range(count))
    assert list(plain) == list(warned)


def test_what_cannot_be_read_is_left_out() -> None:
    kept = Sampled[str, int](8, lambda text: int(text) if text.isdigit() else None)
    kept.extend(["1", "two", "3"])
    assert list(kept) == [1, 3]
