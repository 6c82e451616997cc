"""Servers' own steps against their textbooks, in one line of NumPy each, and FedBuff."""

from dataclasses import replace
from itertools import islice
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from sdfeel.core.arrays import Floats
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import laplacian_weights, metropolis
from sdfeel.core.graphs import links
from sdfeel.core.network import Network, clustered
from sdfeel.core.outages import Outages
from sdfeel.core.scheme import Scheme, innermost
from sdfeel.core.scheme_needs import Needs
from sdfeel.core.sparse import Sparse
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.schemes import SCHEMES, DSquared, FedAsync, FedAvg, FedBuff, HierFavg, SDFeel
from sdfeel.schemes.lazy_mixing import calm, least_stable
from sdfeel.schemes.server_optimizers import ServerStep, stepped
from sdfeel.sim.simulate import Simulation
from tests.schemes.test_contract import CLIENTS, networks
from tests.sim.test_simulate import after, cost, ring_of_four, uneven

STEPS = {
    "momentum": ServerStep("momentum", 0.7, 0.5),
    "adam": ServerStep("adam", 0.05, 0.8),
    "yogi": ServerStep("yogi", 0.05, 0.8),
    "adagrad": ServerStep("adagrad", 0.1),
    "quasi-global": ServerStep("quasi-global", momentum=0.6),
}
every_step = pytest.mark.parametrize("name", STEPS)
Vector = Floats


def textbook(step: ServerStep, x: Vector, y: Vector, m: Vector, v: Vector) -> tuple[Vector, ...]:
    """Reddi et al., Algorithm 2, and Hsu et al., Section 4.3: from x towards y."""
    delta = y - x
    if step.optimizer == "momentum":
        m = step.beta * m + delta
        return x + step.pace * m, m, v
    m = step.beta * m + (1 - step.beta) * delta
    if step.optimizer == "adagrad":
        v = v + delta**2
    elif step.optimizer == "yogi":
        v = v - (1 - step.beta2) * delta**2 * np.sign(v - delta**2)
    else:
        v = step.beta2 * v + (1 - step.beta2) * delta**2
    return x + step.pace * m / (np.sqrt(v) + step.tau), m, v


def averaged(engine: Any, net: Network, x: Vector, tau1: int, d: int | None = None) -> Vector:
    """What the clients of a server, or of all, make of a model on average."""
    who = net.clients if d is None else np.flatnonzero(net.home == d)
    curvature = engine.curvature.numpy()[who]
    decay = (1 - engine.rate * curvature) ** tau1
    ends = engine.centres.numpy()[who] + decay * (x - engine.centres.numpy()[who])
    return np.asarray(np.average(ends, axis=0, weights=net.samples[who]))


@pytest.mark.parametrize("name", ["momentum", "adam", "yogi", "adagrad"])
def test_fedavg_with_a_step_is_the_textbooks(name: str) -> None:
    net, engine, step = ring_of_four(), uneven(), STEPS[name]
    x = m = v = np.zeros(3)
    for _ in range(8):
        x, m, v = textbook(step, x, averaged(engine, net, x, 4), m, v)
    found = after(stepped(FedAvg(tau1=4), step), net, engine, 8)
    assert_allclose(found.model().numpy(), x, rtol=1e-9)


@pytest.mark.parametrize("name", ["momentum", "adam", "yogi", "adagrad"])
def test_each_server_steps_towards_what_gossip_gave_it(name: str) -> None:
    net, engine, step = ring_of_four(), uneven(), STEPS[name]
    x, m, v = np.zeros((4, 3)), np.zeros((4, 3)), np.zeros((4, 3))
    for _ in range(6):
        ends = np.stack([averaged(engine, net, x[d], 2, d) for d in range(4)])
        x, m, v = textbook(step, x, net.mixing @ ends, m, v)
    found = after(stepped(SDFeel(tau1=2), step), net, engine, 6)
    assert_allclose(found.state.servers.numpy(), x, rtol=1e-9)


def test_quasi_global_momentum_is_lins() -> None:
    """QG-DSGDm: x_half = y + beta q; x' = W x_half; q' = beta q + (1 - beta) (x' - x)."""
    net, engine, beta = ring_of_four(), uneven(), 0.6
    x, q = np.zeros((4, 3)), np.zeros((4, 3))
    for _ in range(6):
        ends = np.stack([averaged(engine, net, x[d], 1, d) for d in range(4)])
        new = net.mixing @ (ends + beta * q)
        x, q = new, beta * q + (1 - beta) * (new - x)
    found = after(stepped(SDFeel(tau1=1), STEPS["quasi-global"]), net, engine, 6)
    assert_allclose(found.state.servers.numpy(), x, rtol=1e-9)


