"""The simulator against the specification: worked examples, degenerate cases, closed forms."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.arrays import Floats
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.events import Evaluated, Finished, Round
from sdfeel.core.graphs import links
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Scheme, one_server
from sdfeel.run.drive import Drive, Goals
from sdfeel.schemes import FedAvg, Feel, HierFavg, SDFeel
from sdfeel.sim.simulate import Simulation
from tests.examples import examples
from tests.quadratic import QuadraticEngine, quadratic
from tests.sim.variants import Ending, Own, SlowlyFollowing

RATES = {"client-server": 5e6, "server-server": 50e6, "server-cloud": 5e6, "client-cloud": 2.5e6}


def cost(clients: int, step: float = 0.01, bits: float = 1e6) -> Cost:
    return Cost(np.full(clients, step), bits, RATES)  # type: ignore[arg-type]


def after(scheme: Scheme, net: Network, engine: QuadraticEngine, rounds: int) -> Simulation:
    simulation = Simulation(Decisions.of(scheme, net, cost(len(net.samples))), engine)
    for _ in islice(simulation, rounds):
        pass
    return simulation


def uneven(seed: int = 0, clients: int = 12, dimension: int = 3) -> QuadraticEngine:
    """Different curvatures, so that the schedule matters."""
    draws = np.random.default_rng(seed)
    engine = quadratic(draws.normal(size=(clients, dimension)), np.arange(1, clients + 1), 0.05)
    engine.curvature = torch.from_numpy(draws.uniform(0.2, 2, size=(clients, dimension)))
    return engine


def ring_of_four(graph: str = "ring") -> Network:
    return clustered(np.arange(1.0, 13.0), [i % 4 for i in range(12)], links(graph, 4))


def test_the_worked_example(vectors: Any) -> None:
    """Specification A6, every aggregation of it."""
    example = vectors["sync_example"]
    net = clustered(example["n"], example["cluster"], links("path", 3))
    engine = quadratic(example["c"], example["n"], example["eta"])
    scheme = SDFeel(example["tau1"], example["tau2"], example["alpha"])
    simulation = Simulation(Decisions.of(scheme, net, cost(4)), engine)
    for step in (s for s in example["trace"] if s["event"] != "local"):
        done = next(simulation)
        assert done.iterations == step["k"]
        reached = simulation.state.servers[net.home.tolist(), 0]
        np.testing.assert_allclose(reached, step["w"], atol=1e-11)
        assert simulation.model().item() == pytest.approx(step["u"], abs=1e-11)
    assert simulation.model().item() == pytest.approx(example["output"], abs=1e-11)


def test_one_server_is_fedavg() -> None:
    alone = clustered(np.arange(1.0, 13.0), [0] * 12, links("ring", 1))
    ours = after(SDFeel(tau1=3, tau2=2, alpha=4), alone, uneven(), 10)
    theirs = after(FedAvg(tau1=3), ring_of_four(), uneven(), 10)
    assert torch.equal(ours.model(), theirs.model())


@pytest.mark.parametrize("graph", ["ring", "complete", "star"])
def test_endless_gossip_is_hierfavg(graph: str) -> None:
    ours = after(SDFeel(tau1=2, tau2=3, alpha=200), ring_of_four(graph), uneven(), 9)
    theirs = after(HierFavg(tau1=2, tau2=3), ring_of_four(graph), uneven(), 9)
    torch.testing.assert_close(ours.state.servers, theirs.state.servers, rtol=0, atol=1e-12)


def test_hierfavg_that_always_meets_is_fedavg() -> None:
    ours = after(HierFavg(tau1=3, tau2=1), ring_of_four(), uneven(), 9)
    theirs = after(FedAvg(tau1=3), ring_of_four(), uneven(), 9)
    torch.testing.assert_close(ours.model(), theirs.model(), rtol=0, atol=1e-14)


def test_meeting_after_every_step_is_centralised_sgd() -> None:
    engine = uneven()
    equal = clustered([1] * 12, [i % 4 for i in range(12)], links("complete", 4))
    ours = after(SDFeel(tau1=1, tau2=1, alpha=1), equal, engine, 25)
    model = engine.initial()
    for _ in range(25):
        slopes = torch.as_tensor(engine.curvature) * (model - engine.centres)
        model = model - engine.rate * slopes.mean(dim=0)
    torch.testing.assert_close(ours.model(), model, rtol=0, atol=1e-13)


def test_a_server_per_client_is_decentralised_local_sgd() -> None:
    engine = uneven(clients=5)
    net = clustered(np.arange(1.0, 6.0), range(5), links("ring", 5))
    ours = after(SDFeel(tau1=2, tau2=1, alpha=3), net, engine, 8)
    power = torch.from_numpy(np.linalg.matrix_power(net.mixing, 3))
    models = engine.initial().repeat(5, 1)
    for _ in range(8):
        for _ in range(2):
            slopes = torch.as_tensor(engine.curvature) * (models - engine.centres)
            models = models - engine.rate * slopes
        models = power @ models
    torch.testing.assert_close(ours.state.servers, models, rtol=0, atol=1e-13)


@examples(20)
@given(
    tau1=st.integers(1, 4),
    tau2=st.integers(1, 3),
    alpha=st.integers(1, 4),
    graph=st.sampled_from(["ring", "star", "path", "complete"]),
    seed=st.integers(0, 99),
)
def test_isotropic_quadratics_do_not_see_the_schedule(
    tau1: int, tau2: int, alpha: int, graph: str, seed: int
) -> None:
    centres = np.random.default_rng(seed).normal(size=(12, 2))
    engine = quadratic(centres, np.arange(1, 13), 0.1)
    simulation = after(SDFeel(tau1, tau2, alpha), ring_of_four(graph), engine, 4 * tau2)
    middle = engine.weights @ engine.centres
    expected = middle - (1 - engine.rate) ** (4 * tau2 * tau1) * middle
    torch.testing.assert_close(simulation.model(), expected, rtol=0, atol=1e-12)


def matrix_form(net: Network, engine: QuadraticEngine, scheme: SDFeel, steps: int) -> Floats:
    """The specification's W_{k+1} = (W_k - eta G_k) T_k, models as columns."""
    clients, servers = len(net.samples), len(net.servers)
    inside, out = np.zeros((clients, servers)), np.zeros((servers, clients))
    for i, d in enumerate(net.home):
        inside[i, d] = net.samples[i] / net.samples[net.home == d].sum()
        out[d, i] = 1
    hop = np.linalg.matrix_power(net.mixing.T, scheme.alpha)
    models = np.zeros((engine.centres.shape[1], clients))
    curve = np.asarray(engine.curvature).T
    for k in range(1, steps + 1):
        models = models - engine.rate * curve * (models - engine.centres.numpy().T)
        if k % (scheme.tau1 * scheme.tau2) == 0:
            models = models @ inside @ hop @ out
        elif k % scheme.tau1 == 0:
            models = models @ inside @ out
    return models


