"""Judges of the race, on curves that a pencil can follow."""

from itertools import product

import pytest

from sdfeel.figures.cache import seconds
from sdfeel.figures.figure import ClaimView
from sdfeel.figures.paper.race import FEEL, SD, race, unreached, unusable
from sdfeel.figures.settings import Reading, fedavg, feel, hierfavg, sd_feel, setting
from tests.figures.test_judging import curve


@pytest.mark.parametrize(
    ("few", "reached", "use"),
    [
        ((0.5, 0.6, 0.65, 0.6, 0.5), "holds", "holds"),
        ((0.95, 0.96, 0.97, 0.95, 0.95), "does not hold", "does not hold"),
        ((0.5, 0.95, 0.6, 0.5, 0.5), "not decided", "not decided"),  # one does
        ((0.5, 0.6), "not decided", "not decided"),  # too few to say
    ],
)
def test_nobody_reaches_the_target_is_a_matter_of_all_seeds(
    few: tuple[float, ...], reached: str, use: str
) -> None:
    curves = {SD: curve(SD, *[0.95] * len(few)), FEEL: curve(FEEL, *few)}
    view = ClaimView(setting("mnist", "quick"), curves, "seconds")
    assert unreached(FEEL)(view).state == reached
    assert unusable(FEEL)(view).state == use
    assert unreached(FEEL)(view).seeds == len(few)


READINGS: tuple[Reading, ...] = ("A", "E")


@pytest.mark.parametrize(
    ("reading", "scheme"),
    list(product(READINGS, ["sd-feel", "hierfavg", "fedavg", "feel"])),
)
def test_the_pace_by_formula_is_the_pace_of_the_clock(reading: Reading, scheme: str) -> None:
    own = setting("mnist", "quick", reading)
    cloud = own.model_seconds(5.0)
    schemes = {
        "sd-feel": (sd_feel(5, 1, 3), 3 * own.model_seconds(50.0)),
        "hierfavg": (hierfavg(5), cloud),
        "fedavg": (fedavg(5), cloud),
        "feel": (feel(5), 0.0),
    }
    keys, between = schemes[scheme]
    a_round = seconds(own.experiment(*keys), 1)[1]
    # The largest client holds a digit more or less than the mean.
    assert a_round / 5 == pytest.approx(own.pace(5, between), rel=0.03)


@pytest.mark.parametrize("reading", READINGS)
def test_all_lines_of_the_race_end_at_the_same_time(reading: Reading) -> None:
    own = setting("mnist", "quick", reading)
    for line in race(own, 5, 1):
        assert line.until == own.window
        paid = line.paid or line.trained
        rounds = line.trained.training.iterations // 5
        assert seconds(paid, rounds)[-1] >= own.window
