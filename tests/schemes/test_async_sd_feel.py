"""Asynchronous SD-FEEL against the specification's part B."""

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.mixing import star
from sdfeel.core.network import Network, clustered
from sdfeel.core.staleness import PSI, Clocks, trust
from sdfeel.schemes import AsyncSDFeel
from sdfeel.sim.simulate import Simulation
from tests.quadratic import quadratic

SAMPLES, CENTRES = [30, 10, 20, 25, 15], [1, -1, 2, 0, 4]
NET = clustered(SAMPLES, [0, 0, 1, 2, 2], links("path", 3))
STEPS = 1 / np.array([10.0, 20, 5, 10, 40])
RATES = {"client-server": 20e6, "server-server": 100e6, "server-cloud": 1e6, "client-cloud": 1e6}
PRICE = Cost(STEPS, 1e6, RATES)  # type: ignore[arg-type]
EXAMPLE = AsyncSDFeel(deadline=(0.2, 0.4, 0.3))


def simulation(scheme: AsyncSDFeel = EXAMPLE, net: Network = NET, rate: float = 0.1) -> Simulation:
    return Simulation(Decisions.of(scheme, net, PRICE), quadratic(CENTRES, SAMPLES, rate))


def test_the_worked_example(vectors: Any) -> None:
    """Specification B4: times, order and models of eight events."""
    example = vectors["async_example"]
    own = simulation()
    assert [each.ends for each in own.state.lanes] == pytest.approx(example["T_iter"])
    for step in example["trace"]:
        ages = own.state.clocks.ages(step["d"], "global")
        assert ages.tolist() == step["delta"]
        done = next(own)
        assert done.lane == (step["d"],)
        assert done.number == step["t"]
        assert done.seconds == pytest.approx(step["clock"])
        np.testing.assert_allclose(own.state.servers[:, 0], step["y"], atol=1e-11)
    assert own.model().item() == pytest.approx(example["output"], abs=1e-11)


def test_the_worked_examples_derived_quantities() -> None:
    own = simulation(AsyncSDFeel(theta_min=2))
    done = [own._decided(each).done(len(own.state.taken)).tolist() for each in own.state.lanes]
    assert done == [[2, 4, 0, 0, 0], [0, 0, 2, 0, 0], [0, 0, 0, 2, 8]]
    deadlines = [own._decided(each)[0].deadline for each in own.state.lanes]
    assert deadlines == pytest.approx([0.2, 0.4, 0.2])


@pytest.mark.parametrize(
    ("options", "vector"),
    [
        ({"psi": "constant"}, "async_vanilla_output"),
        ({"balanced": True}, "async_balanced_output"),
        ({"staleness": "touched"}, "async_gapany_output"),
    ],
)
def test_the_variants_of_the_worked_example(
    vectors: Any, options: dict[str, Any], vector: str
) -> None:
    own = simulation(replace(EXAMPLE, **options))
    for _ in islice(own, 8):
        pass
    assert own.model().item() == pytest.approx(vectors[vector], abs=1e-11)


def test_the_papers_example_of_a_mixing_matrix() -> None:
    matrix = star(NET, 0, trust("paper", np.array([0, 2, 5]))).dense(3)
    np.testing.assert_allclose(matrix, [[0.75, 0.25, 0], [0.25, 0.75, 0]])


@given(
    ages=st.lists(st.integers(0, 50), min_size=6, max_size=6),
    centre=st.integers(0, 5),
    psi=st.sampled_from(sorted(PSI)),
    sizes=st.lists(st.integers(1, 9), min_size=6, max_size=6),
)
def test_the_star_is_doubly_stochastic_and_the_balanced_one_keeps_the_weighted_mean(
    ages: list[int], centre: int, psi: str, sizes: list[int]
) -> None:
    net = clustered(sizes, range(6), links("partial", 6))
    counts = trust(psi, np.array(ages), 0.7, 3.0)
    near, clocks = (
        net.neighbourhood(centre),
        replace(Clocks.fresh(6), number=50, led=np.array(ages)),
    )
    alone, whole = clocks.ages(centre, "global", near), clocks.ages(centre, "global")
    assert alone.tolist() == whole[near].tolist()  # only neighbours need to be looked at
    assert trust(psi, alone, 0.7, 3.0).tolist() == trust(psi, whole, 0.7, 3.0)[near].tolist()
    for balanced in (False, True):
        mixing = star(net, centre, counts, balanced)
        matrix = np.eye(6)
        matrix[mixing.rows] = mixing.dense(6)
        np.testing.assert_allclose(matrix.sum(axis=1), 1)
        assert (matrix >= -1e-12).all()
        if balanced:
            np.testing.assert_allclose(net.mass @ matrix, net.mass)
        else:
            np.testing.assert_allclose(matrix, matrix.T)


@pytest.mark.parametrize("psi", sorted(PSI))
def test_older_models_never_count_more(psi: str) -> None:
    counts = trust(psi, np.arange(100))
    assert (np.diff(counts) <= 0).all()
    assert (counts > 0).all()


