"""The systems of the related work against their published rules and their degenerate cases."""

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sdfeel.core.arrays import Floats
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.link_times import SNR, LinkTimes
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Estimates, Local, Memory, Scheme, View
from sdfeel.core.staleness import Clocks
from sdfeel.core.stragglers import StragglerPolicy, equalised, needed
from sdfeel.engine.base import Training
from sdfeel.engine.optimizers import local_step
from sdfeel.radio.channel import Fading, Trace
from sdfeel.schemes import (
    Adaptive,
    AsyncSDFeel,
    DSquared,
    FedAsync,
    FedAvg,
    FedCS,
    FedNova,
    FedSA,
    JointScheduling,
    Safa,
    SDFeel,
)
from sdfeel.schemes.adaptive import bound, drift, exchanges
from sdfeel.schemes.d_squared import damped
from sdfeel.schemes.fed_cs import in_turn
from sdfeel.schemes.fed_nova import norm
from sdfeel.schemes.fed_sa import slowness
from sdfeel.schemes.joint import scheduled
from sdfeel.sim.simulate import Simulation
from tests.examples import examples
from tests.quadratic import QuadraticEngine, quadratic
from tests.sim.test_simulate import RATES, cost, ring_of_four, uneven

SPEEDS = np.array([0.013, 0.010, 0.031, 0.017, 0.011, 0.023])


def one_cell(clients: int = 6, equal: bool = True) -> Network:
    samples = np.ones(clients) if equal else np.arange(1.0, clients + 1)
    return clustered(samples, [0] * clients, links("ring", 1))


def engine(clients: int = 6) -> QuadraticEngine:
    return quadratic(np.arange(clients) ** 1.5, np.ones(clients), 0.05)


def prices(steps: Floats = SPEEDS) -> Cost:
    return Cost(steps, 1e5, RATES)  # type: ignore[arg-type]


def run(scheme: Scheme, net: Network, rounds: int, own: QuadraticEngine, at: Cost) -> Simulation:
    simulation = Simulation(Decisions.of(scheme, net, at, local=Local(own.rate)), own)
    for _ in islice(simulation, rounds):
        pass
    return simulation


# FedAsync


def test_fed_async_of_one_client_is_a_running_average() -> None:
    own = engine(1)
    own.centres += 2.0
    simulation = run(FedAsync(tau1=3, mixing_rate=0.25), one_cell(1), 4, own, prices(SPEEDS[:1]))
    model = 0.0
    for _ in range(4):
        trained = 2 + (model - 2) * 0.95**3
        model = 0.75 * model + 0.25 * trained
    assert simulation.model().item() == pytest.approx(model, abs=1e-12)


def test_fed_async_counts_how_many_updates_came_in_between() -> None:
    """A slow client and one three times as fast: 1st, 2nd, 3rd (fast, fast, tie: fast)."""
    at = prices(np.array([0.01, 0.035]))
    object.__setattr__(at, "model_bits", 1e-9)
    own = engine(2)
    own.centres[:, 0] = torch.tensor([1.0, -1.0])
    scheme = FedAsync(tau1=1, mixing_rate=0.5, psi="polynomial", psi_a=1.0)
    simulation = run(scheme, one_cell(2), 4, own, at)
    model = 0.0
    for _ in range(3):
        model = 0.5 * model + 0.5 * (1 + (model - 1) * 0.95)
    late = -0.05  # trained from the first model, which was 0
    share = 0.5 / (3 + 1)
    model = (1 - share) * model + share * late
    assert simulation.state.seconds == pytest.approx(0.035)
    assert simulation.model().item() == pytest.approx(model, abs=1e-12)


def test_fed_async_refuses_a_rate_above_one() -> None:
    with pytest.raises(InputError, match=r"mixing_rate must be above 0 and at most 1, got 1\.5"):
        FedAsync(mixing_rate=1.5)


# FedSA