def test_momentum_on_d2_comes_before_mixing() -> None:
    """The published rule with the step u in place of the gradient's: X' = W (2X - X- + u - u-)."""
    net, engine, step = ring_of_four(), uneven(), STEPS["momentum"]
    x, m = np.zeros((4, 3)), np.zeros((4, 3))
    trained = before = x
    weights = (np.eye(4) + net.mixing) / 2
    least = np.linalg.eigvals(net.mixing).real.min()
    weights = net.mixing if least > -1 / 3 else weights
    for _ in range(6):
        ends = np.stack([averaged(engine, net, x[d], 1, d) for d in range(4)])
        trained, m, _ = textbook(step, x, ends, m, m)
        x, before = weights @ (x + trained - before), trained
    found = after(stepped(DSquared(), step), net, engine, 6)
    assert_allclose(found.state.servers.numpy(), x, rtol=1e-9)


@pytest.mark.parametrize("kind", ["momentum", "quasi-global"])
@pytest.mark.parametrize("scheme", [FedAvg(), SDFeel(tau2=2), HierFavg(), DSquared(), FedAsync()])
def test_without_momentum_and_at_rate_one_nothing_changes(kind: Any, scheme: Scheme) -> None:
    for net in networks():
        engine, same = uneven(), stepped(scheme, ServerStep(kind, 1.0, 0.0))
        one, other = after(scheme, net, engine, 9), after(same, net, engine, 9)
        assert torch.equal(one.state.servers, other.state.servers)
        assert one.state.bytes == other.state.bytes
        assert one.state.seconds == other.state.seconds


@every_step
def test_servers_step_only_in_rounds_in_which_they_meet(name: str) -> None:
    net, engine = ring_of_four(), uneven()
    one = after(SDFeel(2, 3), net, engine, 2)
    other = after(stepped(SDFeel(2, 3), STEPS[name]), net, engine, 2)
    assert torch.equal(one.state.servers, other.state.servers)
    for each in (one, other):
        for _ in islice(each, 4):
            pass
    assert not torch.equal(one.state.servers, other.state.servers)


@every_step
def test_a_server_that_is_away_keeps_its_model(name: str) -> None:
    net = ring_of_four()
    outages = Outages(up_seconds=0.3, down_seconds=0.3, seed=1)
    decisions = Decisions.of(stepped(SDFeel(2), STEPS[name]), net, cost(CLIENTS), outages=outages)
    simulation = Simulation(decisions, uneven())
    away = 0
    for _ in range(12):
        before = simulation.state.models.clone()
        there = simulation._decided(simulation.state.lanes[0]).state.there
        next(simulation)
        for d in np.flatnonzero(~there).tolist():
            rows = [d, *(int(net_rows[d]) for net_rows in shelves(simulation.net))]
            assert torch.equal(simulation.state.models[rows], before[rows])
            away += 1
    assert away > 3


def shelves(net: Network) -> list[Any]:
    return [net.shelf(shelf.name) for shelf in net.shelves]


@every_step
def test_every_server_can_step_by_itself(name: str) -> None:
    for scheme in (FedAvg(), SDFeel(), DSquared(), FedAsync(), FedBuff()):
        needs = Needs.of(Decisions.of(stepped(scheme, STEPS[name]), ring_of_four(), cost(CLIENTS)))
        assert needs == Needs.of(Decisions.of(scheme, ring_of_four(), cost(CLIENTS)))


def settings(*more: str) -> list[str]:
    small = ("network.clients=6", "network.servers=3", "model.name=logistic")
    return [*small, "training.engine=loop", "training.iterations=20", *more]


def test_an_experiment_names_its_servers_optimizer() -> None:
    ready = prepare(load(None, settings("server.optimizer=adam", "server.tau=0.1")))
    ready.engine.close()
    assert innermost(ready.scheme) == SDFeel()
    assert vars(ready.scheme)["step"] == ServerStep("adam", tau=0.1)
    assert ready.experiment.scheme.options == {"tau1": 5, "tau2": 1, "alpha": 1}
    assert load(None, settings()).fingerprint != ready.experiment.fingerprint


