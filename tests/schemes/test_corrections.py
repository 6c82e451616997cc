"""Methods that cancel drift, against their textbook versions and on problems with known optima."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sdfeel.core.arrays import Floats
from sdfeel.core.decide import Decisions
from sdfeel.core.graphs import links
from sdfeel.core.learning_rates import Curve, Schedule, constant, linear, step
from sdfeel.core.mixing import of_rows
from sdfeel.core.network import Network, Shelf, clustered
from sdfeel.core.outages import Change, Outages
from sdfeel.core.scheme import Around, Local, Scheme, View, Work
from sdfeel.core.sparse import Sparse
from sdfeel.engine.base import Task
from sdfeel.schemes import (
    KGT,
    SDGT,
    DSquared,
    FedAvg,
    FedDyn,
    FreeTracking,
    GossipMtgc,
    HierFavg,
    Mtgc,
    Scaffnew,
    Scaffold,
    SDFeel,
    corrections,
)
from sdfeel.schemes.d_squared import damped
from sdfeel.schemes.sampling import Sampling, sampled
from sdfeel.sim.simulate import Simulation
from sdfeel.sim.state import ModelRows
from tests.examples import examples
from tests.quadratic import QuadraticEngine
from tests.sim.test_simulate import cost

RATE = 0.05
EXACT = 1e-7  # averages stay 10,000 times as far away
HALF = Sampling(share=0.5)  # of two
CORRECTED: dict[str, Scheme] = {
    "scaffold": Scaffold(trust=0, tau1=4),
    "scaffold, some": Scaffold(trust=0, tau1=4, participants=3),
    "scaffnew": Scaffnew(trust=0, tau1=4),
    "mtgc": Mtgc(trust=0, tau1=4),
    "mtgc, rarely": Mtgc(trust=0, tau1=2, tau2=3),
    "mtgc-gossip": GossipMtgc(trust=0, tau1=4),
    "mtgc-gossip, rarely": GossipMtgc(trust=0, tau1=2, tau2=3, alpha=2),
    "k-gt": KGT(trust=0, tau1=4),
    "k-gt, twice": KGT(trust=0, tau1=2, tau2=2, alpha=2),
    "feddyn": FedDyn(tau1=4),
    "feddyn, some": FedDyn(tau1=4, participants=3),
    "feddyn, as printed": FedDyn(tau1=20, pull=1.0),
    "mtgc, drawn": sampled(Mtgc(trust=0, tau1=2, tau2=3), HALF),
    "mtgc-gossip, drawn": sampled(GossipMtgc(trust=0, tau1=4), HALF),
    "k-gt, drawn": sampled(KGT(trust=0, tau1=4), HALF),
    "feddyn, drawn": sampled(FedDyn(tau1=4), HALF),
    "sd-gt, drawn": sampled(SDGT(trust=0, tau1=4), HALF),
    "sd-gt": SDGT(trust=0, tau1=4),
    "sd-gt, rarely": SDGT(trust=0, tau1=2, tau2=3, alpha=2, subnets=1),
    "free-tracking": FreeTracking(trust=0, tau1=4),
    "free-tracking, twice": FreeTracking(trust=0, tau1=4, alpha=2),
}
AVERAGED: dict[str, Scheme] = {
    "fedavg": FedAvg(tau1=4),
    "hierfavg": HierFavg(tau1=4),
    "sd-feel": SDFeel(tau1=4),
}


@pytest.mark.parametrize("tau2", [1, 2, 3])
@pytest.mark.parametrize("kind", [Mtgc, SDGT])
def test_a_single_server_pays_for_the_cloud_as_without_corrections(kind: Any, tau2: int) -> None:
    net = clustered([3, 2, 1], [0, 0, 0], np.zeros((1, 1)))
    corrected, plain = (
        Decisions.of(scheme, net, cost(3))
        for scheme in (kind(tau1=2, tau2=tau2), HierFavg(tau1=2, tau2=tau2))
    )
    for k in range(6):
        bill, usual = corrected.round(0, k).bill, plain.round(0, k).bill
        assert (bill.compute, bill.upload, bill.mix) == (usual.compute, usual.upload, usual.mix)


class Problem:
    """Clients with different data on a network of unequal clusters, and the best model."""

    def __init__(
        self,
        seed: int,
        graph: str = "ring",
        servers: int = 4,
        clients: int = 8,
        samples: int | None = None,  # of each; None: drawn
    ) -> None:
        draws = np.random.default_rng(seed)
        drawn = draws.integers(5, 20, clients).astype(float)
        drawn = drawn if samples is None else np.full(clients, float(samples))
        self.curvature, self.centres = draws.uniform(0.3, 2, (2, clients, 3)) * [[[1]], [[3]]]
        self.share = drawn / drawn.sum()
        self.net = clustered(drawn, np.arange(clients) % servers, links(graph, servers))
        self.engine = QuadraticEngine(
            torch.from_numpy(self.centres),
            RATE,
            torch.from_numpy(self.share),
            torch.from_numpy(self.curvature),
        )
        self.move(self.centres)

    def move(self, centres: Floats) -> None:
        """Put the clients' optima elsewhere."""
        self.centres, self.engine.centres = centres, torch.from_numpy(centres)
        pull = self.share[:, None] * self.curvature
        self.best = (pull * centres).sum(0) / pull.sum(0)

    def slope(self, i: int, model: Floats) -> Floats:
        """The gradient of client i."""
        return np.asarray(self.curvature[i] * (model - self.centres[i]))

    def walk(self, i: int, model: Floats, steps: int, shift: Any = 0.0) -> Floats:
        """Where client i gets to."""
        for _ in range(steps):
            model = model - RATE * (self.slope(i, model) + shift)
        return model

    def run(self, scheme: Scheme, rounds: int, outages: Outages | None = None) -> Simulation:
        prices, local = cost(len(self.share)), Local(RATE)
        decisions = Decisions.of(scheme, self.net, prices, seed=3, local=local, outages=outages)
        simulation = Simulation(decisions, self.engine)
        for _ in islice(simulation, rounds):
            pass
        return simulation

    def reaches(self, scheme: Scheme, bound: float, outages: Outages | None = None) -> bool:
        """Does the worst server's error ever fall below a bound?"""
        simulation = self.run(scheme, 0, outages)
        return any(self.error(simulation) < bound for _ in islice(simulation, 600))

    def error(self, simulation: Simulation) -> float:
        """Of the worst server."""
        return float(np.abs(simulation.state.servers.numpy() - self.best).max())