def test_fed_sa_that_waits_for_all_is_fed_avg() -> None:
    net, own = one_cell(equal=False), engine()
    semi = run(FedSA(quota=6, rate_limit=1), net, 5, own, prices())
    full = run(FedAvg(), net, 5, own, prices())
    torch.testing.assert_close(semi.model(), full.model(), rtol=0, atol=1e-12)
    assert semi.state.seconds == pytest.approx(full.state.seconds)


def test_fed_sa_that_waits_for_one_is_fed_async() -> None:
    net, own = one_cell(), engine()
    semi = run(FedSA(quota=1, rate_limit=1), net, 25, own, prices())
    lone = run(FedAsync(mixing_rate=1 / 6, psi="constant"), net, 25, own, prices())
    torch.testing.assert_close(semi.model(), lone.model(), rtol=0, atol=1e-12)
    assert semi.state.seconds == pytest.approx(lone.state.seconds)
    assert semi.state.taken.tolist() == lone.state.taken.tolist()


def test_fed_sa_lets_rare_clients_take_larger_steps() -> None:
    simulation = run(FedSA(quota=2, rate_limit=1.5), one_cell(), 12, engine(), prices())
    often = simulation.state.lanes[0].memory["joined"]
    decisions, lane = simulation.decisions, simulation.state.lanes[0]
    rates = FedSA(rate_limit=1.5)._rates(decisions.view(0, lane.k, memory=lane.memory))
    assert often[2] < often[1]  # the slowest and the fastest
    assert rates[2] > 1 > rates[1]
    assert rates.max() <= 1.5


def test_fed_sa_waits_longer_for_a_client_whose_channel_gets_worse() -> None:
    """Client 1 computes for 15 ms and sends while it has half its rate: for two uploads."""
    trace = Trace(np.array([[1.0, 1.0], [1.0, 0.5]]), RATES["client-cloud"], 1e6)
    at = replace(prices(np.array([0.01, 0.015])), channel=trace)
    simulation = run(FedSA(tau1=1, quota=1), one_cell(2), 2, engine(2), at)
    assert simulation.state.taken.tolist() == [1, 1]
    assert simulation.state.seconds == pytest.approx(0.015 + 2 * at.transfer("client-cloud"))


def test_fed_sa_refuses_a_quota_above_the_clients() -> None:
    with pytest.raises(InputError, match="quota is 7, but the network has only 6"):
        FedSA(quota=7).adapt(one_cell())


def test_fed_sa_waits_for_all_where_devices_are_alike_and_not_for_one_that_crawls() -> None:
    def chosen(steps: Floats) -> float:
        simulation = run(FedSA(), one_cell(), 2, engine(), prices(steps))
        return float(simulation.state.lanes[0].memory["quota"][0])

    assert chosen(np.full(6, 0.01)) == 6
    assert chosen(np.array([0.01] * 5 + [1.0])) == 5


@pytest.mark.parametrize("quota", [2, 3, 6])
def test_fed_sa_rates_a_quota_as_its_recursion_does(quota: int) -> None:
    """Textbook: follow V_t = (1 - p) V + p (1 - e) V_old for a small e, and time its fall."""
    cycle, share = np.array([1.0, 1.3, 1.9, 2.2, 4.1, 9.7]), np.full(6, 1 / 6)
    gain, left, held = 1e-4, cycle.copy(), np.ones(6)
    value, seconds = 1.0, 0.0
    while seconds < 2000:
        who = np.argsort(left, kind="stable")[:quota]
        lasts = left[who].max()
        value = (1 - share[who].sum()) * value + (1 - gain) * (share[who] @ held[who])
        left = np.maximum(left - lasts, 0)
        left[who], held[who] = cycle[who], value
        seconds += lasts
    measured = -seconds / np.log(value) * gain
    assert slowness(cycle, share, quota) == pytest.approx(measured, rel=0.2)


# SAFA


def test_safa_without_lag_or_quota_is_fed_avg() -> None:
    net, own = one_cell(equal=False), engine()
    safa = run(Safa(fraction=1, tolerance=0), net, 5, own, prices())
    full = run(FedAvg(), net, 5, own, prices())
    torch.testing.assert_close(safa.model(), full.model(), rtol=0, atol=1e-12)
    assert safa.state.seconds == pytest.approx(full.state.seconds)