def test_schemes_that_a_step_would_break_refuse_it_with_the_reason() -> None:
    for name, kind in SCHEMES.items():
        verdict = kind.tolerates.verdict("server_optimizer")
        asked = settings(f"scheme.name={name}", "server.optimizer=yogi")
        if verdict == "yes":
            prepare(load(None, asked)).engine.close()
            continue
        with pytest.raises(InputError, match=f"{name} {verdict}, but server.optimizer = yogi"):
            prepare(load(None, asked))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "adamw"}, "unknown server optimizer 'adamw'"),
        ({"optimizer": "adam", "rate": 0.0}, "server.learning_rate must be above 0, got 0"),
        ({"optimizer": "adam", "momentum": 1.0}, "server.momentum must be at least 0 and below 1"),
        ({"optimizer": "adam", "tau": -1.0}, "server.tau must be above 0, got -1"),
    ],
)
def test_steps_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ServerStep(**options)


def test_a_buffer_of_one_is_fedasync_with_updates() -> None:
    """Every arrival moves the cloud's model by its own update, and a stale one less far."""
    net, engine = networks()[0], uneven()
    scheme = FedBuff(tau1=2, buffer=1, psi="constant")
    decisions = Decisions.of(scheme, net, replace(cost(CLIENTS), step_seconds=unequal()))
    simulation = Simulation(decisions, engine)
    for _ in range(30):
        each = min(simulation.state.lanes, key=lambda lane: (lane.ends, lane.number))
        assert each.base is not None
        start, before = each.base[0].numpy().copy(), simulation.state.servers[0].numpy().copy()
        next(simulation)
        client = simulation.net.clients[each.number]
        decay = (1 - engine.rate * engine.curvature[client].numpy()) ** 2  # type: ignore[index]
        end = engine.centres[client].numpy() + decay * (start - engine.centres[client].numpy())
        assert_allclose(simulation.state.servers[0].numpy(), before + end - start, atol=1e-12)


def test_the_cloud_waits_for_a_full_buffer_and_empties_it() -> None:
    net, engine = networks()[0], uneven()
    scheme = FedBuff(tau1=2, buffer=5, server_rate=0.5)
    decisions = Decisions.of(scheme, net, replace(cost(CLIENTS), step_seconds=unequal()))
    simulation = Simulation(decisions, engine)
    (buffer,) = simulation.net.shelf("buffer").tolist()
    model = simulation.state.servers[0].clone()
    for number, _ in enumerate(islice(simulation, 40), 1):
        stepped_now = not torch.equal(simulation.state.servers[0], model)
        assert stepped_now == (number % 5 == 0) == (not simulation.state.models[buffer].any())
        model = simulation.state.servers[0].clone()


def test_an_update_is_discounted_by_the_steps_that_it_missed() -> None:
    decisions = Decisions.of(FedBuff(buffer=4), networks()[0], cost(CLIENTS))
    clocks = replace(decisions.view(3).clocks, number=13)
    view = decisions.view(3, 1, clocks, began=2)
    up = decisions.mix(view, decisions.cost.done(decisions.work(view))).up
    assert up.weights.tolist() == [1 / 2]  # 13 // 4 - 2 // 4 = 3 steps: (1 + 3) ** -0.5


def unequal() -> Floats:
    return np.linspace(0.01, 0.05, CLIENTS)


def growth(weights: Floats, hops: int, momentum: float) -> float:
    """The largest factor by which models x that nobody trains, and their momentum q, can grow in a
    round: x := W (x + b q), q := b q + (1 - b) (x - last x)."""
    mixed, eye = np.linalg.matrix_power(weights, hops), np.eye(len(weights))
    there = np.hstack([mixed, momentum * mixed])
    kept = np.hstack([(1 - momentum) * (mixed - eye), momentum * (eye + (1 - momentum) * mixed)])
    return float(np.abs(np.linalg.eigvals(np.vstack([there, kept]))).max())