@pytest.mark.parametrize("name", CORRECTED)
def test_corrections_reach_the_optimum(name: str) -> None:
    problem = Problem(seed=len(name), graph="path" if len(name) % 2 else "ring")
    assert problem.reaches(CORRECTED[name], EXACT)


@pytest.mark.parametrize("kind", [Scaffold, KGT, FreeTracking])
def test_a_bound_costs_nothing_where_a_round_drifts_less_and_the_optimum_where_more(
    kind: Any,
) -> None:
    """The default trusts a correction as far as a tenth of the model's length in a round."""
    near, far = Problem(seed=21), Problem(seed=21)
    near.move(5 + near.centres / 10)
    assert near.reaches(kind(tau1=4), EXACT)
    far.move(far.centres - far.centres.mean(0) + 0.1)
    assert far.error(far.run(kind(tau1=4), 150)) > 1e-3


@pytest.mark.parametrize("name", AVERAGED)
def test_averages_stall_where_corrections_do_not(name: str) -> None:
    problem = Problem(seed=1)
    assert problem.error(problem.run(AVERAGED[name], 400)) > 1e-3


@pytest.mark.parametrize("name", ["mtgc", "mtgc-gossip", "k-gt", "free-tracking"])
def test_corrections_survive_links_that_come_and_go(name: str) -> None:
    problem = Problem(seed=2, graph="complete")
    outages = Outages(seed=5, link_chance=0.8)
    assert problem.reaches(CORRECTED[name], EXACT, outages)


def test_scaffold_is_the_textbooks_with_all_and_with_some() -> None:
    for participants in (None, 3):
        problem, scheme = Problem(seed=4), Scaffold(trust=0, tau1=3, participants=participants)
        simulation = problem.run(scheme, 0)
        model, own, everyones = np.zeros(3), np.zeros((8, 3)), np.zeros(3)
        for k in range(6):
            decisions = simulation.decisions
            who = decisions.work(decisions.view(0, k)).down.rows
            ends = {i: problem.walk(i, model, 3, everyones - own[i]) for i in who.tolist()}
            fresh = {i: own[i] - everyones + (model - y) / (3 * RATE) for i, y in ends.items()}
            everyones = everyones + sum(problem.share[i] * (c - own[i]) for i, c in fresh.items())
            for i, c in fresh.items():
                own[i] = c
            model = sum(problem.share[i] * y for i, y in ends.items()) / problem.share[who].sum()
            next(simulation)
            np.testing.assert_allclose(simulation.model().numpy(), model, rtol=1e-10)


