"""What a user has measured, and what is said about mistakes in it."""

from pathlib import Path

import numpy as np
import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.network import clustered
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.experiment.real_networks import links_table
from sdfeel.experiment.user_files import clients_table, mahimahi, mahimahi_table, trace_table

NET = clustered([1, 1, 1], [0, 1, 2], links("path", 3))


def test_a_table_of_clients_has_rates_or_distances() -> None:
    kind, values = clients_table("name,mbps\na,5\nb,2.5\n", "t.csv", 2)
    assert (kind, values.tolist()) == ("mbps", [5, 2.5])
    assert clients_table("# here\nmetres\n90\n", "t.csv", 1)[0] == "metres"


def test_a_trace_needs_no_header() -> None:
    times, rates = trace_table("5,4\n3,2\n", "t.csv", 2)
    assert times is None
    assert rates.tolist() == [[5, 4], [3, 2]]
    assert trace_table("a,b\n5,4\n", "t.csv", 2)[1].tolist() == [[5, 4]]


def test_links_that_are_not_named_stay_open() -> None:
    found = links_table("a,b,mbps\n1,0,40\n2,cloud,4\n", "t.csv", NET.links)
    rates, clouds = found.mbps, found.cloud_mbps
    assert rates[0, 1] == rates[1, 0] == 40
    assert clouds[2] == 4
    assert np.isnan(rates[1, 2])
    assert np.isnan(clouds[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv is empty"),
        ("speed\n1\n", "must name a column `mbps` or a column `metres`, got 'speed'"),
        ("mbps\n1\n", "1 rows, but there are 2 clients"),
        ("mbps\n1\nfast\n", "line 3 of t.csv gives 'fast' as a rate"),
        ("mbps\n1\n-3\n", "line 3 of t.csv gives '-3' as a rate or a distance: it must"),
        ("name,mbps\na,1\nb\n", "line 3 of t.csv is shorter than the others"),
    ],
)
def test_a_bad_table_of_clients_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        clients_table(text, "t.csv", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "no rates"),
        ("1,2\n3\n", "line 2 of t.csv has 1 numbers, but 2 clients need 2"),
        ("seconds,a,b\n0,1\n", "but 2 clients and the time need 3"),
        ("seconds,a,b\n1,1,1\n", "must begin with 0 and grow"),
        ("seconds,a,b\n0,1,1\n0,1,1\n", "must begin with 0 and grow"),
        ("1,nan\n", "line 1 of t.csv gives 'nan'"),
    ],
)
def test_a_bad_trace_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trace_table(text, "t.csv", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n", "line 1 of t.csv is '0,1', which is not a link"),
        ("0,1,4\n0,7,3\n", "line 2 of t.csv names server '7', but servers are 0 to 2"),
        ("0,2,3\n", "line 1 of t.csv is about servers 0 and 2, but network.graph does not"),
        ("0,1,0\n", "line 1 of t.csv gives '0' as mbps: it must be a number above 0"),
        ("# a\na,b,ms\n0,1,x\n", "line 3 of t.csv gives 'x' as ms: it must be a number of at"),
        ("a,b,speed\n0,1,4\n", "names a column 'speed': columns are two servers and mbps, ms, km"),
        ("0,1,4,9\n", "line 1 of t.csv has 2 values for 1 columns"),
        ("# nothing\n", "t.csv is empty"),
    ],
)
def test_a_bad_table_of_links_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        links_table(text, "t.csv", NET.links)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\n5\n3\n", "line 3 of t.up is '3': a recording in mahimahi's format has whole"),
        ("0\n1.5\n", "line 2 of t.up is '1.5'"),
        ("", "t.up is empty, or ends at 0 milliseconds"),
        ("0\n0\n", "t.up is empty, or ends at 0 milliseconds"),
    ],
)
def test_a_bad_recording_is_one_sentence_with_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mahimahi(text, "t.up")


def test_recordings_of_mahimahi_are_the_clients_rates(tmp_path: Path) -> None:
    """100 packets in the first second, 300 in the second; and 50 in every second."""
    one = [str(10 * n) for n in range(100)] + [str(1000 + n * 3) for n in range(300)]
    (tmp_path / "a.up").write_text("\n".join(one))
    (tmp_path / "b.up").write_text("\n".join(str(20 * n) for n in range(50)))
    files = sorted(tmp_path.iterdir())
    seconds, rates = mahimahi_table(files, 4)
    assert seconds.tolist() == [0, 1]
    assert rates[:, 0].tolist() == pytest.approx([1.2, 3.6])
    assert rates[:, 1].tolist() == pytest.approx([0.6, 0.6])
    assert sorted(rates[:, 2].tolist()) == pytest.approx([1.2, 3.6])  # perhaps from another moment
    small = ("network.clients=4", "network.servers=2", "data.partition=iid", "model.name=logistic")
    ready = prepare(load(None, [*small, f"radio.trace={tmp_path}"]))
    first, _ = ready.cost.channel.at(0, 0.5)  # type: ignore[union-attr]
    assert first[1] == pytest.approx(0.6 / 5)
    later, _ = ready.cost.channel.at(9, 1.5)  # type: ignore[union-attr]
    assert later[0] == pytest.approx(3.6 / 5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a folder without recordings"):
        prepare(load(None, [*small, f"radio.trace={tmp_path / 'empty'}"]))
