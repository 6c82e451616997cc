import numpy as np
import pytest

from sdfeel.core.events import Evaluated, Finished
from sdfeel.report.compare import comparison_records
from sdfeel.report.curves import multiples
from sdfeel.report.history import History
from sdfeel.report.intervals import MARGIN, Observed, estimate
from sdfeel.report.tables import comparison


def run(label: str, accuracies: list[float]) -> History:
    points = [
        Evaluated(n, 5 * n, 0.5 * n, 10 * n, 1.0 * n, 1.0 - a, 1.0, a, 0.0)
        for n, a in enumerate(accuracies)
    ]
    end = Finished(len(points) - 1, 5, 0.5 * (len(points) - 1), 10, 1.0, "done", "abc")
    return History.of(label, [*points, end])


def test_a_mean_of_runs_is_their_mean_point_by_point() -> None:
    mean = History.mean("both", [run("a", [0.1, 0.4, 0.8]), run("b", [0.3, 0.6, 0.6])])
    assert [e.accuracy for e in mean.evaluations] == [0.2, 0.5, 0.7]
    assert mean.finished is not None
    assert mean.finished.reason == "mean of 2 runs"
    (record,) = comparison_records([mean], 0.75)
    assert record["seeds"] == 2
    assert record["reached"] == 1
    assert record["seconds_to_target"] is None
    assert record["accuracy_spread"] == pytest.approx(np.std([0.8, 0.6], ddof=1))
    exported = estimate(map(Observed, [0.8, 0.6]))
    assert exported is not None
    assert record["accuracy_margin"] == exported.margin
    assert MARGIN in str(comparison([mean], 0.75).caption)
    (reached,) = comparison_records([mean], 0.4)
    assert reached["seconds_to_target"] == 0.5
    assert comparison([mean], 0.75).row_count == 1


def test_one_label_keeps_its_style_in_every_picture() -> None:
    panels = {
        "tau1=1": [run("ring", [0.1, 0.5]), run("full", [0.1, 0.6])],
        "tau1=5": [run("full", [0.1, 0.7])],
    }
    figure = multiples(panels, target=0.5)
    pictures = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in pictures] == ["tau1=1", "tau1=5"]
    both = pictures[0].get_lines()[1]
    alone = next(line for line in pictures[1].get_lines() if np.size(line.get_ydata()) == 2)
    assert both.get_color() == alone.get_color()
    np.testing.assert_array_equal(np.asarray(alone.get_ydata(), dtype=float), [0.1, 0.7])


def test_a_band_spans_the_runs() -> None:
    mean = History.mean("both", [run("a", [0.1, 0.4]), run("b", [0.3, 0.6])])
    figure = multiples({"all": [mean]})
    (band,) = figure.axes[0].collections
    heights = np.asarray(band.get_paths()[0].vertices, dtype=float)[:, 1]
    assert (heights.min(), heights.max()) == (0.1, 0.6)
