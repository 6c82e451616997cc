"""The scheme tiers, where all servers are equally fast, and where all differ."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.arrays import floats
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.mixing import star
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Scheme, Setting
from sdfeel.core.scheme_needs import Needs
from sdfeel.schemes import SDFeel, Tiers
from sdfeel.schemes.server_optimizers import ServerStep, stepped
from sdfeel.sim.simulate import Simulation
from tests.sim.test_simulate import cost, uneven

CLIENTS = 12


def net(graph: str = "ring", equal: bool = False) -> Network:
    samples = np.ones(CLIENTS) if equal else np.arange(1.0, CLIENTS + 1)
    return clustered(samples, [i % 4 for i in range(CLIENTS)], links(graph, 4))


def models(scheme: Scheme, rounds: int, own: Cost | None = None) -> Any:
    simulation = Simulation(Decisions.of(scheme, net(), own or cost(CLIENTS)), uneven())
    for _ in range(rounds):
        next(simulation)
    return simulation.state.models[:4]


def tiers_of(scheme: Tiers, step_seconds: list[float]) -> tuple[tuple[int, ...], ...]:
    """The lanes of servers 0 to 3, whose three clients all take this long."""
    seconds = np.array([step_seconds[i % 4] for i in range(CLIENTS)])
    return scheme.lanes(Setting(scheme.adapt(net()), seconds))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_equal_speeds_make_it_sd_feel_with_quasi_global_momentum(momentum: float) -> None:
    plain = SDFeel(tau1=3)
    same = stepped(plain, ServerStep("quasi-global", momentum=momentum)) if momentum else plain
    ours = models(Tiers(theta_min=3, momentum=momentum), 7)
    torch.testing.assert_close(ours, models(same, 7))


def test_without_momentum_and_tiers_it_is_vanilla_without_division() -> None:
    """Plain averages of updates, then the star of constant weights that keeps the mean."""
    scheme, own = Tiers(theta_min=2, tier=0.0, momentum=0.0), net()
    decisions = Decisions.of(scheme, own, cost(CLIENTS))
    assert decisions.lanes == ((0,), (1,), (2,), (3,))
    for number in range(4):
        view = decisions.view(number)
        done = np.where(own.home == number, 2 + np.arange(CLIENTS) % 5, 0)
        mix = scheme.mix(view, done)
        mine = np.flatnonzero(own.home == number)
        shares = own.samples[mine] / own.samples[mine].sum()
        assert mix.up.row(number) == pytest.approx(dict(zip(mine.tolist(), shares, strict=True)))
        (stage,) = mix.stages
        assert stage.dense(4) == pytest.approx(
            star(own, number, np.ones(4), balanced=True).dense(4)
        )


def test_servers_whose_rounds_last_about_as_long_share_a_tier() -> None:
    assert tiers_of(Tiers(), [1, 1, 1, 1]) == ((0, 1, 2, 3),)
    assert tiers_of(Tiers(), [1, 4, 1.1, 4.2]) == ((0, 2), (1, 3))
    assert tiers_of(Tiers(tier=0.05), [1, 4, 1.1, 4.1]) == ((0,), (1, 3), (2,))
    assert tiers_of(Tiers(tier=0), [1, 1, 1, 1]) == ((0,), (1,), (2,), (3,))


def test_one_tier_for_all_keeps_fast_clients_busy_and_can_be_deployed() -> None:
    slow = floats(1.0 + np.arange(CLIENTS))
    own, scheme = replace(cost(CLIENTS), step_seconds=slow), Tiers(tier=1000)
    decisions = Decisions.of(scheme, net(), own)
    assert decisions.lanes == ((0, 1, 2, 3),)
    assert not any(asdict(Needs.of(decisions)).values())
    done = decisions.round(0, 0).done
    assert done[-1] == scheme.theta_min
    assert done[0] == CLIENTS * scheme.theta_min


@given(st.lists(st.floats(0.1, 10), min_size=4, max_size=4), st.floats(0, 2))
def test_every_server_is_in_one_tier_and_nobody_in_it_waits_long(
    speeds: list[float], tier: float
) -> None:
    found = tiers_of(Tiers(tier=tier), speeds)
    assert sorted(d for lane in found for d in lane) == [0, 1, 2, 3]
    for lane in found:
        lasting = [speeds[d] for d in lane]
        assert max(lasting) <= (1 + tier) * min(lasting) * (1 + 1e-9)


@pytest.mark.parametrize("graph", ["ring", "star", "complete"])
@pytest.mark.parametrize("lane", [(0,), (0, 1), (1, 2, 3), (0, 1, 2, 3)])
def test_any_tier_keeps_the_mean_weighted_by_data(graph: str, lane: tuple[int, ...]) -> None:
    scheme, own = Tiers(momentum=0.0), net(graph)
    decisions = Decisions.of(scheme, own, cost(CLIENTS))
    view = decisions.view(0)
    done = np.where(np.isin(own.home, lane), 3, 0)
    object.__setattr__(view, "lane", lane)
    (stage,) = scheme.mix(view, done).stages
    matrix = np.eye(4)
    matrix[stage.rows] = stage.dense(4)
    np.testing.assert_allclose(own.mass @ matrix, own.mass, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)


def test_a_momentum_of_one_would_never_stop() -> None:
    with pytest.raises(InputError, match="momentum must be at least 0 and below 1, got 1"):
        Tiers(momentum=1.0)