def test_scaffnew_is_the_textbooks() -> None:
    problem = Problem(seed=5)
    simulation = problem.run(Scaffnew(trust=0, tau1=3), 0)
    model, slopes = np.zeros(3), np.zeros((8, 3))
    for k in range(6):
        steps = simulation.decisions.work(simulation.decisions.view(0, k)).steps
        ends = np.stack([problem.walk(i, model, steps, -slopes[i]) for i in range(8)])
        model = problem.share @ ends
        slopes += (model - ends) / (3 * RATE)
        next(simulation)
        np.testing.assert_allclose(simulation.model().numpy(), model, rtol=1e-10)


def test_mtgc_is_the_textbooks_but_for_corrections_that_stay() -> None:
    problem = Problem(seed=6)
    simulation = problem.run(Mtgc(trust=0, tau1=3, tau2=2), 0)
    home, mass = problem.net.home, problem.net.mass
    models, of_client, of_group = np.zeros((4, 3)), np.zeros((8, 3)), np.zeros((4, 3))
    for k in range(8):
        shifts = of_client + of_group[home]
        ends = np.stack([problem.walk(i, models[home[i]], 3, shifts[i]) for i in range(8)])
        models = np.stack([problem.share[home == d] @ ends[home == d] / mass[d] for d in range(4)])
        of_client += (ends - models[home]) / (3 * RATE)
        if k % 2:
            of_group += (models - mass @ models) / (3 * 2 * RATE)
            models = np.tile(mass @ models, (4, 1))
        next(simulation)
        np.testing.assert_allclose(simulation.state.servers.numpy(), models, rtol=1e-10)


def test_k_gt_is_the_textbooks_where_each_server_has_one_client() -> None:
    problem = Problem(seed=7, servers=8)
    simulation = problem.run(KGT(trust=0, tau1=3), 0)
    weights = damped(problem.net.mixing)
    models, shifts = np.zeros((8, 3)), np.zeros((8, 3))
    for k in range(8):
        ends = np.stack([problem.walk(i, models[i], 3, shifts[i]) for i in range(8)])
        gradients = (models - ends) / (3 * RATE)
        # The textbook begins with c = -g + W g; ours is heading nowhere before the first round.
        shifts = shifts - gradients + weights @ gradients
        models = weights @ ends
        next(simulation)
        np.testing.assert_allclose(simulation.state.servers.numpy(), models, rtol=1e-9, atol=1e-12)
        assert k >= 0


def test_feddyn_is_the_textbooks_with_all_and_with_some() -> None:
    for participants, pull in ((None, 0.8), (3, 2.0)):
        problem, scheme = Problem(seed=12), FedDyn(tau1=3, participants=participants, pull=pull)
        simulation = problem.run(scheme, 0)
        model, slopes, h = np.zeros(3), np.zeros((8, 3)), np.zeros(3)
        for k in range(6):
            decisions = simulation.decisions
            who = decisions.work(decisions.view(0, k)).down.rows.tolist()
            ends = {}
            for i in who:
                ends[i] = model
                for _ in range(3):
                    slope = problem.slope(i, ends[i]) - slopes[i] + pull * (ends[i] - model)
                    ends[i] = ends[i] - RATE * slope
                slopes[i] = slopes[i] - pull * (ends[i] - model)
            h = h - pull * sum(problem.share[i] * (ends[i] - model) for i in who)
            mean = sum(problem.share[i] * ends[i] for i in who) / problem.share[who].sum()
            model = mean - h / pull
            next(simulation)
            np.testing.assert_allclose(simulation.model().numpy(), model, rtol=1e-10)