def test_safa_forces_a_straggler_only_beyond_its_tolerance() -> None:
    """A client that misses its rounds continues from its own model until it lags by more."""
    scheme, net = Safa(fraction=0.5, tolerance=2, tau1=1), one_cell()
    decisions = Decisions.of(scheme, net, prices())
    memory: Memory = {}
    fresh, came = [], np.array([1, 1, 0, 1, 1, 1])
    for k in range(5):
        view = decisions.view(0, k, memory=memory)
        fresh.append(bool(scheme._draft(view).fresh[2]))
        memory = decisions.mix(view, came).memory
    assert fresh == [True, False, False, True, False]


def test_safa_brings_everyone_who_finishes_up_to_date() -> None:
    patient = run(Safa(fraction=0.5, tolerance=1000, tau1=1), one_cell(), 1, engine(), prices())
    lane = patient.state.lanes[0]
    late = np.flatnonzero(lane.memory["picked"] == 0)
    assert late.tolist() == [2, 3, 5]  # the three slowest
    view = patient.decisions.view(0, lane.k, memory=lane.memory)
    draft = Safa(tolerance=1000, tau1=1)._draft(view)
    assert draft.fresh.all()
    assert draft.picked[late].all()  # passed over once, they come first


def test_safa_takes_late_models_into_the_next_round() -> None:
    """Two clients, a quota of one: by hand."""
    own = quadratic([4.0, -2.0], [1, 1], 0.5)
    simulation = run(Safa(fraction=0.5, tau1=1), one_cell(2), 1, own, prices(SPEEDS[:2] * [2, 1]))
    # Client 1 is faster: it counts; client 0's cache still holds the initial 0.
    assert simulation.model().item() == pytest.approx((0 - 1) / 2)
    next(simulation)
    # Both begin at -0.5. Client 0 was passed over: now it is picked, with 1.75. Of client 1, which
    # comes second, the cache still holds -1.
    assert simulation.model().item() == pytest.approx((1.75 - 1) / 2)


def test_safa_learns_from_those_who_keep_a_deadline() -> None:
    """Whoever is dropped is absent: its entry follows the global model, not the initial one."""
    at = prices(np.array([0.01, 0.01, 0.01, 0.01, 0.01, 5.0]))
    own = quadratic(np.full(6, 3.0), np.ones(6), 0.05)
    late = StragglerPolicy("drop", 1.0)
    decisions = Decisions.of(Safa(tolerance=1), one_cell(), at, late=late)
    simulation = Simulation(decisions, own)
    for _ in islice(simulation, 80):
        pass
    assert simulation.state.lanes[0].memory["version"][5] < 80
    assert simulation.model().item() == pytest.approx(3.0, abs=0.01)


def test_safa_survives_crashes_and_learns() -> None:
    net, own = one_cell(), engine()
    simulation = Simulation(Decisions.of(Safa(crash_chance=0.4, fraction=0.5), net, prices()), own)
    first = own.evaluate(simulation.model()).loss
    least = own.evaluate(own.centres.mean(dim=0)).loss
    for _ in islice(simulation, 80):
        pass
    assert own.evaluate(simulation.model()).loss - least < 0.1 * (first - least)


# FedNova


def test_fed_nova_is_one_cluster_of_asynchronous_sd_feel() -> None:
    net, own = one_cell(equal=False), engine()
    nova = run(FedNova(theta_min=2), net, 4, own, prices())
    asynchronous = run(AsyncSDFeel(theta_min=2), net, 4, own, prices())
    torch.testing.assert_close(nova.model(), asynchronous.model(), rtol=0, atol=1e-12)
    assert len(set(nova.state.taken.tolist())) > 1


