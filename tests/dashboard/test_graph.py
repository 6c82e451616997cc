"""The servers' graph: one by one, or in groups where there are many."""

from dataclasses import replace
from itertools import combinations
from math import dist
from typing import Any

import pytest

from sdfeel.dashboard.views.graph import MOST_GROUPS, SINGLY, graph
from tests.dashboard.logs import measured, played, started


def ring(servers: int, chords: bool = False) -> tuple[tuple[int, int], ...]:
    found = {tuple(sorted((s, (s + 1) % servers))) for s in range(servers)}
    if chords:
        found |= {tuple(sorted((s, (s * 7 + 3) % servers))) for s in range(servers)}
    return tuple(sorted((a, b) for a, b in found if a != b))


def drawn(servers: int, places: tuple[tuple[float, float], ...] = (), chords: bool = False) -> Any:
    """Two rounds of all servers, then one of the first alone, and two moments."""
    everybody = tuple(range(servers))
    first = replace(
        started(),
        servers=servers,
        edges=ring(servers, chords),
        home=everybody * 2,
        places=places,
    )
    far = tuple(float(server) for server in range(servers))
    together = replace(played(1), lane=everybody, mixed=everybody)
    alone = replace(played(5), lane=(0,), mixed=(0, 1), seconds=2.0)
    moments = [replace(measured(n), distances=far, seconds=2.5 * n) for n in (1, 2)]
    return graph([first, together, together, moments[0], alone, moments[1]])


@pytest.mark.parametrize("servers", [2, 9, SINGLY])
def test_few_servers_are_drawn_one_by_one(servers: int) -> None:
    found = drawn(servers)
    assert found["groups"] is None
    assert found["links"] == list(ring(servers))
    assert found["clients"] == [2] * servers
    one, two = found["frames"]
    assert one["distances"] == [float(server) for server in range(servers)]
    assert set(one["traffic"]) == {2}
    used = found["links"].index((0, 1))
    assert [n for n, times in enumerate(two["traffic"]) if times] == [used]
    assert two["age"][used] == 3.0
    assert all(age == 3.75 for n, age in enumerate(two["age"]) if n != used)
    assert (one["mixings"], two["mixings"]) == (2, 0)


@pytest.mark.parametrize("servers", [SINGLY + 1, 100, 1000])
@pytest.mark.parametrize("kind", ["ring", "chords", "map", "crowd"])
def test_many_servers_are_drawn_in_groups_that_hide_nobody(servers: int, kind: str) -> None:
    where = {
        "map": tuple((float(s % 31), float(s // 31)) for s in range(servers)),
        "crowd": ((7.0, 50.0),) * servers,  # all in one place
    }
    found = drawn(servers, where.get(kind, ()), chords=kind == "chords")
    groups = found["groups"]
    assert sorted(server for inside in groups for server in inside) == list(range(servers))
    assert 1 <= len(groups) <= MOST_GROUPS
    assert kind == "crowd" or len(groups) >= 5
    assert sum(found["clients"]) == 2 * servers
    one, two = found["frames"]
    assert one["distances"] == [float(max(inside)) for inside in groups]
    assert one["farthest"][0] == [servers - 1, float(servers - 1)]
    home = {server: group for group, inside in enumerate(groups) for server in inside}
    crossing = [(home[a], home[b]) for a, b in ring(servers, kind == "chords")]
    crossing = [(min(ends), max(ends)) for ends in crossing if ends[0] != ends[1]]
    assert {*found["links"]} == {*crossing}
    assert sum(one["traffic"]) == 2 * len(crossing)
    assert sum(two["traffic"]) == (home[0] != home[1])


@pytest.mark.parametrize("servers", [12, 40, 400])
def test_circles_do_not_overlap_wherever_servers_are(servers: int) -> None:
    places = tuple((7 + 0.01 * (s % 3), 50 + 0.01 * (s % 2)) for s in range(servers))
    found = drawn(servers, places)
    near = min(dist(a, b) for a, b in combinations(found["places"], 2))
    assert near > 1.9 * found["radius"]