def test_sd_gt_is_its_authors_where_each_server_has_one_client() -> None:
    """In the words of their program: x, y and z of every device, with three gossips a period."""
    problem = Problem(seed=13, servers=8)
    simulation = problem.run(SDGT(trust=0, tau1=1, tau2=3, subnets=2), 0)
    subnet, mass = np.arange(8) // 4, problem.net.mass
    weights = np.where(subnet[:, None] == subnet, problem.net.mixing, 0)
    weights = damped(weights + np.diag(1 - weights.sum(axis=1)))
    x, y, z = np.zeros((3, 8, 3))
    for _ in range(6):
        start, tracked = x, np.zeros((8, 3))
        for _ in range(3):
            slopes = np.stack([problem.slope(i, x[i]) for i in range(8)])
            moved = -RATE * (slopes + y + z)
            step = moved + RATE * y
            tracked += (step - weights @ step) / (3 * RATE)
            x = weights @ (x + moved)
            next(simulation)
        z = z + tracked
        delta = x - start + 3 * RATE * y
        of_subnet = np.stack([np.average(delta[subnet == s], 0, mass[subnet == s]) for s in (0, 1)])
        y = (of_subnet[subnet] - mass @ delta) / (3 * RATE)
        x = start + mass @ delta
        np.testing.assert_allclose(simulation.state.servers.numpy(), x, rtol=1e-9, atol=1e-12)


def test_with_subnets_of_one_server_sd_gt_is_mtgc() -> None:
    problem = Problem(seed=13)
    apart, cloud = SDGT(trust=0, tau1=3, tau2=2, subnets=4), Mtgc(trust=0, tau1=3, tau2=2)
    assert torch.equal(problem.run(apart, 9).state.servers, problem.run(cloud, 9).state.servers)


@pytest.mark.parametrize("kind", [Scaffold, Scaffnew, Mtgc, GossipMtgc, KGT, SDGT, FreeTracking])
def test_no_correction_moves_a_client_further_than_it_is_trusted(kind: Any) -> None:
    """A client that its gradients do not move goes where its shift sends it."""
    problem, moved = Problem(seed=14), []
    simulation = problem.run(kind(tau1=4, trust=0.05), 3)
    problem.engine.curvature = torch.zeros(8, 3, dtype=torch.float64)
    train = problem.engine.train

    def watched(tasks: Any) -> Any:
        for task, row in zip(tasks, train(tasks), strict=True):
            share = float((row - task.start).norm() / task.start.norm())
            moved.append(share * 4 / task.steps if kind is not Scaffnew else share)
            yield row

    problem.engine.train = watched  # type: ignore[method-assign]
    next(simulation)
    assert moved
    assert max(moved) == pytest.approx(0.05)


@dataclass(frozen=True)
class Unmoved(Around):
    """Clients add a row of zeros to their gradients."""

    def adapt(self, net: Network) -> Network:
        own = self.inner.adapt(net)
        return replace(own, shelves=(*own.shelves, Shelf("nothing", "client", "client", "zero")))

    def work(self, view: View) -> Work:
        work, rows = self.inner.work(view), view.net.shelf("nothing").tolist()
        by = of_rows({i: {rows[i]: 1.0} for i in work.down.rows.tolist()}, work.down.via)
        return replace(work, shift=by)


@pytest.mark.parametrize("name", AVERAGED)
def test_a_shift_of_zero_is_the_plain_scheme_bit_for_bit(name: str) -> None:
    problem, scheme = Problem(seed=19), AVERAGED[name]
    shifted, plain = problem.run(Unmoved(scheme), 9), problem.run(scheme, 9)
    assert torch.equal(shifted.state.servers, plain.state.servers)


@pytest.mark.parametrize("name", ["mtgc-gossip", "k-gt", "free-tracking"])
def test_the_first_round_has_nothing_to_correct_and_is_sd_feels_bit_for_bit(name: str) -> None:
    problem, scheme = Problem(seed=20), CORRECTED[name]
    problem.net = replace(problem.net, weights=Sparse.of(damped(problem.net.mixing)))
    plain = problem.run(SDFeel(tau1=4), 1).state.servers
    assert torch.equal(problem.run(scheme, 1).state.servers, plain)


