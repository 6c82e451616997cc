"""The planner's prices are the simulator's clock."""

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.graphs import links
from sdfeel.core.network import clustered
from sdfeel.core.scheme import Lane, Scheme
from sdfeel.core.stragglers import StragglerPolicy
from sdfeel.planning.ranking import pace
from sdfeel.schemes import AsyncSDFeel, FedAvg, HierFavg, SDFeel
from sdfeel.sim.simulate import Simulation
from tests.quadratic import quadratic

RATES = {"client-server": 5e6, "server-server": 50e6, "server-cloud": 4e6, "client-cloud": 2.5e6}
NET = clustered(np.arange(1.0, 13.0), [i % 4 for i in range(12)], links("ring", 4))
COST = Cost(np.linspace(0.01, 0.05, 12), 1e6, RATES)  # type: ignore[arg-type]


def simulation(
    scheme: Scheme, cost: Cost = COST, late: StragglerPolicy | None = None
) -> Simulation:
    engine = quadratic(np.arange(12.0), np.arange(1, 13), 0.01)
    return Simulation(Decisions.of(scheme, NET, cost, late=late), engine)


@pytest.mark.parametrize(
    ("scheme", "cycle"),
    [(SDFeel(2, 3, 2), 3), (SDFeel(5, 1, 1), 1), (HierFavg(3, 2), 2), (FedAvg(4), 1)],
)
def test_whole_cycles_take_as_long_as_the_simulator_says(scheme: Scheme, cycle: int) -> None:
    found = pace(Decisions.of(scheme, NET, COST), cycle)
    running = simulation(scheme)
    rounds = list(islice(running, 4 * cycle))
    assert running.state.seconds == pytest.approx(found.seconds * running.state.iterations)
    assert found.period == pytest.approx(running.state.seconds / 4)
    assert running.state.bytes == pytest.approx(found.bytes * running.state.iterations)
    assert running.state.joules == pytest.approx(found.joules * running.state.iterations)
    for part, share in found.shares.items():
        spent = sum(done.phases[part] for done in rounds)
        assert share == pytest.approx(spent / running.state.seconds)


@pytest.mark.parametrize("theta_min", [1, 4])
def test_lanes_side_by_side_advance_as_fast_as_the_simulator_says(theta_min: int) -> None:
    scheme = AsyncSDFeel(theta_min)
    found = pace(Decisions.of(scheme, NET, COST))
    running = simulation(scheme)
    for _ in islice(running, 800):
        pass
    assert running.state.seconds / running.state.iterations == pytest.approx(
        found.seconds, rel=0.02
    )
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.steps >= theta_min


@dataclass(frozen=True, eq=False)
class Outages(Cost):
    """Links that are twice as fast in every other round."""

    def at(self, lane: Lane, k: int, seconds: float) -> Cost:
        rates = {link: rate * (1 + k % 2) for link, rate in self.rates.items()}
        return replace(COST, rates=rates)


def test_prices_that_change_are_averaged_over_many_rounds() -> None:
    cost = Outages(COST.step_seconds, COST.model_bits, COST.rates)
    found = pace(Decisions.of(SDFeel(5, 1, 1), NET, cost))
    running = simulation(SDFeel(5, 1, 1), cost)
    for _ in islice(running, 40):
        pass
    assert running.state.seconds / running.state.iterations == pytest.approx(found.seconds)


@pytest.mark.parametrize(
    "late",
    [StragglerPolicy("drop", 0.32), StragglerPolicy("drop", 0.01), StragglerPolicy("equalise")],
)
def test_what_is_done_about_late_clients_is_in_the_price(late: StragglerPolicy) -> None:
    found = pace(Decisions.of(SDFeel(5, 2, 1), NET, COST, late=late), cycle=2)
    running = simulation(SDFeel(5, 2, 1), late=late)
    for _ in islice(running, 8):
        pass
    assert found.seconds != pace(Decisions.of(SDFeel(5, 2, 1), NET, COST), cycle=2).seconds
    assert found.period == pytest.approx(running.state.seconds / 4)
    if running.state.iterations:
        assert found.seconds == pytest.approx(running.state.seconds / running.state.iterations)
    else:
        assert found.seconds > 1e6  # nobody ever meets this deadline
