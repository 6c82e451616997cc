"""What goes into papers: means with intervals, differences seed by seed, costs to the target."""

import csv
import io
import json
import re
import shutil
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdfeel
from sdfeel.core.errors import InputError, RunError
from sdfeel.core.events import Event, Finished, Started, to_record
from sdfeel.report.export import escaped, rounded
from sdfeel.report.intervals import Observed, difference, estimate, student
from tests.cli.command import call
from tests.report.runs import measured
from tests.waiting import finished

TABLE = [  # two-sided 95 %, from any statistics textbook
    (1, 12.706),
    (2, 4.303),
    (3, 3.182),
    (5, 2.571),
    (9, 2.262),
    (10, 2.228),
    (29, 2.045),
    (120, 1.980),
]
outcomes = st.builds(Observed, st.floats(0, 1e6), st.booleans())


@pytest.mark.parametrize(("freedom", "quantile"), TABLE)
def test_student_s_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, abs=6e-4)


@given(st.lists(outcomes, min_size=1, max_size=8))
def test_a_mean_with_censored_seeds_is_a_bound_and_has_no_interval(found: list[Observed]) -> None:
    """Whatever the censored seeds would have cost, the mean is at least what is said."""
    told = estimate(found)
    assert told is not None
    later = [o.value + 7.0 * o.censored for o in found]
    assert told.mean <= fmean(later) + 1e-9 * fmean(later)
    assert told.certain == (not any(o.censored for o in found))
    if told.certain and len(found) > 1:
        spread = stdev(o.value for o in found) / sqrt(len(found))
        assert told.margin == pytest.approx(student(len(found) - 1) * spread)
    else:
        assert told.margin is None


@given(
    st.dictionaries(st.integers(0, 5), outcomes),
    st.dictionaries(st.integers(0, 5), outcomes),
    st.floats(0, 9),
)
def test_differences_claim_only_what_no_later_end_can_change(
    one: dict[int, Observed], other: dict[int, Observed], more: float
) -> None:
    told, back = difference(one, other), difference(other, one)
    assert (told.above, told.below) == (back.below, back.above)
    shared = one.keys() & other.keys()
    a = {seed: one[seed].value + more * one[seed].censored for seed in shared}
    b = {seed: other[seed].value + more * other[seed].censored for seed in shared}
    assert told.above <= sum(a[seed] > b[seed] or more == 0 for seed in shared)
    assert told.pairs == len(shared)
    whole = [s for s in sorted(shared) if not (one[s].censored or other[s].censored)]
    if whole:
        assert told.estimate is not None
        wanted = fmean(one[s].value - other[s].value for s in whole)
        assert told.estimate.mean == pytest.approx(wanted)
    else:
        assert told.estimate is None


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    draws = np.random.default_rng(0).normal(3.0, 2.0, (4000, 4))
    found = [estimate(Observed(float(x)) for x in row) for row in draws]
    hits = [abs(e.mean - 3.0) <= e.margin for e in found if e is not None and e.margin is not None]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.01)


def write(
    directory: Path, scheme: str, seed: int, accuracies: Sequence[float], pace: float
) -> None:
    """A run of this many rounds that take `pace` seconds each."""
    events: list[Event] = [Started(scheme, 4, 2, 100, "loop", seed, 0.5)]
    events += [measured(n, each, pace, 1_000) for n, each in enumerate(accuracies)]
    n = len(accuracies) - 1
    events.append(Finished(n, 5 * n, pace * n, 1_000 * n, 2.5 * n, "done", "00"))
    directory.mkdir(parents=True)
    text = "".join(json.dumps(to_record(event)) + "\n" for event in events)
    (directory / "events.jsonl").write_text(text)
    (directory / "experiment.toml").write_text(f'seed = {seed}\n[scheme]\nname = "{scheme}"\n')


@pytest.fixture
def race(tmp_path: Path) -> Path:
    """`fast` reaches 80 % after 2, 3 and 4 s; `slow` after 6 and 8 s, and once not within 8 s."""
    for seed, first in enumerate((2, 3, 4)):
        fast = [0.9 if n >= first else 0.1 for n in range(5)]
        write(tmp_path / f"fast-seed{seed}", "fast", seed, fast, 1.0)
        slow = [0.85 if n >= first + 1 else 0.1 for n in range(5)]
        write(tmp_path / f"slow_1-seed{seed}", "slow", seed, slow, 2.0)
    return tmp_path


def rows_of(text: str) -> dict[tuple[str, str, str], dict[str, str]]:
    rows = csv.DictReader(io.StringIO(text))
    return {(row["kind"], row["run"], row["quantity"]): row for row in rows}