@pytest.mark.slow
def test_fed_nova_removes_the_pull_of_fast_clients() -> None:
    """The fixed point of plain averaging weights clients by their steps; FedNova's does not."""
    own = quadratic(np.arange(6.0) ** 2, np.ones(6), 0.001)
    at = prices()
    nova = run(FedNova(theta_min=3), one_cell(), 3000, own, at)
    steps = (3 * 0.031 / SPEEDS + 1e-9).astype(int)
    centres = np.arange(6.0) ** 2
    biased = (centres * steps).sum() / steps.sum()
    assert abs(nova.model().item() - centres.mean()) < 0.02 * abs(biased - centres.mean())


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.7, "dampening": 0.4},
        {},
    ],
    ids=["momentum", "nesterov", "dampening", "plain"],
)
@pytest.mark.parametrize("proximal", [0.0, 1.5])
def test_fed_nova_counts_what_the_optimiser_makes_of_equal_gradients(
    options: dict[str, Any], proximal: float
) -> None:
    """Where the gradient is 1 everywhere, torch's own steps lead as far as the norm says."""
    training = Training(0.1, 1, "sgd", options, proximal=proximal)
    place = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([place], lr=0.1, **options)
    for steps in range(1, 9):
        optimizer.zero_grad()
        torch.autograd.backward(place + proximal / 2 * place**2)
        optimizer.step()
        counted = norm(np.array([steps]), local_step(training))[0]
        assert counted == pytest.approx(-place.item() / 0.1, rel=1e-12)


def test_fed_nova_counts_mini_batches_where_an_iteration_is_a_pass() -> None:
    training = Training(0.1, 10, iteration="epoch")
    net = one_cell(2)
    object.__setattr__(net, "samples", np.array([40.0, 10.0]))
    view = View(net, (0,), 0, Clocks.fresh(1), np.array([1.0, 1.0]), local=local_step(training))
    weights = FedNova().mix(view, np.array([1, 1])).up.weights
    # 4 and 1 gradients, with shares 0.8 and 0.2: 3.4 gradients' worth of each
    np.testing.assert_allclose(weights, [0.8 * 3.4 / 4, 0.2 * 3.4])


def test_fed_nova_refuses_steps_that_are_not_sums_of_gradients() -> None:
    def start(training: Training) -> None:
        local = local_step(training)
        Decisions.of(FedNova(), one_cell(), prices(), local=local).expected_rounds(10)

    start(Training(0.1, 10, "newton-diagonal", {"identity": True}))
    with pytest.raises(InputError, match=r"fednova.*training\.optimizer is adam: set it to sgd"):
        start(Training(0.1, 10, "adam"))
    start(Training(0.1, 10, proximal=10))
    with pytest.raises(InputError, match=r"proximal times training\.learning_rate is 2, so that"):
        start(Training(0.1, 10, proximal=20))


# FedCS


def test_fed_cs_without_a_deadline_is_sd_feel() -> None:
    net, own = ring_of_four(), uneven()
    chosen = run(FedCS(), net, 5, own, cost(12))
    torch.testing.assert_close(chosen.model(), run(SDFeel(), net, 5, own, cost(12)).model())


@given(st.lists(st.floats(0.1, 3.0), min_size=2, max_size=2))
@examples(20)
def test_fed_cs_takes_more_clients_when_given_more_time(seconds: list[float]) -> None:
    def clients(limit: float) -> set[int]:
        at = prices(np.linspace(0.01, 0.5, 6))
        scheme = FedCS(tau1=1, round_seconds=limit)
        simulation = Simulation(Decisions.of(scheme, one_cell(), at), engine())
        decided = simulation._decided(simulation.state.lanes[0])
        return set(decided.work.down.rows[decided.steps > 0].tolist())

    less, more = sorted(seconds)
    assert clients(less) <= clients(more)


