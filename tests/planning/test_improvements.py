"""What a planner says to improve first is what holds rounds up."""

from dataclasses import replace
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest

from sdfeel.core.cost import Cost, Overheads
from sdfeel.core.decide import Decisions
from sdfeel.core.link_times import Link
from sdfeel.core.network import clustered
from sdfeel.core.scheme import Scheme
from sdfeel.planning.improvements import improvements
from sdfeel.planning.result import Improvement, Site
from sdfeel.schemes import FedAvg, HierFavg, SDFeel

RATES = dict.fromkeys(get_args(Link), 1e6)
LINE = np.diag(np.ones(3), 1) + np.diag(np.ones(3), -1)
NET = clustered(np.ones(8), [0, 0, 1, 1, 2, 2, 3, 3], LINE)
SITE = Site(tuple(NET.edges), 4, names=("Oslo", "Bergen", "Narvik", "Alta"))


def first(scheme: Scheme, **prices: object) -> Improvement:
    """A step takes a millisecond, and so does a model on any link, unless told otherwise."""
    usual = Cost(np.full(8, 1e-3), 1e3, RATES)
    own = Decisions.of(scheme, NET, replace(usual, **prices))  # type: ignore[arg-type]
    found = improvements(own, 1, SITE)
    assert all(a.gain >= b.gain for a, b in pairwise(found))
    return found[0]


def test_the_slowest_device_comes_first_and_its_gain_is_exact() -> None:
    steps = np.full(8, 1e-3)
    steps[5] = 0.1
    found = first(SDFeel(tau1=1), step_seconds=steps)
    # All devices together gain as much as this one alone: 100 of 102 ms are halved.
    assert found.gain == pytest.approx(50 / 102)
    single = improvements(
        Decisions.of(SDFeel(tau1=1), NET, Cost(steps, 1e3, RATES)),
        1,
        SITE,
    )
    assert single[1] == Improvement("the device of client 5", single[0].gain, (2,), 5)


def test_a_slow_link_between_servers_is_named_by_its_ends() -> None:
    rates = LINE.copy()
    rates[1, 2] = rates[2, 1] = 0.01
    found = improvements(
        Decisions.of(
            SDFeel(tau1=1),
            NET,
            replace(Cost(np.full(8, 1e-3), 1e3, RATES), server_rates=rates),
        ),
        1,
        SITE,
    )
    named = next(each for each in found if each.servers)
    assert (named.what, named.servers) == ("the link between Bergen and Narvik", (1, 2))
    assert named.gain == pytest.approx(50 / 102)


def test_a_far_link_is_improved_by_a_shorter_way() -> None:
    delays = 1e-3 * LINE
    delays[2, 3] = delays[3, 2] = 0.1
    found = first(SDFeel(tau1=1), overheads=Overheads(server_delays=delays))
    assert found.what in (
        "the delay of all links between servers",
        "the delay of the link between Narvik and Alta",
    )


@pytest.mark.parametrize(
    ("scheme", "what"),
    [
        (FedAvg(tau1=1), "all links from clients to the cloud"),
        (HierFavg(tau1=1, tau2=1), "all links from servers to the cloud"),
    ],
)
def test_only_links_that_a_scheme_uses_are_named(scheme: Scheme, what: str) -> None:
    slow = {"client-server": 1e6, "server-server": 1.0, "server-cloud": 1e4, "client-cloud": 1e4}
    assert first(scheme, rates=slow).what == what