def test_costs_to_the_target_are_means_differences_and_bounds(race: Path) -> None:
    rows = rows_of(sdfeel.export(race, format="csv", target=0.8))
    fast = rows["mean", "fast", "seconds_to_target"]
    assert float(fast["mean"]) == 3.0
    assert float(fast["high"]) == pytest.approx(3.0 + 4.3027 / sqrt(3), abs=1e-3)
    slow = rows["mean", "slow_1", "seconds_to_target"]  # 6, 8 and more than 8
    assert (slow["mean"], slow["seeds"], slow["censored"]) == ("", "3", "1")
    assert float(slow["low"]) == pytest.approx(22 / 3)
    gap = rows["difference", "slow_1", "seconds_to_target"]  # 4, 5 and more than 4
    assert float(gap["mean"]) == 4.5
    assert (gap["seeds"], gap["censored"], gap["above"], gap["below"]) == ("2", "1", "3", "0")
    assert "inf" not in sdfeel.export(race, format="csv", target=0.8)
    turned = rows_of(sdfeel.export(race, format="csv", target=0.8, against="slow_1"))
    assert float(turned["difference", "fast", "seconds_to_target"]["mean"]) == -4.5


def test_markdown_says_what_the_numbers_mean(race: Path) -> None:
    told = call("export", race, "--target", "0.8")
    assert told.code == 0, told.err
    assert "| fast | **90.0 ± 0** |" in told.out
    assert "**3.0 ± 2.5**" in told.out
    assert "≥ 7.33 (2 of 3)" in told.out
    assert "+4.5 ± 6.4 (2 of 3)" in told.out
    for words in ("95 % confidence interval (Student's t)", "each seed compared with itself"):
        assert words in told.out


def test_seeds_that_exploded_are_counted_and_huge_numbers_are_short(race: Path) -> None:
    log = race / "fast-seed1" / "events.jsonl"
    log.write_text(log.read_text().replace('"loss": 0.5', '"loss": NaN'))
    log = race / "slow_1-seed1" / "events.jsonl"
    log.write_text(log.read_text().replace('"loss": 0.5', '"loss": 1e+30'))
    text = sdfeel.export(race, target=0.8)
    assert "| 0.50 ± 0 (2 of 3) |" in text.replace("0.500", "0.50")
    assert "| **3.3e+29 ± 1.4e+30** |" in text  # the other line has no mean: a seed is gone
    assert "only k of n seeds have a finite value" in text
    latex = sdfeel.export(race, format="latex")
    assert r"3.3 \cdot 10^{29} \pm 1.4 \cdot 10^{30}" in latex


def test_latex_is_well_formed_whatever_the_labels_are(race: Path, tmp_path: Path) -> None:
    (race / "fast-seed0").rename(race / "fa&st_50%-#{}~^\\-seed0")
    out = tmp_path / "race.tex"
    sdfeel.export(race, out=out, target=0.8, picture=tmp_path / "race.pdf")
    text = out.read_text()
    bare = re.sub(
        r"\\\\$|\\[&%$#_{}]|\\[a-z]+", "", text.replace("% needs", ""), flags=re.MULTILINE
    )
    assert bare.count("{") == bare.count("}")
    columns = {line.count(" & ") for line in bare.splitlines() if " & " in line}
    assert columns == {5}
    assert not set("%#_~^") & set(bare)
    assert bare.count("$") % 2 == 0
    assert (tmp_path / "race.pdf").read_bytes().startswith(b"%PDF")
    if shutil.which("pdflatex"):
        whole = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + text
        (tmp_path / "whole.tex").write_text(whole + "\\end{document}\n")
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "whole.tex"]
        done = finished(command, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-2000:]


def test_runs_given_one_by_one_form_lines_by_their_experiments(race: Path) -> None:
    given_one_by_one = sorted(race.glob("*-seed*"))
    assert sdfeel.export(given_one_by_one, target=0.8) == sdfeel.export(race, target=0.8)
    again = shutil.copytree(race / "fast-seed0", race / "fast-again")
    with pytest.raises(InputError, match="two runs with seed 0"):
        sdfeel.export(again, race / "fast-seed0")


def test_what_cannot_be_exported_is_refused_in_a_sentence(race: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown line 'fats'.*did you mean 'fast'"):
        sdfeel.export(race, against="fats")
    with pytest.raises(InputError, match=r"end it in \.md, \.tex, \.csv"):
        sdfeel.export(race, out=tmp_path / "race.docx")
    with pytest.raises(InputError, match="unknown format 'word'"):
        sdfeel.export(race, format="word")  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="contains no runs"):
        sdfeel.export(tmp_path / "empty")
    with pytest.raises(InputError, match="nothing to export"):
        sdfeel.export()


def test_a_margin_leaves_its_mean_two_digits_of_doubt() -> None:
    assert rounded(1234.5, 321.0) == ("1234", "321")
    assert rounded(-0.01, 0.019) == ("-0.010", "0.019")
    assert rounded(8.25e28, 5.7e28) == ("8.2e+28", "5.7e+28")
    assert rounded(2.5e-7, 5e-5) == ("2.5e-07", "5.0e-05")
    assert escaped("50 %_") == "50 \\%\\_"