def test_fed_cs_says_how_much_time_it_needs() -> None:
    # The fastest computes 5 * 0.01 seconds, and sends 0.02 / 3.16 on six bands at once.
    with pytest.raises(InputError, match=r"even the fastest client needs 0\.0563 seconds: raise"):
        run(FedCS(round_seconds=0.055), one_cell(), 1, engine(), prices())
    with pytest.raises(InputError, match=r"even the fastest client needs 0\.07 seconds: raise it"):
        run(FedCS(round_seconds=0.06, uploads="at-once"), one_cell(), 1, engine(), prices())
    fading = Fading(np.ones(6), np.full(6, 30.0), 1.0, 0.5, seed=4)  # may be good enough one day
    with pytest.raises(InputError, match=r"even the fastest client needs 0\.05 seconds: raise it"):
        run(FedCS(round_seconds=0.04), one_cell(), 1, engine(), replace(prices(), channel=fading))


def textbook_fed_cs(trains: list[float], sends: list[float], limit: float) -> dict[int, float]:
    """Algorithm 3 of the paper: who is taken, and when each has sent its model."""
    candidates, theta, taken = set(range(len(trains))), 0.0, {}
    while candidates:
        x = max(candidates, key=lambda k: (1 / (sends[k] + max(0.0, trains[k] - theta)), -k))
        candidates.remove(x)
        later = theta + sends[x] + max(0.0, trains[x] - theta)
        if later <= limit:
            theta = taken[x] = later
    return taken


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 2)), min_size=1, max_size=8),
    st.floats(0.5, 20),
)
def test_fed_cs_chooses_as_the_published_greedy_search(
    clients: list[tuple[float, float]], limit: float
) -> None:
    trains, sends = map(list, zip(*clients, strict=True))
    ends = in_turn(np.array(trains), np.array(sends), limit)
    found = {int(i): float(ends[i]) for i in np.flatnonzero(ends)}
    assert found == pytest.approx(textbook_fed_cs(trains, sends, limit))


def test_fed_cs_asks_a_random_part_of_every_cell() -> None:
    net, own = ring_of_four(), uneven()
    simulation = Simulation(Decisions.of(FedCS(fraction=0.5), net, cost(12)), own)
    crews = []
    for _ in range(20):
        decided = simulation._decided(simulation.state.lanes[0])
        crews.append(tuple(decided.work.down.rows.tolist()))
        next(simulation)
    assert {len(crew) for crew in crews} == {8}  # 2 of 3 in each of 4 cells
    assert len(set(crews)) > 10
    assert {client for crew in crews for client in crew} == set(range(12))


def test_fed_cs_lives_through_rounds_in_which_nobody_fits() -> None:
    """Channels fade: the deadline passes, servers gossip, and the next round may be better."""
    fading = Fading(np.ones(6), np.full(6, 30.0), 1.0, 0.5, seed=4)
    at = replace(prices(np.full(6, 0.001)), channel=fading)
    scheme = FedCS(round_seconds=0.02, uploads="at-once")
    simulation = Simulation(Decisions.of(scheme, one_cell(), at), engine())
    rounds = list(islice(simulation, 60))
    assert min(done.clients for done in rounds) == 0
    assert max(done.clients for done in rounds) > 0
    seconds = np.diff([0.0, *(done.seconds for done in rounds)])
    idle = [lasts for lasts, done in zip(seconds, rounds, strict=True) if not done.clients]
    np.testing.assert_allclose(idle, 0.02)
    assert seconds.max() <= 0.02 * (1 + 1e-9)


# Adaptive control


def test_adaptive_control_is_exact_for_one_step_and_grows_with_alike_data() -> None:
    seen = Estimates(rho=1.0, beta=2.0, delta=3.0)
    assert drift(np.array([1]), seen, 0.1)[0] == pytest.approx(0, abs=1e-12)
    taus = np.arange(1, 101)

    def best(delta: float, meeting: float) -> int:
        given = Estimates(rho=1.0, beta=2.0, delta=delta)
        return int(taus[np.argmin(bound(taus, given, 0.01, 0.025, 0.1, meeting, 1000.0))])

    assert best(delta=0, meeting=1.0) == 100
    assert best(delta=1e6, meeting=1.0) == 1
    assert best(delta=1.0, meeting=0.0) == 1
    assert 1 < best(delta=0.5, meeting=1.0) < 100