@pytest.mark.parametrize("graph", ["ring", "star", "path", "complete"])
@pytest.mark.parametrize("servers", [2, 3, 4, 5, 8])
def test_gossip_of_corrections_is_calm_and_keeps_the_mean(graph: str, servers: int) -> None:
    net = Problem(seed=servers, graph=graph, servers=servers).net
    weights = damped(net.mixing)
    assert np.linalg.eigvals(weights).real.min() > -1 / 3
    np.testing.assert_allclose(net.mass @ weights, net.mass, atol=1e-12)
    np.testing.assert_allclose(weights.sum(axis=1), 1)


def test_without_damping_corrections_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the matrix is made lazy: two servers that almost swap their models."""
    problem = Problem(seed=22, graph="complete", servers=2, samples=10)
    almost = 0.95 * problem.net.links + 0.05 * np.eye(2)
    problem.net = replace(problem.net, weights=Sparse.of(almost))
    scheme = GossipMtgc(trust=0, tau1=4)
    assert problem.reaches(scheme, 1e-10)
    monkeypatch.setattr(corrections, "damped", lambda weights: weights)
    corrections.calm_gossip.cache_clear()
    try:
        assert problem.error(problem.run(scheme, 60)) > 1e3
    finally:
        corrections.calm_gossip.cache_clear()


def test_a_trust_that_is_never_reached_changes_nothing() -> None:
    problem = Problem(seed=15)
    free = problem.run(KGT(tau1=3, trust=0), 9).state.servers
    assert torch.equal(problem.run(KGT(tau1=3, trust=1e9), 9).state.servers, free)


def test_with_one_cluster_mtgc_is_scaffold() -> None:
    problem = Problem(seed=8, servers=1)
    plain = problem.run(Scaffold(trust=0, tau1=3), 9).model()
    for scheme in (
        Mtgc(trust=0, tau1=3),
        GossipMtgc(trust=0, tau1=3),
        KGT(trust=0, tau1=3),
    ):
        assert torch.equal(problem.run(scheme, 9).model(), plain)
    free = problem.run(FreeTracking(trust=0, tau1=3), 9).model()  # computes it in another order
    np.testing.assert_allclose(free, plain, rtol=1e-9)


def test_free_tracking_is_gossiped_mtgc_and_d2_where_each_step_is_a_round() -> None:
    problem = Problem(seed=9)
    free, dear = (
        problem.run(FreeTracking(trust=0, tau1=3), 30),
        problem.run(GossipMtgc(trust=0, tau1=3), 30),
    )
    np.testing.assert_allclose(free.state.servers, dear.state.servers, rtol=1e-9)
    single = Problem(seed=9, servers=8)
    free, squared = single.run(FreeTracking(trust=0, tau1=1), 30), single.run(DSquared(), 30)
    np.testing.assert_allclose(free.state.servers, squared.state.servers, rtol=1e-9)


def test_free_tracking_costs_what_sd_feel_costs_to_the_byte() -> None:
    problem = Problem(seed=10)
    free, plain = problem.run(FreeTracking(trust=0, tau1=3), 7), problem.run(SDFeel(tau1=3), 7)
    assert free.state.bytes == plain.state.bytes
    assert free.state.seconds == plain.state.seconds
    assert free.state.joules == plain.state.joules


def test_where_all_data_are_equal_nothing_is_corrected() -> None:
    """Averages and corrections then compute the same models."""
    problem = Problem(seed=11)
    problem.engine.centres[:] = problem.engine.centres[0].clone()
    problem.engine.curvature = torch.ones(8, 3, dtype=torch.float64)
    plain = problem.run(SDFeel(tau1=3), 12).model()
    for name in ("mtgc-gossip", "k-gt", "free-tracking"):
        scheme: Any = CORRECTED[name]
        corrected = problem.run(type(scheme)(trust=0, tau1=3), 12).model()
        np.testing.assert_allclose(corrected, plain, rtol=1e-10)


@pytest.mark.parametrize(
    "scheme", [Scaffold(tau1=1, participants=10), FedDyn(tau1=1, participants=10)], ids=["c", "h"]
)
def test_many_clients_cost_what_was_touched(scheme: Scheme) -> None:
    """A row for each client that was drawn, and none for the others."""
    count = 100_000
    net = clustered(np.ones(count), np.zeros(count, dtype=int), np.zeros((1, 1)))
    engine = QuadraticEngine(torch.zeros(count, 2), RATE, torch.full((count,), 1 / count))
    decisions = Decisions.of(scheme, net, cost(count), seed=3, local=Local(RATE))
    simulation = Simulation(decisions, engine)
    drawn: set[int] = set()
    for k in range(3):
        drawn |= set(decisions.work(decisions.view(0, k)).down.rows.tolist())
        next(simulation)
    own = set(simulation.net.shelf(simulation.net.shelves[0].name)[sorted(drawn)].tolist())
    written = simulation.state.rows.written
    assert {n for n in written if n >= -count} == own
    assert len(written) <= len(drawn) + 1  # and the server's own
    assert simulation.state.rows.kept == count + 1


def test_rows_are_as_a_matrix_would_hold_them() -> None:
    """Written one by one, added to, begun again: the same numbers as in a matrix of all rows."""
    problem = Problem(seed=16)
    net = replace(
        problem.net, shelves=(Shelf("a", "client", "client", "zero"), Shelf("b", "server"))
    )
    draws = torch.Generator().manual_seed(0)
    rows = ModelRows.fresh(torch.rand(3, generator=draws), net)
    matrix = rows.dense()
    for n in (0, 3, -1, -8, -9, -12, -1, -9):
        value = torch.rand(1, 3, generator=draws)
        rows.put([n], value)
        matrix[n] = value[0]
        rows.add([n, -5], torch.cat([value, value]))
        matrix[[n, -5]] += torch.cat([value, value])
        assert torch.equal(rows.dense(), matrix)
        assert torch.equal(ModelRows.of(matrix, 4).dense(), matrix)
    rows.begin(net)
    matrix[-8:] = 0
    matrix[[-9, -10, -11, -12]] = matrix[:4].clone()
    assert torch.equal(rows.dense(), matrix)


class Slopes(QuadraticEngine):
    """Losses that are straight lines: a client's gradient is its centre, wherever it is."""

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        for task in tasks:
            slope = self.centres[task.client]
            slope = slope if task.shift is None else slope + task.shift
            yield task.start - task.steps * task.rate * self.rate * slope


