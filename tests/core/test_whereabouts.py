"""Where clients are when, and what that makes of a network."""

from dataclasses import replace

import numpy as np
import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.network import Network, clustered
from sdfeel.core.outages import Outages
from sdfeel.core.whereabouts import NOWHERE, UNCHANGED, Whereabouts, handovers, woken
from sdfeel.experiment.read_whereabouts import read_whereabouts

LINE = np.diag(np.ones(3), 1) + np.diag(np.ones(3), -1)


def line() -> Network:
    """Four servers in a row, two clients each, with as many examples as their numbers say."""
    return clustered(np.arange(1.0, 9.0), [0, 0, 1, 1, 2, 2, 3, 3], LINE)


def drawn(seed: int) -> Whereabouts:
    draws = np.random.default_rng(seed)
    return Whereabouts(
        np.sort(draws.random(30)),
        draws.integers(0, 8, 30),
        draws.choice([NOWHERE, UNCHANGED, 0, 1, 2, 3], 30),
        draws.choice([0, 1, UNCHANGED], 30),
        rule=GOSSIP_RULES[["paper", "metropolis", "size-weighted"][seed % 3]],
    )


@pytest.mark.parametrize("seed", range(30))
def test_the_network_of_a_moment_follows_the_last_event_of_each_client(seed: int) -> None:
    trace, net = drawn(seed), line()
    for moment in (0.0, 0.2, 0.5, 0.8, 2.0):
        home, there = net.home.tolist(), [True] * 8
        for when, who, server, takes in zip(
            trace.when, trace.who, trace.server, trace.there, strict=True
        ):
            if when <= moment:
                home[who] = home[who] if server == UNCHANGED else server
                there[who] = there[who] if takes == UNCHANGED else bool(takes)
        now = trace.at(net, 0, moment)
        assert now.home.tolist() == [h if t else -1 for h, t in zip(home, there, strict=True)]
        counts = np.array([sum(net.samples[i] for i in range(8) if home[i] == d) for d in range(4)])
        assert now.mass == pytest.approx(counts / counts.sum())
        # Mixing keeps the mean of all data, and servers without clients rest.
        assert now.mass @ now.mixing == pytest.approx(now.mass)
        assert all(now.mixing[d, d] == 1 for d in range(4) if not counts[d])
        assert trace.at(net, 99, moment) is now  # it is a function of the time alone
        up = Outages(clients=trace).at(net, 0, moment)
        assert up.net is now
        assert up.up.all()  # a server without clients is not down


def test_a_server_to_which_somebody_comes_copies_the_nearest_that_had_clients() -> None:
    net, away = line(), ["round,client,server"]
    away += [f"1,{i},0" for i in range(2, 8)]  # all go to the first server, then one to the last
    trace = read_whereabouts("\n".join([*away, "5,7,3"]), "t.csv", 8, net)
    first, gathered, later = (trace.at(net, k, 0.0) for k in (0, 1, 5))
    assert woken(first, gathered) == {}
    assert woken(gathered, later) == {3: 0}
    assert (handovers(first, gathered), handovers(gathered, later)) == (6, 1)


def test_a_trace_with_a_period_begins_again() -> None:
    trace = Whereabouts(np.array([2.0]), np.array([0]), np.array([1]), np.array([1]), period=3.0)
    homes = [int(trace.at(line(), 0, s).home[0]) for s in (0.0, 1.9, 2.0, 2.9, 3.0, 4.9, 5.5)]
    assert homes == [0, 0, 1, 1, 0, 0, 1]
    assert trace.will_change(0, 1e9)


def test_clients_take_part_only_while_charging_and_on_wifi() -> None:
    text = "seconds,client,charging,wifi\n1,0,0,1\n2,0,1,0\n3,0,-,1\n"
    trace = read_whereabouts(text, "t.csv", 8, line())
    assert trace.there.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "t.csv has no events"),
        ("seconds,client,server\n", "t.csv has no events"),
        ("seconds,client,sever\n1,0,1\n", "names a column 'sever': columns are seconds"),
        ("client,server\n0,1\n", "must name `seconds` or `round`"),
        ("seconds,client\n1,0\n", "says neither where clients are nor whether they take part"),
        ("seconds,client,longitude\n1,0,3\n", "has only one of longitude and latitude"),
        ("seconds,client,server\n1,0\n", "line 2 of t.csv has 2 values for 3 columns"),
        ("# cells\nseconds,client,server\n\nx,0,1\n", "line 4 of t.csv gives 'x' as seconds"),
        ("seconds,client,server\n-1,0,1\n", "line 2 of t.csv gives '-1' as seconds"),
        ("seconds,client,server\n1,8,1\n", "line 2 of t.csv names client '8', but clients are 0"),
        ("seconds,client,server\n1,0,4\n", "line 2 of t.csv names server '4', but servers are 0"),
        ("seconds,client,available\n1,0,yes\n", "line 2 of t.csv gives 'yes' as available"),
        ("seconds,client,longitude,latitude\n1,0,200,3\n", "line 2 of t.csv gives '200,3' as"),
        ("seconds,client,longitude,latitude\n1,0,20,3\n", "but no file says where servers are"),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(InputError) as told:
        read_whereabouts(text, "t.csv", 8, line())
    assert words in str(told.value)


def test_a_position_belongs_to_the_nearest_server() -> None:
    net = replace(line(), places=((-122.3, 47.6), (-104.9, 39.7), (-87.6, 41.8), (-77.0, 38.9)))
    text = "seconds,client,longitude,latitude\n0,0,-76.6,39.3\n9,0,-122.7,45.5\n"
    assert read_whereabouts(text, "walk.csv", 8, net).server.tolist() == [3, 0]
