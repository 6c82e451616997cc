"""What the console's tables say."""

import json
import sys
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from sdfeel.report.history import History
from sdfeel.report.tables import comparison, comparison_records, label_table, summary
from tests.report.runs import measured, runs, started
from tests.waiting import finished


def printed(table: Table, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_run_below_the_target_says_not_reached() -> None:
    lines = printed(comparison(runs(), 0.8)).splitlines()
    feel = next(line for line in lines if line[4:].startswith("feel"))
    assert "not reached" in feel
    assert sum("not reached" in line for line in lines) == 1


def test_the_comparison_of_short_names_fits_80_columns_uncut() -> None:
    text = printed(comparison(runs(), 0.8))
    assert "…" not in text
    for word in ("accuracy", "4:00 min", "190 MB", "100 J", "itera-"):
        assert word in text


def test_the_best_is_starred_even_without_colour() -> None:
    lines = printed(comparison(runs(), 0.8)).splitlines()
    best = next(line for line in lines if line[4:].startswith("sd-feel"))
    assert "*91.6 %" in best
    assert "*23.2 s" in best
    assert any(line.startswith("* marks the best in a column") for line in lines)


def test_a_mean_over_seeds_is_that_of_their_own_ends() -> None:
    """Seeds that reach a target accuracy stop then, each at another time."""
    early = History.of("a", [started(), measured(0, 0.1), measured(2, 0.5), measured(4, 0.8)])
    late = History.of("b", [*early.events[:-1], measured(4, 0.6), measured(6, 0.9, loss=0.1)])
    (record,) = comparison_records([History.mean("both", [early, late])], None)
    assert record["accuracy"] == pytest.approx((0.8 + 0.9) / 2)
    assert record["loss"] == pytest.approx((0.5 + 0.1) / 2)


def test_a_mean_over_seeds_of_which_one_has_exploded_is_not_known() -> None:
    fine = History.of("a", [started(), measured(4, 0.8, metrics={"mae": 1.0})])
    gone = History.of("b", [started(), measured(4, 0.1, loss=float("nan"))])
    (record,) = comparison_records([History.mean("both", [fine, gone])], None)
    assert (record["loss"], record["metrics"]) == (None, {"mae": None})


def test_whoever_trained_least_is_not_starred_for_it() -> None:
    """Costs to the target are compared; a run that never gets there has none."""
    lines = printed(comparison(runs(), 0.8)).splitlines()
    assert "*" not in next(line for line in lines if line[4:].startswith("feel"))
    assert "*68.0 MB" in next(line for line in lines if line[4:].startswith("fedavg"))


def test_a_run_cut_short_is_not_called_thrifty() -> None:
    long = runs()[0]
    short = History.of("cut sd-feel", long.events[:30])
    text = printed(comparison([long, short], None), 120)
    assert "*500 MB" not in text
    assert "*91.6 %" in text
    cut = next(line for line in text.splitlines() if line[4:].startswith("cut"))
    assert "*" not in cut


def test_a_single_run_has_no_stars() -> None:
    assert "*" not in printed(comparison(runs()[:1], 0.8))


def test_without_a_target_there_is_no_column_for_it() -> None:
    assert "time to" not in printed(comparison(runs(), None))


def test_without_accuracies_the_test_loss_is_compared() -> None:
    text = printed(comparison([History.of("sd-feel", [started(), measured(1, None)])], None))
    assert "accuracy" not in text
    assert "0.550" in text


def test_brackets_in_labels_are_printed_as_they_are() -> None:
    history = History.of("[bold]sd-feel[/] :smile:", runs()[0].events)
    assert "[bold]sd-feel[/] :smile:" in printed(comparison([history], 0.8), 120)
    assert "[bold]sd-feel[/] :smile:" in printed(summary(history, 0.8), 120)


def test_records_are_plain_json_with_none_for_what_was_not_reached() -> None:
    odd = History.of("odd", [started(), measured(1, float("nan"), loss=float("inf"))])
    records = comparison_records([*runs(), odd, History.of("empty", [])], 0.8)
    assert json.loads(json.dumps(records, allow_nan=False)) == records
    assert records[0]["seconds_to_target"] == 23.18
    assert records[3]["seconds_to_target"] is None
    assert records[4]["accuracy"] is records[4]["loss"] is None
    assert records[5]["seconds"] is None


def test_the_summary_shows_where_the_time_went() -> None:
    text = printed(summary(runs(metrics=True)[0], 0.8), 120)
    for words in ("compute", "50.0 %  30.5 s", "upload", "mix", "zeta 0.600", "worst class"):
        assert words in text
    assert "all rounds done" in text
    assert "step size 0.5" in text


def test_the_summary_of_an_unfinished_run_says_so() -> None:
    text = printed(summary(History.of("young", [started()]), 0.8), 120)
    assert "not evaluated yet" in text
    assert "not finished" in text


def test_label_figures_stand_side_by_side() -> None:
    text = printed(label_table([("classes [held]", 2, 10)]))
    assert "classes [held]" in text
    assert "2.00" in text


def test_tables_progress_and_kept_figures_start_without_torch_and_matplotlib() -> None:
    code = (
        "import sys, sdfeel.report.tables, sdfeel.report.progress; "
        "import sdfeel.figures.all_figures, sdfeel.figures.kept_curves, sdfeel.figures.judging; "
        "sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    )
    assert finished([sys.executable, "-c", code]).returncode == 0
