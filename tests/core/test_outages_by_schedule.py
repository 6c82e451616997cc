"""Schedules of changes: what may be written, and what is said about mistakes."""

import numpy as np
import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.network import clustered
from sdfeel.core.outages import Outages, check, schedule

NET = clustered([1, 1, 1, 1], [0, 1, 2, 3], links("ring", 4))


def test_lines_are_read_in_the_order_of_time() -> None:
    found = schedule("# a comment\n\nround 9, server 1 up\nround 4 link 0 1 down # x\n", "f")
    assert [(each.when, each.who, each.up) for each in found] == [
        (4, (0, 1), False),
        (9, (1,), True),
    ]
    assert schedule("second 0.5 cloud down", "f")[0].who == ()
    assert schedule("", "f") == ()


@pytest.mark.parametrize(
    "line",
    [
        "round 3 server 1",
        "round 3 server one down",
        "round 3 link 1 down",
        "round three server 1 down",
        "round -1 server 1 down",
        "minute 3 server 1 down",
        "round 3 server 1 broken",
        "round 3 client 1 down",
        "down",
    ],
)
def test_a_line_that_is_not_a_change_is_named(line: str) -> None:
    with pytest.raises(
        InputError, match=r"line 2 of f is '.*', which is not a change: write lines"
    ):
        schedule(f"round 1 cloud down\n{line}\n", "f")


def test_rounds_and_seconds_cannot_be_put_in_order() -> None:
    with pytest.raises(InputError, match="f mixes rounds and seconds"):
        schedule("round 1 cloud down\nsecond 2 cloud up\n", "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round 1 server 4 down", "changes server 4, but servers are numbered 0 to 3"),
        ("round 1 link 0 2 down", "between servers 0 and 2, but network.graph has none"),
        ("\n".join(f"round 1 server {d} down" for d in range(4)), "leaves no server up"),
    ],
)
def test_what_the_network_does_not_have_cannot_change(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(schedule(text, "f"), NET, "f")


def test_a_server_that_comes_back_is_there_at_the_end() -> None:
    down = "\n".join(f"round 1 server {d} down" for d in range(4))
    check(schedule(down + "\nround 2 server 3 up", "f"), NET, "f")


def test_parts_that_are_cut_off_for_good_are_known() -> None:
    text = "round 1 link 0 1 down\nround 2 link 2 3 down\n"
    changing = Outages(schedule(text, "f"))
    assert changing.cut_off(NET) == [[0, 3], [1, 2]]
    gone = Outages(schedule("round 1 server 2 down", "f"))
    assert gone.cut_off(NET) == [[0, 1, 3]]
    assert np.array_equal(Outages().at(NET, 5, 0.0).net.links, NET.links)