def test_adaptive_control_takes_longer_rounds_on_alike_data() -> None:
    def longest(spread: float) -> float:
        own = quadratic(3 + spread * np.arange(12.0), np.ones(12), 0.01)
        simulation = Simulation(
            Decisions.of(
                Adaptive(budget=50, alpha=1, phi=0.025),
                ring_of_four(),
                cost(12),
                local=Local(own.rate),
            ),
            own,
        )
        steps = []
        for _ in islice(simulation, 6):
            steps.append(simulation.state.lanes[0].memory["choice"][0])
        return float(max(steps))

    assert longest(0.0) == 100
    assert longest(10.0) < 10


def test_adaptive_control_exchanges_more_where_servers_drift_apart() -> None:
    def most(graph: str) -> float:
        own = quadratic(3 * np.arange(12.0), np.ones(12), 0.01)
        scheme = Adaptive(budget=50, every=2)
        net = clustered(np.ones(12), [i % 6 for i in range(12)], links(graph, 6))
        simulation = Simulation(Decisions.of(scheme, net, cost(12), local=Local(own.rate)), own)
        return max(
            float(simulation.state.lanes[0].memory["choice"][1]) for _ in islice(simulation, 10)
        )

    assert most("complete") == 1
    assert most("path") > 1


def test_adaptive_control_exchanges_once_where_all_clients_agree() -> None:
    alike = Estimates(rho=1.0, beta=1.0, delta=0.0, spread=0.1)
    assert exchanges(0.5, alike, reach=0.1, price=0.5) == 1


@given(st.floats(0, 0.99), st.floats(0.01, 10), st.floats(0.001, 1), st.floats(0.001, 1))
def test_no_other_number_of_exchanges_is_worth_its_price(
    zeta: float, spread: float, reach: float, price: float
) -> None:
    seen = Estimates(rho=1.0, beta=1.0, delta=2.0, spread=spread)
    chosen = exchanges(zeta, seen, reach, price)
    costs = [price * n + spread / (2 * reach) * zeta**n for n in range(21)]
    assert costs[chosen] == pytest.approx(min(costs))


def test_adaptive_control_exchanges_rarely_where_links_are_slow() -> None:
    def each_round(mbps: float) -> float:
        own = quadratic(3 * np.arange(12.0), np.ones(12), 0.01)
        net = clustered(np.ones(12), [i % 6 for i in range(12)], links("ring", 6))
        rates = {**RATES, "server-server": mbps * 1e6}
        at = replace(cost(12), rates=rates)  # type: ignore[arg-type]
        simulation = Simulation(
            Decisions.of(Adaptive(budget=50), net, at, local=Local(own.rate)), own
        )
        chosen = [simulation.state.lanes[0].memory["choice"][1] for _ in islice(simulation, 30)]
        assert max(chosen[-10:]) > 0  # never silent for good
        return float(np.mean(chosen))

    slow, fast = each_round(0.05), each_round(5000)
    assert slow < 0.7
    assert fast > 1.5


def test_adaptive_control_keeps_its_choice_between_two_choices() -> None:
    own = quadratic(3 + 0.0 * np.arange(12.0), np.ones(12), 0.01)
    scheme = Adaptive(budget=50, alpha=1, every=3)
    simulation = Simulation(
        Decisions.of(scheme, ring_of_four(), cost(12), local=Local(own.rate)), own
    )
    later = [simulation.state.lanes[0].memory["choice"][0] for _ in islice(simulation, 7)]
    assert later == [1, 1, 10, 10, 10, 100, 100]


def test_adaptive_control_cuts_its_last_round_to_its_budget() -> None:
    own = quadratic(3 + 0.0 * np.arange(12.0), np.ones(12), 0.01)
    at = cost(12)  # 0.01 seconds for a step, 0.2 for an upload, 0.02 for an exchange
    scheme = Adaptive(budget=5, alpha=1)
    simulation = Simulation(Decisions.of(scheme, ring_of_four(), at, local=Local(own.rate)), own)
    ends = [done.seconds for done in islice(simulation, 12)]
    assert max(end for end in ends if end <= 5) > 4.5  # a step and an averaging remain
    assert simulation.state.lanes[0].memory["choice"][0] == 1


