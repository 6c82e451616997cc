"""What a user has measured, and what is said about mistakes in it."""

import numpy as np
import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.network import clustered
from sdfeel.experiment.files import clients_table, links_table, trace_table

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
    rates, clouds = links_table("a,b,mbps\n1,0,40\n2,cloud,4\n", "t.csv", NET)
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
        ("mbps\n1\nfast\n", "holds 'fast' where a number is expected"),
        ("mbps\n1\n-3\n", "holds -3, but rates and distances must be above 0"),
        ("name,mbps\na,1\nb\n", "rows of different lengths"),
    ],
)
def test_a_bad_table_of_clients_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        clients_table(text, "t.csv", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "no rates"),
        ("1,2\n3\n", "row 2 of t.csv has 1 numbers, but 2 clients need 2"),
        ("seconds,a,b\n0,1\n", "but 2 clients and the time need 3"),
        ("seconds,a,b\n1,1,1\n", "must begin with 0 and grow"),
        ("seconds,a,b\n0,1,1\n0,1,1\n", "must begin with 0 and grow"),
        ("1,nan\n", "holds nan"),
    ],
)
def test_a_bad_trace_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trace_table(text, "t.csv", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n", "'0,1' in t.csv is not a link"),
        ("0,7,3\n", "names server '7', but servers are 0 to 2"),
        ("0,2,3\n", "between servers 0 and 2, but network.graph does not"),
        ("0,1,0\n", "holds 0"),
    ],
)
def test_a_bad_table_of_links_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        links_table(text, "t.csv", NET)