@examples(40)
@given(
    kind=st.sampled_from([Mtgc, SDGT, GossipMtgc, FreeTracking]),
    tau2=st.integers(1, 3),
    subnets=st.integers(1, 4),
    away=st.lists(st.booleans(), min_size=16, max_size=16),
    curve=st.sampled_from([constant(), step(every=2, factor=0.3), linear()]),
    warmup=st.integers(0, 6),
)
def test_clusters_that_have_met_move_alike_until_they_meet_again(
    kind: Any, tau2: int, subnets: int, away: list[bool], curve: Curve, warmup: int
) -> None:
    """Where gradients stay as they are, one meeting tells all: however long ago the last one was,
    because the cloud was away, and whatever the learning rate was meanwhile."""
    problem = Problem(seed=7, graph="complete", samples=10)
    engine = Slopes(problem.engine.centres, RATE, problem.engine.weights)
    options = {} if kind is FreeTracking else {"tau2": tau2}
    options |= {"subnets": subnets} if kind is SDGT else {}
    tau2 = options.get("tau2", 1)
    gone = [Change(k, "round", (), up=not each) for k, each in enumerate(away)]
    outages = Outages(tuple(gone)) if kind in (Mtgc, SDGT) else None
    local = Local(RATE, schedule=Schedule(curve, 60, warmup, "round"))
    scheme = kind(trust=0, tau1=2, **options)
    decisions = Decisions.of(scheme, problem.net, cost(8), local=local, outages=outages)
    simulation, met = Simulation(decisions, engine), False
    group = np.arange(4) * subnets // 4 if kind is SDGT else np.arange(4)
    for k, gone_now in enumerate(away):
        before = simulation.state.servers.numpy().copy()
        next(simulation)
        moved = simulation.state.servers.numpy() - before
        if (k + 1) % tau2 == 0 and (outages is None or not gone_now):
            met = True
        elif met:
            means = np.stack([moved[group == each].mean(axis=0) for each in np.unique(group)])
            np.testing.assert_allclose(means, means[[0]].repeat(len(means), 0), atol=1e-12)
        if met and kind in (GossipMtgc, FreeTracking) and tau2 == 1:
            slope = engine.centres.numpy().mean(axis=0) * local.at(k, 2).factor * RATE * 2
            np.testing.assert_allclose(moved, -slope[None].repeat(4, 0), atol=1e-12)
