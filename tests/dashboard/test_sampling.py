"""What is thinned stays true: an even sample of rounds, and every low and high of measurements."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sdfeel.dashboard.log_lines import LoggedEvent, LogLine, parse
from sdfeel.dashboard.log_samples import Extremes, Sampled
from sdfeel.dashboard.views.curves import keeping_extremes
from tests.dashboard.logs import line, measured

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


def read(item: LogLine) -> LoggedEvent | None:
    event = parse(item.data)
    return None if event is None else LoggedEvent(item.number, item.offset, event)


shares = st.floats(0, 1, allow_nan=False)


@given(st.lists(st.tuples(shares, st.floats(0, 9)), min_size=1, max_size=120), pieces)
def test_no_low_and_no_high_of_a_bucket_is_lost(
    values: list[tuple[float, float]], sizes: list[int]
) -> None:
    events = [
        replace(measured(number, accuracy), loss=loss)
        for number, (accuracy, loss) in enumerate(values)
    ]
    lines = [LogLine(n, n, line(event).strip()) for n, event in enumerate(events)]
    kept = Extremes(7 * 4, read)  # four buckets
    rest = lines
    for size in sizes:
        kept.extend(rest[:size])
        rest = rest[size:]
        kept.settle()
    kept.extend(rest)
    kept.settle()
    found = {logged.number: logged.event for logged in kept}
    assert len(found) <= 4 * 7 + 1
    assert events[-1] == found[len(events) - 1]
    for begin in range(0, len(events), kept.stride):
        bucket = events[begin : begin + kept.stride]
        mine = [event for number, event in found.items() if begin <= number < begin + kept.stride]
        for name in ("accuracy", "loss"):
            whole = [getattr(event, name) for event in bucket]
            own = [getattr(event, name) for event in mine]
            assert (min(own), max(own)) == (min(whole), max(whole))


gappy = st.lists(st.one_of(st.none(), st.floats(-9, 9)), min_size=1, max_size=400)


@given(gappy, st.integers(8, 60))
def test_a_thinned_curve_has_the_lows_highs_and_gaps_of_the_whole(
    values: list[float | None], limit: int
) -> None:
    picked = keeping_extremes([values], limit)
    known = [value for value in values if value is not None]
    shown = [values[index] for index in picked if values[index] is not None]
    assert picked == sorted(set(picked))
    assert len(picked) <= limit + 5
    assert picked[-1] == len(values) - 1
    assert (None in values) == any(values[index] is None for index in picked)
    if known:
        assert (min(shown), max(shown)) == (min(known), max(known))  # type: ignore[type-var]
