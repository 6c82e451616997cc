"""What the pictures say, not how many dots they have."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import InputError
from sdfeel.core.events import Started
from sdfeel.core.network import Network, clustered
from sdfeel.report.curves import curves
from sdfeel.report.drawing import save, svg
from sdfeel.report.history import History
from sdfeel.report.holdings import holdings
from sdfeel.report.styles import (
    DASHES,
    LOOKS,
    PALETTE,
    group_styles,
    line_style,
    style_of,
    told_apart,
)
from sdfeel.report.tables import comparison
from sdfeel.report.topology import layout, topology
from tests.report.runs import measured, runs, started

NAN = float("nan")


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def shares_of(axes: Axes) -> Floats:
    drawn = axes.images[0].get_array()
    assert drawn is not None
    return np.asarray(np.nan_to_num(np.ma.filled(drawn, 0)))


def ring(count: int) -> Network:
    links = np.roll(np.eye(count), 1, axis=0) + np.roll(np.eye(count), -1, axis=0)
    return clustered([100] * count, range(count), links)


def test_the_lines_are_the_evaluations() -> None:
    histories = runs()
    axes = curves(histories, 0.8).axes
    for index, history in enumerate(histories):
        seen = history.evaluations
        time, steps, moved = (axes[column].lines[index] for column in range(3))
        minutes = [event.seconds / 60 for event in seen]
        np.testing.assert_allclose(np.asarray(time.get_xdata()), minutes)
        assert list(np.asarray(steps.get_xdata())) == [event.iterations for event in seen]
        megabytes = [event.bytes / 1e6 for event in seen]
        np.testing.assert_allclose(np.asarray(moved.get_xdata()), megabytes)
        assert list(np.asarray(time.get_ydata())) == [event.accuracy for event in seen]
        loss = list(np.asarray(axes[3].lines[index].get_ydata()))
        assert loss == [event.loss for event in seen]


def test_axes_carry_their_units() -> None:
    axes = curves(runs(), 0.8).axes
    below = [panel.get_xlabel() for panel in axes[3:]]
    assert below == ["virtual time (min)", "local iterations", "data moved (MB)"]
    assert axes[0].get_ylabel() == "test accuracy (%)"
    assert axes[3].get_ylabel() == "training loss"


def test_a_deployment_counts_real_time() -> None:
    deployed = [on_a_real_clock(each) for each in runs()]
    assert curves(deployed).axes[3].get_xlabel() == "real time (min)"
    both = curves([deployed[0], runs()[1]])
    assert both.axes[3].get_xlabel() == "virtual or real time (min)"
    assert str(comparison(deployed, None).caption).endswith("times are real")


def on_a_real_clock(history: History) -> History:
    assert history.started is not None
    began = replace(history.started, clock="real")
    events = (began if isinstance(event, Started) else event for event in history.events)
    return History.of(history.label, events)


def test_the_legend_names_every_run_and_the_target() -> None:
    labels = ["_hidden", "$x_1$ and $", "a\nb\x00", *(f"run {index}" for index in range(9))]
    figure = curves([History.of(label, runs()[0].events) for label in labels], 0.8, "12 $ runs")
    svg(figure)
    assert legend_of(figure) == ["_hidden", "$x_1$ and $", "a b ", *labels[3:], "target 80 %"]


def test_the_target_is_drawn_with_the_accuracies_only() -> None:
    axes = curves(runs(), 0.8).axes
    assert list(np.asarray(axes[0].lines[-1].get_ydata())) == [0.8, 0.8]
    assert len(axes[3].lines) == 4


def test_without_classes_the_first_row_is_the_test_loss() -> None:
    figure = curves([History.of("regression", [measured(n, None) for n in range(3)])], 0.8)
    assert figure.axes[0].get_ylabel() == "test loss"
    assert legend_of(figure) == ["regression"]


def test_what_is_not_finite_is_a_gap_and_lone_points_stay_visible() -> None:
    losses = [1.0, NAN, 2.0, float("inf"), 3.0, 3.1]
    history = History.of("run", [measured(n, 0.5, loss=loss) for n, loss in enumerate(losses)])
    figure = curves([history])
    line = figure.axes[3].lines[0]
    expected = [1.0, NAN, 2.0, NAN, 3.0, 3.1]
    np.testing.assert_array_equal(np.asarray(line.get_ydata()), expected)
    marked = line.get_markevery()
    assert isinstance(marked, list)
    assert {0, 2} <= set(marked)
    svg(figure)


def test_a_run_that_explodes_gets_a_logarithmic_axis() -> None:
    history = History.of("run", [measured(n, 0.5, loss=10.0**n) for n in range(8)])
    assert curves([history]).axes[3].get_yscale() == "log"
    assert curves(runs()).axes[3].get_yscale() == "linear"


@pytest.mark.parametrize(
    "histories",
    [
        [],
        [History.of("empty", [])],
        [History.of("one", [started(), measured(3, 0.4)])],
        [History.of("all lost", [measured(n, NAN, loss=NAN) for n in range(3)])],
        [History.of("huge", [measured(n, 0.5, loss=1.7e308) for n in range(3)])],
        [History.of(f"a name of some length, number {n}", runs()[0].events) for n in range(40)],
    ],
    ids=["none", "empty", "one", "lost", "huge", "forty"],
)
def test_curves_of_odd_histories_can_be_drawn(histories: list[History]) -> None:
    assert svg(curves(histories, 0.8)).startswith("<svg")


def test_metrics_of_the_user_get_a_row_each() -> None:
    axes = curves(runs(metrics=True), metrics=["worst class"]).axes
    assert len(axes) == 9
    assert axes[6].get_ylabel() == "worst class"


def test_no_two_lines_look_alike() -> None:
    looks = [str(line_style(index)) for index in range(792)]
    assert len(set(looks)) == 792
    assert all(
        line_style(one)[what] != line_style(other)[what]
        for one, other in pairwise(range(LOOKS))
        for what in ("color", "linestyle", "marker")
    )


def test_every_run_keeps_its_colour_and_dashes_tell_up_to_eight_of_one_colour_apart() -> None:
    """Five seeds of a line are one colour; many runs whose names collide keep theirs as well."""
    seeds = {"fedavg": [f"fedavg-seed{n}" for n in range(5)], "sd-feel": ["sd-feel"]}
    chosen = [style_of(run, group_styles(seeds, {})) for run in seeds["fedavg"]]
    collided = [style_of(f"run{number}") for number in range(60)]
    for styles in (chosen, collided, [3] * len(DASHES)):
        found = told_apart(styles)
        assert [line_style(each)["color"] for each in found] == [
            line_style(each)["color"] for each in styles
        ]
        looks = [each % LOOKS for each in found]
        most = {colour: 0 for colour in range(len(PALETTE))}
        for each in set(looks):
            most[each % len(PALETTE)] += 1
        wanted = {c: min(len(DASHES), sum(s % len(PALETTE) == c for s in styles)) for c in most}
        assert most == wanted


def test_holdings_show_shares_grouped_by_server() -> None:
    counts = np.array([[8, 2], [0, 0], [0, 5], [5, 5]])
    figure = holdings(counts, np.array([1, 0, 1, 0]))
    drawn = {axes.get_xlabel(): axes for axes in figure.axes if axes.images}
    np.testing.assert_allclose(shares_of(drawn["server"]), [[0.5, 8 / 15], [0.5, 7 / 15]])
    (clients,) = (axes for label, axes in drawn.items() if "client" in label)
    np.testing.assert_allclose(shares_of(clients)[0], [0, 0.5, 0.8, 0])  # clients 1, 3, 0, 2
    numbers = [label.get_text() for label in clients.get_xticklabels(minor=True)]
    assert numbers == ["1", "3", "0", "2"]


@pytest.mark.parametrize(("clients", "classes", "servers"), [(1, 1, 1), (1300, 100, 50)])
def test_holdings_of_any_size_can_be_drawn(clients: int, classes: int, servers: int) -> None:
    draws = np.random.default_rng(1).integers(0, 9, (clients, classes))
    assert svg(holdings(draws, np.arange(clients) % servers))


def test_holdings_refuse_what_does_not_fit() -> None:
    with pytest.raises(InputError, match="give one server per client"):
        holdings(np.ones((3, 2), dtype=np.int64), np.zeros(2, dtype=np.int64))
    with pytest.raises(InputError, match="a row per client"):
        holdings(np.ones(3, dtype=np.int64), np.zeros(3, dtype=np.int64))


def test_the_topology_shows_zeta_shares_and_weights() -> None:
    graph, matrix, *_ = topology(ring(6)).axes
    assert "6 servers, 6 links, ζ = 0.600" in graph.get_title()
    assert texts(graph).count("0.40") == 6
    assert "0\n17 %" in texts(graph)
    assert texts(matrix).count("0.40") == 12


def test_unequal_weights_are_written_at_both_ends() -> None:
    path = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    graph, matrix, *_ = topology(clustered([40, 20, 40], [0, 1, 2], path)).axes
    assert sorted(text for text in texts(graph) if "." in text) == ["0.33"] * 2 + ["0.67"] * 2
    assert "-0.33" in texts(matrix)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 13, 30])
def test_servers_never_overlap(count: int) -> None:
    full = 1.0 - np.eye(count)
    star = np.zeros((count, count))
    star[0, 1:] = star[1:, 0] = 1
    line = np.eye(count, k=1) + np.eye(count, k=-1)
    lollipop = np.maximum(line, np.pad(np.ones((3, 3)), (0, max(0, count - 3)))[:count, :count])
    np.fill_diagonal(lollipop, 0)
    for links in (full, star, line, lollipop):
        net = clustered([10] * count, range(count), links)
        places = np.array([layout(net)[server] for server in net.servers])
        again = np.array([layout(net)[server] for server in net.servers])
        np.testing.assert_array_equal(places, again)
        apart = np.linalg.norm(places[:, None] - places[None], axis=2) + 9 * np.eye(count)
        assert apart.min() > 1e-3
        assert np.abs(places).max() <= 1 + 1e-9
    assert svg(topology(net))


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_saving_is_whole_and_repeatable(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        save(curves(runs(20), 0.8), tmp_path / "new" / f"{name}.{kind}")
    files = sorted((tmp_path / "new").iterdir())
    assert [file.name for file in files] == [f"a.{kind}", f"b.{kind}"]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_an_unknown_kind_of_picture_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'a\.gif': end it in \.png, \.svg or \.pdf"):
        save(Figure(), tmp_path / "a.gif")


def test_an_embedded_picture_stands_alone_beside_another() -> None:
    one, two = (ElementTree.fromstring(svg(curves(runs(rounds)))) for rounds in (20, 30))
    first, second = ({e.get("id") for e in root.iter()} - {None} for root in (one, two))
    assert first
    assert not first & second
    used = [e.get("href", "") for e in one.iter("use")]
    assert used
    assert {name.removeprefix("#") for name in used} <= first
    assert one.find(".//style") is None


def test_pictures_can_be_drawn_in_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: svg(curves(runs(3), width="column")), range(6)))
    assert len(set(drawn)) == 1
