"""Who did what when: worked examples, and what holds for every run."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.events import Event, Round, Started
from sdfeel.core.graphs import links
from sdfeel.core.link_times import Link
from sdfeel.core.network import clustered
from sdfeel.report.holdups import SERVERS as BETWEEN
from sdfeel.report.holdups import Holdup, holdups
from sdfeel.report.timeline import Kind, Span, Timeline, spans, waiting
from sdfeel.run.drive import Drive, Goals
from sdfeel.schemes import SCHEMES
from sdfeel.sim.simulate import Simulation
from tests.quadratic import quadratic
from tests.report.runs import played, started

Crew = tuple[tuple[int, float, float], ...]
RATES: dict[Link, float] = {
    "client-server": 2e3,
    "server-server": 8e3,
    "server-cloud": 4e3,
    "client-cloud": 1e3,
}


def begun(home: tuple[int, ...], servers: int) -> Started:
    return Started("sd-feel", len(home), servers, 10, "loop", 0, 0.5, home=home)


def ended(
    number: int,
    lane: tuple[int, ...],
    at: float,
    phases: tuple[float, float, float],
    crew: Crew | None = None,
    mixed: tuple[int, ...] = (),
) -> Round:
    named = dict(zip(("compute", "upload", "mix"), phases, strict=True))
    return Round(number, lane, number, at, 0, 0.0, 1, named, mixed, crew)


def row(found: list[Span], who: str) -> list[tuple[Kind, float, float]]:
    return [(span.kind, span.begin, span.end) for span in found if span.who == who]


@cache
def simulated(name: str, unequal: bool) -> tuple[list[Event], Floats, Ints]:
    """A real run's events, each client's seconds per step, and the steps that it took."""
    seconds = np.array([0.1, 0.5, 0.23, 0.31, 0.17, 0.41, 0.29] if unequal else [0.3] * 7)
    net = clustered([1.0] * 7, [i % 3 for i in range(7)], links("ring", 3))
    engine = quadratic(np.arange(7.0), np.ones(7), 0.1)
    simulation = Simulation(Decisions.of(SCHEMES[name](), net, Cost(seconds, 1e3, RATES)), engine)
    return list(Drive(name, simulation, Goals(10))), seconds, simulation.state.taken


SYNC: list[Event] = [
    begun((0, 1, 0), 2),
    ended(1, (0, 1), 7, (3, 2, 2), ((0, 1, 2), (1, 3, 2), (2, 2, 2)), (0, 1)),
    ended(2, (0, 1), 12, (3, 2, 0)),
]


def test_in_a_synchronous_round_all_wait_for_the_slowest() -> None:
    found = spans(SYNC, 0, 7)
    assert list(dict.fromkeys(span.who for span in found)) == [
        *("server 0", "client 0", "client 2"),
        *("server 1", "client 1"),
    ]
    assert row(found, "client 0") == [("compute", 0, 1), ("upload", 1, 3), ("wait", 3, 7)]
    assert row(found, "client 1") == [("compute", 0, 3), ("upload", 3, 5), ("wait", 5, 7)]
    last_of_server_0 = [("wait", 0, 2), ("upload", 2, 4), ("wait", 4, 5), ("gossip", 5, 7)]
    assert row(found, "server 0") == last_of_server_0
    assert row(found, "server 1") == [("wait", 0, 3), ("upload", 3, 5), ("gossip", 5, 7)]


def test_a_round_that_lists_nobody_is_like_the_one_before() -> None:
    found = spans(SYNC, 7, 12, {1})
    assert row(found, "client 1") == [("compute", 7, 10), ("upload", 10, 12)]
    assert row(found, "server 1") == [("wait", 7, 10), ("upload", 10, 12)]
    assert {span.who for span in found} == {"client 1", "server 1"}
    assert {span.round for span in found} == {2}


def test_rounds_wait_for_the_last_client_and_for_servers() -> None:
    found = {each.who: each for each in holdups(Timeline.of(SYNC).rounds)}
    assert found["client 1"] == Holdup("client 1", 2, 2.0, 3.0, 2.0)  # 5 s, and then 4 s
    assert (found[BETWEEN].rounds, found[BETWEEN].seconds) == (1, 2.0)
    assert len(found) == 2


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=6))
def test_a_round_is_that_much_shorter_without_the_client_it_waited_for(
    costs: list[tuple[int, int]],
) -> None:
    def length(some: list[tuple[int, int]]) -> int:
        return max((busy + sending for busy, sending in some), default=0)

    busiest = max(busy for busy, _ in costs)
    crew = tuple((client, busy, sending) for client, (busy, sending) in enumerate(costs))
    only = ended(1, (0,), length(costs), (busiest, length(costs) - busiest, 0), crew)
    found = holdups(Timeline.of([begun((0,) * len(costs), 1), only]).rounds)
    gains = {
        f"client {client}": length(costs) - length(costs[:client] + costs[client + 1 :])
        for client in range(len(costs))
    }
    wanted = {who: gain for who, gain in gains.items() if gain and len(costs) > 1}
    assert {each.who: each.seconds for each in found} == wanted


def test_a_window_cuts_spans() -> None:
    assert row(spans(SYNC, 2.5, 3.5), "client 0") == [("upload", 2.5, 3), ("wait", 3, 3.5)]


def test_the_share_of_waiting_counts_every_client_alike() -> None:
    found = spans(SYNC, 0, 7)
    assert waiting(found, "client") == pytest.approx((4 + 2 + 3) / 21)
    assert waiting(found, "server") == pytest.approx((3 + 3) / 14)
    assert waiting([], "client") is None


ASYNC: list[Event] = [
    begun((0, 0, 1), 2),
    ended(1, (0,), 6, (3, 2, 1), ((0, 3, 2), (1, 2, 2)), (0, 1)),
    ended(2, (1,), 8, (5, 2, 1), ((2, 5, 2),), (0, 1)),
    ended(3, (0,), 12, (3, 2, 1), None, (0, 1)),
]


def test_with_deadlines_clients_send_together_and_lanes_continue_alone() -> None:
    found = spans(ASYNC, 0, 12)
    assert row(found, "client 1")[:4] == [
        *(("compute", 0, 2), ("wait", 2, 3), ("upload", 3, 5), ("wait", 5, 6)),
    ]
    assert row(found, "client 1")[4:6] == [("compute", 6, 8), ("wait", 8, 9)]
    assert row(found, "client 2")[-1] == ("wait", 7, 8), "its next round is not finished"


def test_a_server_gossips_in_its_neighbours_rounds_too() -> None:
    found = spans(ASYNC, 0, 12)
    assert row(found, "server 1") == [
        *(("wait", 0, 5), ("gossip", 5, 6), ("upload", 6, 7), ("gossip", 7, 8)),
    ]
    middle = [("gossip", 5, 6), ("wait", 6, 7), ("gossip", 7, 8), ("wait", 8, 9)]
    assert row(found, "server 0")[2:6] == middle
    visits = [span.round for span in found if span.who == "server 1" and span.kind == "gossip"]
    assert visits == [1, 2]


def test_a_deadline_beyond_every_client_holds_up_a_single_lane_too() -> None:
    alone: list[Event] = [begun((0,), 1), ended(1, (0,), 7, (5, 2, 0), ((0, 4, 2),))]
    parts = [("compute", 0, 4), ("wait", 4, 5), ("upload", 5, 7)]
    assert row(spans(alone, 0, 7), "client 0") == parts


def test_chance_may_give_more_steps_than_fit_into_a_round() -> None:
    drawn: list[Event] = [begun((0,), 1), ended(1, (0,), 5, (2, 3, 0), ((0, 4, 3),))]
    assert row(spans(drawn, 0, 5), "client 0") == [("compute", 0, 2), ("upload", 2, 5)]


def test_who_takes_no_part_waits() -> None:
    chosen: list[Event] = [
        begun((0, 0), 1),
        *(ended(n, (0,), 3 * n, (1, 2, 0), ((1, 1, 2),)) for n in (1, 2)),
    ]
    assert row(spans(chosen, 0, 6), "client 0") == [("wait", 0, 3), ("wait", 3, 6)]


def test_clients_without_a_server_have_no_row() -> None:
    cell: list[Event] = [begun((-1, 0), 1), ended(1, (0,), 3, (1, 2, 0), ((1, 1, 2),))]
    assert {span.who for span in spans(cell, 0, 3)} == {"server 0", "client 1"}


def test_too_many_clients_to_list_leave_the_servers() -> None:
    many: list[Event] = [begun((0, 1), 2), ended(1, (0, 1), 6, (3, 2, 1), mixed=(0, 1))]
    parts = [("wait", 0, 3), ("upload", 3, 5), ("gossip", 5, 6)]
    found = spans(many, 0, 6)
    assert row(found, "server 0") == row(found, "server 1") == parts
    assert {span.who for span in found} == {"server 0", "server 1"}


def test_lanes_that_share_a_server_are_told_apart_by_their_lengths() -> None:
    shared: list[Event] = [
        begun((0, 0), 1),
        ended(1, (0,), 3, (2, 1, 0), ((0, 2, 1),)),
        ended(2, (0,), 4, (3, 1, 0), ((1, 3, 1),)),
        ended(3, (0,), 6, (2, 1, 0)),
        ended(4, (0,), 8, (3, 1, 0)),
    ]
    found = spans(shared, 0, 6)
    turns = [("compute", 0, 2), ("upload", 2, 3), ("compute", 3, 5), ("upload", 5, 6)]
    assert row(found, "client 0") == turns
    slow = [("compute", 0, 3), ("upload", 3, 4), ("compute", 4, 6)]
    assert [part for part in row(found, "client 1") if part[0] != "wait"] == slow
    assert [p for p in row(found, "server 0") if p[0] == "upload"] == [
        *(("upload", 2, 3), ("upload", 3, 4), ("upload", 5, 6)),
    ]


def test_work_longer_than_its_round_began_when_the_client_was_free() -> None:
    late: list[Event] = [
        begun((0, 0), 1),
        ended(1, (0,), 3, (2, 1, 0), ((0, 2, 1), (1, 2, 1))),
        ended(2, (0,), 6, (2, 1, 0), ((0, 2, 1),)),
        ended(3, (0,), 9, (3, 0, 0), ((0, 2, 1), (1, 4, 1))),
    ]
    later = [("compute", 3, 7), ("upload", 7, 8), ("wait", 8, 9)]
    assert row(spans(late, 0, 9), "client 1") == [("compute", 0, 2), ("upload", 2, 3), *later]
    assert row(spans(late, 4, 5), "client 1") == [("compute", 4, 5)]


def test_the_usual_window_is_the_first_gossips() -> None:
    line = Timeline.of([begun((0,), 1), *(ended(n, (0,), n, (1, 0, 0)) for n in range(1, 9))])
    assert line.window(None, None) == (0, 4)
    assert line.window(3, None) == (3, 7)
    assert line.window(None, 99) == (0, 8)
    pairs = [
        ended(2 * n + c, (0,), n, (1, 0, 0), ((c, 1, 0),)) for n in range(1, 9) for c in (0, 1)
    ]
    assert Timeline.of([begun((0, 0), 1), *pairs]).window(None, None) == (0, 4), "of each lane"
    every_other = [ended(n, (0, 1), n, (1, 0, 0.5 * (n % 2)), None, (0, 1)) for n in range(1, 9)]
    assert Timeline.of([begun((0, 1), 2), *every_other]).window(None, None) == (0, 7)


@pytest.mark.parametrize(("begin", "end"), [(12, 13), (-1, 2), (3, 3), (4, 2), (float("nan"), 1)])
def test_a_window_outside_the_run_is_refused(begin: float, end: float) -> None:
    with pytest.raises(InputError, match="choose a window within the run's 0 to 12 s"):
        Timeline.of(SYNC).window(begin, end)


def test_a_run_without_rounds_and_an_old_log_are_told_apart() -> None:
    with pytest.raises(InputError, match="no finished round yet"):
        Timeline.of([begun((0,), 1)]).window(None, None)
    logs: list[list[Event]] = [[], [started(), played(1)]]
    for old in logs:
        with pytest.raises(InputError, match="an earlier version of sdfeel; run the experiment"):
            spans(old, 0, 1)


def test_an_unknown_server_is_named() -> None:
    with pytest.raises(InputError, match="the run has no server 2: its servers are 0 to 1"):
        spans(SYNC, 0, 1, [0, 2])


@pytest.mark.parametrize("name", SCHEMES)
@given(begin=st.floats(0, 0.99), length=st.floats(0.01, 1))
def test_spans_tile_every_row_of_a_real_run(name: str, begin: float, length: float) -> None:
    line = Timeline.of(simulated(name, True)[0])
    first, last = begin * line.end, (begin + length) * line.end
    found = line.spans(first, last, None)
    for server, clients in line.clusters.items():
        known = max(r.end for r in line.rounds if server in r.round.lane)
        for who in (f"server {server}", *(f"client {client}" for client in clients)):
            own = row(found, who)
            if first < known:
                assert (own[0][1], own[-1][2]) == (first, min(last, known))
            assert all(before[2] == after[1] for before, after in pairwise(own))
            assert all(start < end for _, start, end in own)


# Multi-level SGD deals out steps by chance, SAFA gives late clients new work before they are done:
# both sometimes count more steps than fit into a round.
FITTING = [(name, True) for name in SCHEMES if name not in ("multi-level", "safa")]


@pytest.mark.parametrize(("name", "unequal"), [*FITTING, ("fedasync", False), ("sd-feel", False)])
def test_clients_compute_as_long_as_their_steps_take(name: str, unequal: bool) -> None:
    events, seconds, taken = simulated(name, unequal)
    found = spans(events, 0, 1e9)
    for client in np.flatnonzero(taken).tolist():
        own = row(found, f"client {client}")
        computing = sum(end - begin for kind, begin, end in own if kind == "compute")
        assert computing == pytest.approx(taken[client] * seconds[client])
        assert all(end - begin > 1e-6 for _, begin, end in own), "rounding is no span"
