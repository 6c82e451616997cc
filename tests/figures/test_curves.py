"""What claims read from curves, on curves that a pencil can follow."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.figures.curves import Curve, RunTrack
from sdfeel.figures.verdicts import more


def track(*accuracy: float, diverged: bool = False) -> RunTrack:
    x = np.linspace(0.0, 10.0 * (len(accuracy) - 1), len(accuracy))
    y = np.array(accuracy)
    return RunTrack({"iterations": x, "seconds": x / 10}, {"accuracy": y, "loss": 1 - y}, diverged)


def test_between_measurements_a_curve_is_straight() -> None:
    assert track(0.0, 0.5, 0.7).at("accuracy", "iterations", 5) == 0.25
    assert track(0.0, 0.5, 0.7).at("accuracy", "seconds", 1.5) == pytest.approx(0.6)


def test_a_target_is_met_between_measurements_or_never() -> None:
    assert track(0.0, 0.5, 0.9).reach(0.7, "iterations") == pytest.approx(15)
    assert track(0.0, 0.5, 0.9).reach(0.95, "iterations") == inf
    assert track(0.3, 0.5).reach(0.2, "seconds") == 0


def test_a_run_that_diverged_is_worse_than_any_other_after_its_end() -> None:
    gone = track(0.1, 0.2, diverged=True)
    assert (gone.at("accuracy", "iterations", 11), gone.at("loss", "iterations", 11)) == (-inf, inf)
    assert (gone.last("accuracy"), gone.last("loss")) == (-inf, inf)
    assert track(0.1, 0.2).at("accuracy", "iterations", 11) == 0.2


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=6),
    st.lists(st.floats(0, 1), min_size=3, max_size=6),
)
def test_what_a_run_had_learnt_before_it_diverged_never_decides(
    early: list[float], calm: list[float]
) -> None:
    """By how much it loses is unknown, so only signs are counted: all of five seeds must agree."""
    whole = Curve("whole", (track(*calm),) * 5)
    for diverged in (5, 4):
        tracks = [track(*early, diverged=n < diverged) for n in range(5)]
        gone = Curve("gone", tuple(tracks))
        until = 10.0 * (max(len(early), len(calm)) - 1) + 1
        for one, other in (
            (whole.last("accuracy"), gone.last("accuracy")),
            (
                whole.average("accuracy", "iterations", until),
                gone.average("accuracy", "iterations", until),
            ),
            (
                whole.held("accuracy", "iterations", 0, until),
                gone.held("accuracy", "iterations", 0, until),
            ),
        ):
            agree = 5 if diverged == 5 else 4 + (one[4] > other[4])
            assert more(one, other).agree == agree
            assert more(one, other).state == ("holds" if agree == 5 else "not decided")
            assert more(other, one).state == ("does not hold" if agree == 5 else "not decided")


def test_a_line_typically_ends_where_its_lasting_runs_do() -> None:
    lasting, gone = track(0.1, 0.8), track(0.1, 0.2, diverged=True)
    assert Curve("one", (lasting, gone)).typical("accuracy") == 0.8
    assert np.isnan(Curve("none", (gone, gone)).typical("accuracy"))


def test_a_line_can_end_between_two_measurements() -> None:
    cut = track(0.0, 0.5, 0.9, diverged=True).cut(1.5)
    assert cut.x["seconds"].tolist() == [0.0, 1.0, 1.5]
    assert cut.x["iterations"].tolist() == [0.0, 10.0, 15.0]
    assert cut.y["accuracy"].tolist() == pytest.approx([0.0, 0.5, 0.7])
    assert not cut.diverged  # that was later
    whole = track(0.0, 0.5)
    assert whole.cut(9.0) is whole


def test_a_steady_fall_is_not_restless() -> None:
    assert track(*np.linspace(0, 1, 9)).jitter("loss") == pytest.approx(0, abs=1e-12)
    zigzag = track(0, 0, 0.2, 0, 0.2, 0, 0.2, 0, 0.2)
    assert zigzag.jitter("loss") == pytest.approx(0.2)


def test_a_curve_ends_where_its_shortest_run_does() -> None:
    runs = (track(0.0, 0.5, 0.9), track(0.0, 0.4))
    curve = Curve("two", runs)
    assert curve.end("iterations") == 10
    assert curve.at("accuracy", "iterations", 10).tolist() == [0.5, 0.4]
    assert curve.last("accuracy").tolist() == [0.9, 0.4]
    assert curve.reach(0.45, "seconds").tolist() == [0.9, inf]


def test_a_run_that_diverged_does_not_shorten_the_comparison_but_spoils_it() -> None:
    runs = (track(0.0, 0.5, 0.9), track(0.0, 0.4, diverged=True))
    curve = Curve("two", runs)
    assert curve.end("iterations") == 20
    assert curve.average("loss", "iterations", 20)[1] == inf
    gone = Curve("none is left", runs[1:])
    assert gone.end("iterations") == 10


def test_sooner_means_a_higher_mean_over_the_window() -> None:
    fast, slow = track(0.0, 0.9, 0.9, 0.9), track(0.0, 0.3, 0.6, 0.9)
    assert fast.average("accuracy", "seconds", 3) > slow.average("accuracy", "seconds", 3)


def test_a_model_counts_until_the_next_one_is_measured() -> None:
    track = RunTrack(
        {"seconds": np.array([0.0, 2.0, 4.0])}, {"accuracy": np.array([0.1, 0.5, 0.9])}
    )
    assert track.held("accuracy", "seconds", 0, 4) == pytest.approx(0.3)
    assert track.held("accuracy", "seconds", 1, 3) == pytest.approx(0.3)
    assert track.held("accuracy", "seconds", 3, 5) == pytest.approx(0.7)