@pytest.mark.parametrize("taus", [(1, 1, 1), (2, 3, 2), (5, 1, 4)])
def test_the_procedure_equals_the_matrix_form(taus: tuple[int, int, int]) -> None:
    scheme, net, engine = SDFeel(*taus), ring_of_four("path"), uneven(7)
    simulation = after(scheme, net, engine, 2 * scheme.tau2)
    expected = matrix_form(net, engine, scheme, 2 * scheme.tau1 * scheme.tau2)
    reached = simulation.state.servers[net.home.tolist()].numpy().T
    np.testing.assert_allclose(reached, expected, atol=1e-13)


K, STEP, BITS = 60, 0.0123, 7e5
T_CS, T_SS, T_SC, T_CC = BITS / 5e6, BITS / 50e6, BITS / 5e6, BITS / 2.5e6


@pytest.mark.parametrize(
    ("scheme", "per_iteration"),
    [
        (SDFeel(5, 2, 3), STEP + T_CS / 5 + 3 * T_SS / 10),
        (SDFeel(1, 1, 1), STEP + T_CS + T_SS),
        (HierFavg(3, 2), STEP + T_CS / 3 + T_SC / 6),
        (FedAvg(4), STEP + T_CC / 4),
        (Feel(2, scheduled=3), STEP + T_CS / 2),
    ],
)
def test_the_clock_equals_the_closed_formula(scheme: Scheme, per_iteration: float) -> None:
    simulation = Simulation(Decisions.of(scheme, ring_of_four(), cost(12, STEP, BITS)), uneven())
    done: Round | None = None
    for done in simulation:
        if done.iterations == K:
            break
    assert done is not None
    assert done.seconds == pytest.approx(K * per_iteration, rel=1e-12)