@given(
    st.integers(2, 9),
    st.integers(0, 2**32 - 1),
    st.floats(0, 0.99),
    st.integers(1, 3),
    st.sampled_from(["paper", "metropolis", "own"]),
    st.booleans(),
)
def test_servers_that_train_nothing_never_drift_apart_and_calm_weights_stay(
    servers: int, seed: int, momentum: float, hops: int, rule: str, many: bool
) -> None:
    graph = nx.gnp_random_graph(servers, 0.5, seed=seed)
    nx.add_path(graph, range(servers))
    graph.add_edge(0, servers - 1)
    linked, mass = nx.to_numpy_array(graph), np.full(servers, 1 / servers)
    if rule == "own":  # not mutual: models go round in circles, and eigenvalues are complex
        around = np.roll(np.eye(servers), 1, axis=1)
        weights = np.random.default_rng(seed).dirichlet(np.ones(3)) @ np.stack(
            [np.eye(servers), around, around @ around]
        ).reshape(3, -1)
        weights = weights.reshape(servers, servers)
    else:
        weights = {"paper": laplacian_weights, "metropolis": metropolis}[rule](linked, mass)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdfeel.schemes.lazy_mixing.MANY", 0 if many else 500)
        try:
            found = calm(Sparse.of(weights), mass, hops, momentum, "server.momentum").dense
        except InputError:  # no lazier weights are calm enough
            assert rule == "own"
            return
    assert growth(found, hops, momentum) <= 1 + 1e-4
    assert_allclose(found.sum(axis=1), 1)
    assert_allclose(mass @ found, mass)
    if not (many and rule != "own") and growth(weights, hops, momentum) <= 1:
        least = np.linalg.eigvals(weights).real.min() ** hops
        assert np.array_equal(found, weights) or least < least_stable(momentum) + 1e-5


def one_way_ring(servers: int, kept: float) -> Floats:
    """Everybody keeps a part of its model, and takes the rest from the server before it."""
    return kept * np.eye(servers) + (1 - kept) * np.roll(np.eye(servers), 1, axis=0)


@pytest.mark.parametrize("kept", [0.2, 0.5])
def test_weights_that_pass_models_round_in_circles_are_calm_among_many_servers_too(
    kept: float,
) -> None:
    """Their eigenvalues are complex: bounds of the real parts say nothing about them."""
    weights, mass = one_way_ring(24, kept), np.full(24, 1 / 24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdfeel.schemes.lazy_mixing.MANY", 20)
        for hops in (1, 2, 3):
            found = calm(Sparse.of(weights), mass, hops, 0.3, "server.momentum").dense
            assert growth(found, hops, 0.3) <= 1 + 1e-5


def test_a_momentum_that_no_lazier_weights_would_bear_is_refused() -> None:
    weights, mass = one_way_ring(12, 0.02), np.full(12, 1 / 12)
    with pytest.raises(InputError, match=r"momentum is 0[.]9, which would drive servers"):
        calm(Sparse.of(weights), mass, 2, 0.9, "server.momentum")


def test_momentum_that_amplifies_the_corrections_of_d2_is_refused() -> None:
    """Where servers agree slowly, its corrections grow with any but a small momentum."""
    ring = clustered(np.ones(10), range(10), links("ring", 10))
    with pytest.raises(InputError, match=r"momentum is 0[.]7, which would drive servers apart"):
        stepped(DSquared(), ServerStep("quasi-global", momentum=0.7)).adapt(ring)
    for net in (ring_of_four(), ring):
        stepped(DSquared(), ServerStep("quasi-global", momentum=0.25)).adapt(net)
        stepped(DSquared(), ServerStep("momentum", momentum=0.9)).adapt(net)


@pytest.mark.parametrize("scheme", ["sd-feel", "tiers", "multi-level", "fedcs", "joint"])
def test_on_a_ring_with_the_papers_weights_momentum_does_not_drive_servers_apart(
    scheme: str,
) -> None:
    """At the paper's least eigenvalue, -0.83, disagreement would grow by a tenth in every round."""
    keys = ["network.servers=10", "network.clients=10", "network.graph=ring", "data.partition=iid"]
    keys += [f"scheme.name={scheme}", "training.learning_rate=1e-9", "training.iterations=500"]
    keys += ["model.name=logistic", "training.engine=loop"]
    if scheme != "tiers":
        keys += ["server.optimizer=quasi-global", "server.momentum=0.5"]
    simulation = prepare(load(None, tuple(keys))).simulation()
    start = torch.randn(10, simulation.state.servers.shape[1], generator=torch.manual_seed(3))
    simulation.state.servers.copy_(start)
    for _ in range(60):
        next(simulation)
    spread = simulation.state.servers.std(dim=0).max()
    assert spread < 0.1 * start.std(dim=0).max()