def test_one_server_is_normalised_averaging() -> None:
    """With no neighbours it is FedNova: steps differ, the mean update is scaled to the mean."""
    alone = clustered(SAMPLES, [0] * 5, links("ring", 1))
    own = simulation(AsyncSDFeel(theta_min=2), alone)
    next(own)
    steps = np.floor(0.4 / STEPS * (1 + 1e-12))
    shares = np.array(SAMPLES) / 100
    moves = np.array(CENTRES) * (1 - 0.9**steps) / steps
    expected = (shares @ steps) * (shares @ moves)
    assert own.model().item() == pytest.approx(expected, abs=1e-12)


def test_a_deadline_that_is_too_short_still_lets_everyone_take_a_step() -> None:
    own = simulation(AsyncSDFeel(deadline=0.001))
    assert [own._decided(each).steps.max() >= 1 for each in own.state.lanes] == [True] * 3
    assert next(own).clients >= 1


def test_ties_go_to_the_lower_server() -> None:
    equal = clustered([1] * 4, range(4), links("ring", 4))
    price = Cost(np.ones(4), 1e6, RATES)  # type: ignore[arg-type]
    own = Simulation(
        Decisions.of(AsyncSDFeel(), equal, price), quadratic([1, 2, 3, 4], [1] * 4, 0.1)
    )
    assert [next(own).lane[0] for _ in range(12)] == [0, 1, 2, 3] * 3


@pytest.mark.slow
def test_the_corrected_bound_on_staleness_holds() -> None:
    for seed in range(10):
        draws = np.random.default_rng(seed)
        servers = int(draws.integers(2, 8))
        net = clustered([1] * servers, range(servers), links("complete", servers))
        price = Cost(draws.uniform(0.1, 3, servers), 1e6, RATES)  # type: ignore[arg-type]
        engine = quadratic(np.zeros(servers), np.ones(servers), 0.1)
        own = Simulation(Decisions.of(AsyncSDFeel(theta_min=1), net, price), engine)
        lengths = np.array([each.ends for each in own.state.lanes])
        slowest = int(lengths.argmax())
        bound = sum(np.ceil(lengths[slowest] / lengths[d]) for d in range(servers) if d != slowest)
        for _ in range(150):
            nearest = min(own.state.lanes, key=lambda each: (each.ends, each.lane))
            assert own.state.clocks.ages(nearest.lane[0], "global").max() <= bound + 1
            next(own)


def test_hearsay_never_knows_more_than_there_is() -> None:
    clocks = Clocks.fresh(4)
    draws = np.random.default_rng(0)
    for _ in range(200):
        leader = int(draws.integers(4))
        around = np.array([(leader - 1) % 4, leader, (leader + 1) % 4])
        clocks = clocks.after(np.array([leader]), around)
        assert (clocks.stamp <= clocks.number).all()
        assert (clocks.hearsay <= clocks.stamp[:, None]).all()
        assert (clocks.ages(leader, "hearsay") >= 0).all()
        assert clocks.ages(leader, "hearsay")[leader] == 0


def test_on_a_complete_graph_hearsay_is_the_global_counter() -> None:
    clocks = Clocks.fresh(3)
    for leader in (0, 2, 1, 1, 0, 2, 2, 0):
        assert (clocks.ages(leader, "hearsay") == clocks.ages(leader, "global")).all()
        clocks = clocks.after(np.array([leader]), np.arange(3))


@pytest.mark.slow
def test_fast_clusters_pull_the_fixed_point_and_balancing_repairs_only_the_sizes() -> None:
    """Specification B5: the long-run output at a small step size.

    On quadratics the way there shrinks by the same factor from window to window of events, as soon
    as the fast modes are gone: three windows tell where it ends (Aitken's extrapolation).
    """

    def settled(**options: Any) -> float:
        own = simulation(replace(EXAMPLE, **options), rate=0.002)
        outputs = np.array([own.model().item() for _ in islice(own, 600)])
        _, a, b, c = outputs.reshape(4, 150).mean(axis=1)
        return float(c - (c - b) ** 2 / ((c - b) - (b - a)))

    assert settled() == pytest.approx(1.2586, abs=2e-3)
    assert settled(balanced=True) == pytest.approx(1.2015, abs=2e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline": 0.0}, "scheme.deadline must be above 0 seconds, got 0"),
        ({"psi": "polynomial", "psi_a": 0.0}, "scheme.psi_a must be above 0, got 0"),
        ({"psi": "papper"}, "unknown scheme.psi 'papper': did you mean 'paper'"),
        ({"theta_min": 0}, "scheme.theta_min must be at least 1, got 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AsyncSDFeel(**options)


def test_a_deadline_per_server_must_fit_the_servers() -> None:
    with pytest.raises(InputError, match="gives 2 numbers for 3 servers"):
        simulation(AsyncSDFeel(deadline=(0.1, 0.2)))


def test_its_first_round_from_equal_speeds_is_plain_averaging() -> None:
    price = Cost(np.ones(5), 1e6, RATES)  # type: ignore[arg-type]
    engine = quadratic(CENTRES, SAMPLES, 0.1)
    own = Simulation(Decisions.of(AsyncSDFeel(theta_min=3), NET, price), engine)
    plan = own._decided(own.state.lanes[0])
    np.testing.assert_allclose(plan[2].up.weights, [0.75, 0.25])
    assert torch.equal(own.state.lanes[0].base, torch.zeros(1, 1, dtype=torch.float64))  # type: ignore[arg-type]
