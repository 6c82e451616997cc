"""What the timeline picture shows, and what it says about the rest."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from sdfeel.core.events import Event
from sdfeel.report.drawing import save
from sdfeel.report.gantt import COLOURS, ROWS, gantt, panel
from sdfeel.report.timeline import Timeline
from tests.report.test_timeline import ASYNC, SYNC, begun, ended


def crowd(clients: int, servers: int) -> Timeline:
    """One round; client n computes n seconds."""
    crew = tuple((client, float(client), 1.0) for client in range(clients))
    end = ended(1, tuple(range(servers)), clients, (clients - 1, 1, 0), crew)
    home = tuple(client * servers // clients for client in range(clients))
    return Timeline.of([begun(home, servers), end])


def names(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def bars(axes: Axes) -> dict[tuple[str, str], float]:
    """Seconds drawn by row and kind."""
    kinds = {to_hex(colour): kind for kind, colour in COLOURS.items()}
    places = dict(zip(np.round(axes.get_yticks(), 6).tolist(), names(axes), strict=True))
    found: dict[tuple[str, str], float] = {}
    for drawn in axes.collections:
        if isinstance(drawn, PolyCollection):
            for path in drawn.get_paths():
                box = path.get_extents()
                who = places[round(float(box.y0 + box.y1) / 2, 6)]
                kind = kinds[to_hex(tuple(np.asarray(drawn.get_facecolor())[0].tolist()))]
                found[who, kind] = found.get((who, kind), 0.0) + float(box.width)
    return found


def test_the_bars_are_the_spans() -> None:
    line = Timeline.of(SYNC)
    axes = gantt([("sync", line)], 0, 7).axes[0]
    assert names(axes) == ["server 0", "client 0", "client 2", "server 1", "client 1"]
    drawn = bars(axes)
    for span in line.spans(0, 7, None):
        drawn[span.who, span.kind] -= span.end - span.begin
    assert all(rest == pytest.approx(0, abs=1e-9) for rest in drawn.values())


def test_two_runs_share_one_axis_and_say_how_long_clients_wait(tmp_path: Path) -> None:
    figure = gantt([("a", Timeline.of(SYNC)), ("sd-feel", Timeline.of(ASYNC))], 0, 12)
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim() == (0, 12)
    assert below.get_xlabel() == "time (s)"
    assert above.get_title("left") == "a (sd-feel): 3 clients wait 33 % of the time"
    assert below.get_title("left") == "sd-feel: 3 clients wait 22 % of the time"
    save(figure, tmp_path / "both.png")
    assert (tmp_path / "both.png").stat().st_size > 5000


def test_the_legend_names_what_is_drawn() -> None:
    legend = gantt([("x", crowd(4, 2))], 0, 4).legends[0]
    words = [text.get_text() for text in legend.get_texts()]
    assert [word.split()[0] for word in words] == ["computing", "uploading", "waiting"]


def test_without_clients_the_title_is_about_servers() -> None:
    events: list[Event] = [begun((0, 1), 2), ended(1, (0, 1), 6, (3, 2, 1), mixed=(0, 1))]
    shown = panel("sd-feel", Timeline.of(events), 0, 6)
    assert shown.title == "sd-feel: 2 servers wait 50 % of the time"
    assert shown.clusters == {0: (), 1: ()}
    assert shown.left_out == "not shown: clients, too many to list"


def test_as_many_whole_clusters_as_fit_are_shown() -> None:
    shown = panel("x", crowd(50, 10), 0, 50)
    assert list(shown.clusters) == [0, 1, 2, 3]
    assert sum(1 + len(clients) for clients in shown.clusters.values()) <= ROWS
    assert shown.left_out == "not shown: 6 servers and 30 clients"
    assert shown.title.startswith("x (sd-feel): 50 clients wait")


def test_of_a_large_cluster_the_fastest_and_the_slowest_are_kept() -> None:
    shown = panel("x", crowd(60, 2), 0, 60)
    assert [len(clients) for clients in shown.clusters.values()] == [11, 11]
    assert {0, 29} <= set(shown.clusters[0])
    assert {30, 59} <= set(shown.clusters[1])
    assert shown.left_out == "not shown: 38 clients"


def test_chosen_servers_are_all_shown() -> None:
    shown = panel("x", crowd(50, 10), 0, 50, servers=[9, 2, 5, 6, 8])
    assert list(shown.clusters) == [2, 5, 6, 8, 9]
    assert shown.left_out == "not shown: 5 clients"
    assert panel("x", crowd(50, 10), 0, 50, servers=[7]).left_out == ""


def test_a_thousand_servers_do_not_make_a_tower() -> None:
    assert len(panel("x", crowd(1000, 1000), 0, 1000, range(1000)).clusters) == ROWS