def test_bytes_equal_the_count_of_models_sent() -> None:
    simulation = after(SDFeel(5, 2, 3), ring_of_four(), uneven(), 6)
    models = 6 * (12 + 4) + 3 * 3 * 8  # uploads, broadcasts; meetings x hops x directed links
    assert simulation.state.bytes == models * 125_000


def test_feel_on_one_cell_never_learns_of_the_others() -> None:
    """Pool of one cell, all of it scheduled: FedAvg on that cell alone."""
    net = ring_of_four()
    cell = [0, 4, 8]  # clients of server 0
    engine = uneven()
    ours = after(Feel(tau1=2, scheduled=3, pool_size=3), net, engine, 12)
    part = QuadraticEngine(
        engine.centres[cell],
        engine.rate,
        engine.weights[cell],
        torch.as_tensor(engine.curvature)[cell],
    )
    small = clustered(net.samples[cell], [0, 0, 0], links("ring", 1))
    theirs = after(FedAvg(tau1=2), small, part, 12)
    torch.testing.assert_close(ours.model(), theirs.model(), rtol=0, atol=1e-14)
    assert ours.state.taken.nonzero()[0].tolist() == cell


def test_partial_participation_draws_afresh_each_round_and_reproducibly() -> None:
    def drawn(seed: int) -> list[list[int]]:
        simulation = Simulation(
            Decisions.of(FedAvg(1, participants=3), ring_of_four(), cost(12), seed), uneven()
        )
        found, before = [], simulation.state.taken
        for _ in islice(simulation, 5):
            found.append((simulation.state.taken - before).nonzero()[0].tolist())
            before = simulation.state.taken
        return found

    assert drawn(1) == drawn(1) != drawn(2)
    assert all(len(who) == 3 for who in drawn(1))
    assert len({tuple(who) for who in drawn(1)}) > 1


def test_the_spread_is_zero_when_servers_agree() -> None:
    assert after(HierFavg(2, 1), ring_of_four(), uneven(), 3).spread() == pytest.approx(
        0, abs=1e-15
    )
    assert after(SDFeel(2, 2, 1), ring_of_four(), uneven(), 3).spread() > 1e-3


def test_a_scheme_may_return_an_average_over_time() -> None:
    """Polyak's average: training itself is as before."""
    plain = Simulation(Decisions.of(SDFeel(tau1=2), ring_of_four(), cost(12)), uneven())
    decisions = Decisions.of(SlowlyFollowing(SDFeel(tau1=2), 0.25), ring_of_four(), cost(12))
    followed = Simulation(decisions, uneven())
    slow = plain.model()
    for _ in range(6):
        next(plain), next(followed)
        slow = 0.75 * slow + 0.25 * plain.model()
        np.testing.assert_allclose(followed.model(), slow, atol=1e-12)
        assert torch.equal(followed.state.servers, plain.state.servers)
        assert followed.spread() == plain.spread()


def test_a_scheme_may_return_a_model_of_every_client() -> None:
    """Then the mean of all, by their data, stands for them."""
    net = one_server(clustered([1, 2, 5], [0, 0, 0], links("ring", 1)))
    simulation = Simulation(Decisions.of(Own(FedAvg(tau1=1)), net, cost(3)), uneven(clients=3))
    next(simulation)
    np.testing.assert_allclose(simulation.model(), simulation.state.servers[0], atol=1e-12)
    own = simulation.state.models[simulation.net.shelf("own").tolist()]
    assert not torch.equal(own[0], own[1])
    np.testing.assert_allclose(simulation.model(), (own[0] + 2 * own[1] + 5 * own[2]) / 8)


def test_a_scheme_ends_a_run_and_has_figures_of_its_own() -> None:
    decisions = Decisions.of(Ending(SDFeel(tau1=2), 3), ring_of_four(), cost(12))
    simulation = Simulation(decisions, uneven())
    drive = Drive("ending", simulation, Goals(iterations=1000, evaluate_every=2))
    events = list(drive)
    rounds = [event for event in events if isinstance(event, Round)]
    assert [each.figures for each in rounds] == [{"round": n, "steps": 24} for n in (1, 2, 3)]
    measured = [event.metrics for event in events if isinstance(event, Evaluated)]
    assert measured == [{}, {"round": 2, "steps": 24}, {"round": 3, "steps": 24}]
    assert isinstance(events[-1], Finished)
    assert (events[-1].reason, events[-1].number) == ("enough", 3)
