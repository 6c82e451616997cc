"""From curves to verdicts, at scales that may and may not judge."""

import numpy as np
import pytest

from sdfeel.figures.catalogue import FIGURES, chosen
from sdfeel.figures.curves import Curve, RunTrack
from sdfeel.figures.figure import Claim, ClaimView, Figure, Scale, nothing
from sdfeel.figures.judging import judge
from sdfeel.figures.verdicts import Verdict, more


def curve(label: str, *ends: float) -> Curve:
    x = np.array([0.0, 10.0])
    tracks = tuple(
        RunTrack({"iterations": x, "A": x, "E": x}, {"accuracy": np.array([0.1, end])})
        for end in ends
    )
    return Curve(label, {"A": tracks, "E": tracks})


def ends_higher(seen: ClaimView) -> Verdict:
    return more(seen["one"].last("accuracy"), seen["other"].last("accuracy"), "accuracy")


@pytest.mark.parametrize(("scale", "state"), [("quick", "cannot judge"), ("full", "holds")])
def test_what_digits_cannot_judge_is_shown_without_a_verdict(scale: Scale, state: str) -> None:
    claim = Claim("1", "one ends higher.", ends_higher, beyond_quick="digits are too easy.")
    figure = Figure("0", "a figure", "mnist", "", nothing, (), (claim,))
    found = {"one": curve("one", 0.9, 0.8, 0.9), "other": curve("other", 0.3, 0.4, 0.3)}
    (judged,) = judge(figure, scale, found)
    assert judged.verdict.state == state
    assert judged.verdict.effect == pytest.approx(8 / 15)


def test_all_are_those_that_have_the_scale() -> None:
    on_cifar = [each.name for each in FIGURES.values() if each.data == "cifar10"]
    assert [each.name for each in chosen("all", "reduced")] == on_cifar
    assert len(chosen("all", "full")) == len(FIGURES)


def test_where_clients_are_few_so_are_those_who_take_part() -> None:
    race = {line.label: line.trained for line in FIGURES["4b"].lines(FIGURES["4b"].setting("full"))}
    small = FIGURES["4b"].setting("reduced")
    reduced = {line.label: line.trained for line in FIGURES["4b"].lines(small)}
    few, cell = "FedAvg, a tenth", "FEEL, one cell"
    assert (race[few].scheme.options["participants"], race[few].network.clients) == (5, 50)
    assert (reduced[few].scheme.options["participants"], reduced[few].network.clients) == (1, 10)
    assert reduced[cell].scheme.options["pool_size"] == 1