# Joint scheduling


def test_equal_clients_share_the_bandwidth_equally() -> None:
    assert needed(np.array([5.0]), np.array([SNR]))[0] == pytest.approx(0.99235, abs=5e-6)
    end, share = equalised(np.full(5, 0.3), np.full(5, 0.7), np.full(5, SNR), 5.0)
    assert end == pytest.approx(1.0)
    np.testing.assert_allclose(share, 1, rtol=1e-9)


@given(st.integers(0, 2**32), st.integers(2, 8))
@examples(20)
def test_unequal_clients_finish_together_and_use_the_whole_band(seed: int, count: int) -> None:
    draws = np.random.default_rng(seed)
    busy, sending = draws.uniform(0, 1, count), draws.uniform(0.1, 2, count)
    snr = draws.uniform(1, 100, count)
    end, share = equalised(busy, sending, snr, float(count))
    finish = busy + sending / LinkTimes(snr=snr).speedup(share, slice(count))
    np.testing.assert_allclose(finish, end, rtol=1e-9)
    assert share.sum() == pytest.approx(count, rel=1e-6)
    assert end <= (busy + sending).max() * (1 + 1e-9)


def test_scheduling_leaves_a_hopeless_client_out_unless_it_may_not_wait() -> None:
    cell = ((0.1, 0.1, 50.0), (1.0, 1.0, 1.0), (SNR,) * 3)
    assert scheduled(cell, (0, 1, 2), 0, 0.5)[2] == 0
    assert scheduled(cell, (2, 0, 1), 1, 0.5)[2] > 0

    def seen(max_wait: int | None) -> set[int]:
        scheme, at = JointScheduling(max_wait=max_wait), prices(np.array([0.01] * 5 + [9.0]))
        simulation = Simulation(Decisions.of(scheme, one_cell(), at), engine())
        found = set()
        for _ in range(8):
            found |= set(simulation._decided(simulation.state.lanes[0]).work.down.rows.tolist())
            next(simulation)
        return found

    assert 5 not in seen(None)
    assert 5 in seen(3)


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 5))
@examples(15)
def test_clients_that_are_always_late_do_not_keep_others_from_training(
    seed: int, max_wait: int, slow: int
) -> None:
    """Some never meet the deadline, and those that waited come first: others must train, too."""
    draws = np.random.default_rng(seed)
    steps = np.where(np.arange(6) < slow, 0.01, 9.0)[draws.permutation(6)]
    drop = StragglerPolicy("drop", seconds=1.0)
    scheme = JointScheduling(max_wait=max_wait)
    simulation = Simulation(Decisions.of(scheme, one_cell(), prices(steps), late=drop), engine())
    came = [done.clients > 0 for done in islice(simulation, 12)]
    assert any(came[:4])
    assert any(came[4:8])
    assert any(came[8:])


def textbook_round(
    busy: list[float], sending: list[float], snr: list[float], total: float
) -> float:
    """When all end together: bandwidths by bisection, and their sum by another."""

    def bandwidth(seconds: float, send: float, ratio: float) -> float:
        low, high = 0.0, 1e9
        for _ in range(200):
            b = (low + high) / 2
            rate = b * np.log2(1 + ratio / b) / np.log2(1 + ratio)  # 1 at an equal share
            low, high = (low, b) if rate * seconds >= send else (b, high)
        return high

    low, high = max(busy), max(busy) + 1e4
    for _ in range(100):
        end = (low + high) / 2
        bands = [bandwidth(end - b, s, r) for b, s, r in zip(busy, sending, snr, strict=True)]
        low, high = (low, end) if sum(bands) <= total else (end, high)
    return high


