"""Judges of the race, on curves that a pencil can follow."""

import pytest

from sdfeel.figures.figure import ClaimView
from sdfeel.figures.paper.race import FEEL, FEW, SD, unreached
from sdfeel.figures.settings import setting
from tests.figures.test_judging import curve


@pytest.mark.parametrize(
    ("few", "state"),
    [
        ((0.5, 0.6, 0.7), "holds"),
        ((0.95, 0.96, 0.97), "does not hold"),
        ((0.5, 0.95, 0.6), "not decided"),  # some do
        ((0.5, 0.6), "not decided"),  # too few to say
    ],
)
def test_nobody_reaches_the_target_is_a_matter_of_all_seeds(
    few: tuple[float, ...], state: str
) -> None:
    curves = {SD: curve(SD, 0.95, 0.95, 0.95), FEW: curve(FEW, *few), FEEL: curve(FEEL, *few)}
    verdict = unreached(FEW, FEEL)(ClaimView(setting("mnist", "quick"), curves, "A"))
    assert verdict.state == state
    assert verdict.seeds == len(few)
