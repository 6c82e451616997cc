"""Tiers against every scheme at its best rate: what the comparison takes for granted."""

import numpy as np
import pytest

from sdfeel.figures import cache
from sdfeel.figures.beyond.asynchrony import PUSHED, TIERS
from sdfeel.figures.beyond.tiers_review import ON_MNIST
from sdfeel.figures.beyond.tiers_tuned import (
    ALONE,
    CHOSEN,
    FIGURE,
    ONE,
    TRIALS,
    as_good,
    chosen,
    on_trial,
    tuned_line,
)
from sdfeel.figures.curves import Curve, RunTrack
from sdfeel.figures.figure import ClaimView
from sdfeel.figures.paper.figure_10 import SYNC, round_seconds
from sdfeel.figures.pictures import note
from sdfeel.figures.settings import Reading, Scale
from sdfeel.figures.verdicts import State
from sdfeel.schemes.tiers import Tiers


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_where_sending_takes_the_time_tiers_are_one_tier(scale: Scale) -> None:
    """So that the two lines may share their runs under reading A, and only there."""
    for spread in TRIALS[scale].spreads:
        own, other = (on_trial(scale, reading) for reading in ("A", "E"))
        sending = own.model_seconds(5.0) + own.model_seconds(50.0)
        assert round_seconds(own, spread) < (1 + Tiers().tier) * sending
        assert round_seconds(other, spread) > (1 + Tiers().tier) * sending
        same, not_same = (
            [tuned_line(each, label, spread, 0.1).trained for label in (ONE, TIERS)]
            for each in (own, other)
        )
        assert cache.key(same[0]) == cache.key(same[1])
        assert cache.key(not_same[0]) != cache.key(not_same[1])


def test_no_rate_that_was_chosen_is_the_highest_or_the_lowest_that_was_tried() -> None:
    for (scale, _, label), rates in CHOSEN.items():
        trial = TRIALS[scale]
        assert label in trial.labels
        assert len(rates) == len(trial.tuned)
        assert all(trial.rates[0] < rate < trial.rates[-1] for rate in rates)


def test_an_h_without_rates_of_its_own_takes_those_of_the_nearest() -> None:
    setting = on_trial("quick", "E")
    assert [chosen(setting, TIERS, spread) for spread in (1.0, 4.0, 10.0)] == [0.4, 0.4, 0.2]
    full = on_trial("full", "E")
    assert chosen(full, TIERS, 10.0) == chosen(full, TIERS, 4.0)


@pytest.mark.parametrize("label", [SYNC, PUSHED])
def test_both_readings_share_what_does_not_depend_on_prices(label: str) -> None:
    one, other = (tuned_line(on_trial("quick", each), label, 4.0, 0.1) for each in ("A", "E"))
    assert cache.key(one.trained) == cache.key(other.trained)
    assert one.until != other.until
    assert one.key(0) != other.key(0)


def curve(label: str, height: float) -> Curve:
    """Five seeds that end near `height`."""
    x, noise = np.array([0.0, 1.0]), np.linspace(-0.0004, 0.0004, 5)
    runs = [
        RunTrack({"seconds": x}, {"accuracy": np.full(2, height + e), "loss": np.ones(2)})
        for e in noise
    ]
    return Curve(label, tuple(runs))


@pytest.mark.parametrize(
    ("height", "state"),
    [(0.91, "holds"), (0.899, "holds"), (0.895, "not decided"), (0.89, "does not hold")],
)
def test_what_is_simpler_is_as_good_within_the_margin(height: float, state: State) -> None:
    pair = [curve(f"{ALONE}, H = 4", height), curve(f"{TIERS}, H = 4", 0.9)]
    fixed = RunTrack({"seconds": np.array([0.0, 1.0])}, pair[1].runs[2].y)
    pair[1] = Curve(pair[1].label, (fixed,) * 5)
    seen = ClaimView(on_trial("quick", "A"), {each.label: each for each in pair}, "seconds")
    assert as_good(ALONE, "H = 4")(seen).state == state


def test_a_picture_names_every_data_set_that_it_shows() -> None:
    found: dict[Reading, dict[str, Curve]] = {"E": {"any": Curve("any", ())}}
    assert "where title or legend say so, Fashion-MNIST" in note(ON_MNIST, "full", found)
    assert "Fashion" not in note(FIGURE, "full", found)