def textbook_schedule(cell: list[tuple[float, float, float]], divergence: float) -> set[int]:
    """Add the client with which the round ends soonest, until the bound falls."""
    chosen: list[int] = []
    bound_before = -np.inf
    while len(chosen) < len(cell):
        ends = {}
        for k in set(range(len(cell))) - set(chosen):
            busy, sending, snr = map(list, zip(*(cell[i] for i in [*chosen, k]), strict=True))
            ends[k] = textbook_round(busy, sending, snr, len(cell))
        best = min(ends, key=lambda k: ends[k])
        n, total = len(chosen) + 1, len(cell)
        value = (1 - divergence * ((total - n) / (n * (total - 1))) ** 0.5) / ends[best]
        if value <= bound_before:
            break
        chosen, bound_before = [*chosen, best], value
    return set(chosen)


@pytest.mark.parametrize("seed", range(4))
def test_scheduling_is_the_published_greedy_search(seed: int) -> None:
    draws = np.random.default_rng(seed)
    cell = [
        (float(draws.uniform(0, 1)), float(draws.uniform(0.1, 2)), float(draws.uniform(1, 100)))
        for _ in range(4)
    ]
    busy, sending, snr = zip(*cell, strict=True)
    share = scheduled((busy, sending, snr), (0, 1, 2, 3), 0, 0.5)
    assert set(np.flatnonzero(share).tolist()) == textbook_schedule(cell, 0.5)


def test_clients_that_are_alike_take_turns() -> None:
    """Fewer clients have more bandwidth each, so not all are scheduled: ties go to who waited."""
    at = Cost(np.full(6, 1e-6), 1e6, RATES)  # type: ignore[arg-type]
    simulation = Simulation(Decisions.of(JointScheduling(divergence=0.1), one_cell(), at), engine())
    crews = []
    for _ in range(6):
        crews.append(simulation._decided(simulation.state.lanes[0]).work.down.rows.tolist())
        next(simulation)
    assert len(crews[0]) < 6
    assert {client for crew in crews for client in crew} == set(range(6))


def test_sharing_bandwidth_shortens_rounds_of_unequal_clients() -> None:
    net, own = one_cell(), engine()
    at = Cost(SPEEDS * 10, 1e6, RATES)  # type: ignore[arg-type]
    joint = run(JointScheduling(divergence=5.0), net, 4, own, at)
    assert joint.state.seconds < run(SDFeel(), net, 4, own, at).state.seconds


# D²


def test_d_squared_follows_its_recursion() -> None:
    net, own = ring_of_four(), uneven()
    simulation = run(DSquared(), net, 6, own, cost(12))
    mix = torch.from_numpy(damped(net.mixing).copy())
    share = torch.from_numpy(net.samples.copy())

    def gradients(x: torch.Tensor) -> torch.Tensor:
        rows = []
        for d in net.servers:
            mine = torch.from_numpy(np.flatnonzero(net.home == d))
            each = own.curvature[mine] * (x[d] - own.centres[mine])  # type: ignore[index]
            rows.append((share[mine, None] * each).sum(dim=0) / share[mine].sum())
        return torch.stack(rows)

    before = torch.zeros(4, 3, dtype=torch.float64)
    now = mix @ (before - own.rate * gradients(before))
    for _ in range(5):
        change = own.rate * (gradients(now) - gradients(before))
        before, now = now, mix @ (2 * now - before - change)
    torch.testing.assert_close(simulation.state.servers, now, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_d_squared_ends_at_the_minimum_where_gossip_does_not() -> None:
    net, own = ring_of_four("complete"), uneven()
    centres, weights = own.centres, own.weights[:, None] * torch.as_tensor(own.curvature)
    least = (weights * centres).sum(dim=0) / weights.sum(dim=0)

    def gap(scheme: Scheme) -> float:
        servers = run(scheme, net, 1500, own, cost(12)).state.servers
        return float((servers - least).norm(dim=1).max())

    assert gap(DSquared()) < 1e-6
    assert gap(SDFeel(tau1=1, alpha=1)) > 1e-4


def test_a_swinging_mixing_is_made_lazy() -> None:
    ring = clustered(np.ones(10), list(range(10)), links("ring", 10))
    assert np.linalg.eigvals(ring.mixing).real.min() < -1 / 3
    assert np.linalg.eigvals(damped(ring.mixing)).real.min() > -1 / 3
