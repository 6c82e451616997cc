"""From curves to verdicts, and from verdicts to files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sdfeel.core.errors import DataError
from sdfeel.figures import kept_curves
from sdfeel.figures.all_figures import FIGURES, chosen
from sdfeel.figures.curves import Curve, RunTrack
from sdfeel.figures.figure import Claim, ClaimView, Figure
from sdfeel.figures.judging import Judged, judge, record
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import sd_feel, setting
from sdfeel.figures.verdicts import Verdict, each, more
from sdfeel.figures.verdicts_together import both_sides


def run(end: float) -> RunTrack:
    x = np.array([0.0, 10.0])
    y = np.array([0.1, end])
    return RunTrack({"iterations": x, "seconds": x}, {"loss": 1 - y, "accuracy": y})


def curve(label: str, *ends: float) -> Curve:
    return Curve(label, tuple(run(end) for end in ends))


def ends_higher(seen: ClaimView) -> Verdict:
    return more(seen["one"].last("accuracy"), seen["other"].last("accuracy"), "accuracy")


def lines(own: object) -> list[FigureLine]:
    made = setting("mnist", "quick").experiment(*sd_feel())
    return [FigureLine("one", made), FigureLine("other", made, until=5.0)]


FIGURE = Figure(
    "0", "a figure", "mnist", "", lines, (), (Claim("1", "one ends higher.", ends_higher),)
)


def kept() -> kept_curves.KeptFigure:
    ends = {"one": (0.9, 0.8, 0.9), "other": (0.3, 0.4, 0.3)}
    return kept_curves.KeptFigure(
        {
            (reading, label, seed): kept_curves.KeptRun("key", run(end), {"engine": reading})
            for reading in FIGURE.readings
            for label, found in ends.items()
            for seed, end in enumerate(found)
        }
    )


def test_every_claim_is_judged_under_every_reading() -> None:
    judged = judge(FIGURE, "quick", kept().curves(FIGURE, "quick"))
    assert [(each.reading, each.verdict.state) for each in judged] == [
        ("A", "holds"),
        ("E", "holds"),
    ]
    assert judged[0].verdict.effect == pytest.approx(8 / 15)


def test_a_seed_counts_when_all_its_lines_are_there() -> None:
    runs = dict(kept().runs)
    del runs["E", "other", 1]
    found = kept_curves.KeptFigure(runs)
    seeds = [found.seeds(FIGURE, "quick", reading) for reading in FIGURE.readings]
    assert seeds == [[0, 1, 2], [0, 2]]
    assert len(found.curves(FIGURE, "quick")["E"]["one"].runs) == 2
    of_a = {place: r for place, r in runs.items() if place[0] == "A"}
    assert list(kept_curves.KeptFigure(of_a).curves(FIGURE, "quick")) == ["A"]
    without = {place: r for place, r in runs.items() if place[:2] != ("E", "other")}
    assert list(kept_curves.KeptFigure(without).curves(FIGURE, "quick")) == ["A"]  # a new line


def test_what_is_kept_comes_back_and_gives_the_same_bytes(tmp_path: Path) -> None:
    file = kept_curves.save(tmp_path, "quick", FIGURE, kept())
    bytes_then = file.read_bytes()
    again = kept_curves.load(tmp_path, "quick", FIGURE)
    assert again is not None
    assert record(FIGURE, "quick", again.curves(FIGURE, "quick")) == record(
        FIGURE, "quick", kept().curves(FIGURE, "quick")
    )
    assert again.made() == [{"engine": "A"}, {"engine": "E"}]
    kept_curves.save(tmp_path, "quick", FIGURE, again)
    assert file.read_bytes() == bytes_then


def test_a_file_that_is_broken_is_named(tmp_path: Path) -> None:
    file = kept_curves.save(tmp_path, "quick", FIGURE, kept())
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="does not contain a figure's curves"):
        kept_curves.load(tmp_path, "quick", FIGURE)


def test_a_kept_run_stands_for_its_settings_only() -> None:
    line = lines(None)[0]
    found = kept_curves.KeptFigure(
        {("A", "one", 0): kept_curves.KeptRun(line.key(0), run(0.9), {})}
    )
    assert found.has(("A", "one", 0), line)
    assert not found.has(("A", "one", 1), line)
    assert not found.has(("A", "one", 0), replace(line, until=3.0))
    assert not found.has(("A", "one", 0), replace(line, paid=line.trained))


def test_a_run_that_another_figure_has_kept_is_not_computed_again(tmp_path: Path) -> None:
    line = lines(None)[0]
    there: kept_curves.Runs = {
        ("A", "elsewhere", seed): kept_curves.KeptRun(line.key(seed), run(0.9), {})
        for seed in (0, 1)
    }
    kept_curves.save(
        tmp_path, "quick", replace(FIGURE, name="other"), kept_curves.KeptFigure(there)
    )
    nothing = kept_curves.KeptFigure()
    found = kept_curves.with_shared(nothing, tmp_path, "quick", FIGURE, 1)
    assert [place[1:] for place in found.runs] == [("one", 0)] * len(FIGURE.readings)
    assert all(found.has(place, line) for place in found.runs)
    wider = replace(FIGURE, also=("joules",))  # of which the other figure has kept nothing
    assert not kept_curves.with_shared(nothing, tmp_path, "quick", wider, 1).runs


def test_fewer_seeds_asked_for_later_drop_nothing_that_is_kept() -> None:
    runs = {
        (reading, line.label, seed): kept_curves.KeptRun(line.key(seed), run(0.9), {})
        for reading, seeds in (("A", (0, 1, 4)), ("E", (0,)))
        for line in lines(None)
        for seed in seeds
    }
    found = kept_curves.gathered(FIGURE, "quick", 1, kept_curves.KeptFigure(runs))  # type: ignore[arg-type]
    assert found.runs == runs


def test_all_means_every_figure_that_has_the_scale() -> None:
    small = {each.name for each in chosen("all", "small")}
    assert small == {each.name for each in FIGURES.values() if "small" in each.scales}
    cifar = {each.name for each in FIGURES.values() if each.data == "cifar10"}
    assert small >= cifar - {"4b-bridge"}  # which has the small model in addition to the paper's
    full = {each.name for each in chosen("all", "full")}
    assert full == {each.name for each in FIGURES.values() if "full" in each.scales}
    assert len(chosen("all", None)) == len(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_every_reading_of_every_figure_has_lines_with_keys_of_their_own(name: str) -> None:
    figure = FIGURES[name]
    for scale in figure.scales if figure.data else ():
        found = kept_curves.places(figure, scale, 1)
        assert {place[0] for place, _ in found} == set(figure.readings)
        labels = {place for place, _ in found}
        assert len(labels) == len(found)
        for panel in figure.panels:
            assert {(panel.reading, label) for label in panel.labels} <= {p[:2] for p in labels}


def test_signs_are_no_surer_together_than_they_are_alone() -> None:
    """Five seeds of five by a fair coin: 1/16 on both sides, whatever they are compared with."""
    signs, gaps = each([True] * 5), more(np.array([1.0, 1.2, 0.9, 1.1, 1.0]), np.zeros(5))
    claim = FIGURES["4a"].claims[0]
    assert both_sides(Judged(claim, "A", signs)) == 1 / 16
    assert both_sides(Judged(claim, "A", gaps)) == 2 * gaps.p_for
    assert both_sides(Judged(claim, "A", more(np.ones(2), np.zeros(2)))) == 1.0
